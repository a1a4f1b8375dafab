# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How benchmarks print, and write what they measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

# Characters of a table in a file or a pipe.
FILE_WIDTH = 132


def wide_console() -> Console:
    """Standard output; where it is no terminal, wide enough for a benchmark's table."""
    console = Console()
    if not console.is_terminal:
        console.width = FILE_WIDTH
    return console


def say(console: Console, text: str) -> None:
    """Prints a line as it is: what is in brackets is part of a name."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def span(values: Mapping[str, float], form: str) -> str:
    """The median of rounds, and behind it minimum and maximum."""
    return f"{values['median']:{form}} ({values['min']:{form}} to {values['max']:{form}})"


def write(
    result: Mapping[str, Any],
    args: argparse.Namespace,
    tell: Callable[[str], None],
    plot: Callable[[Mapping[str, Any], Path], None],
) -> None:
    """Writes a result to the files that were asked for.

    Args:
      result: all of it.
      args: with `json` and `plot`, paths or None.
      tell: gets a line that says where the numbers are.
      plot: draws the result to a path.
    """
    for path in (args.json, args.plot):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
        tell(f"all numbers: {args.json}")
    if args.plot:
        plot(result, args.plot)
