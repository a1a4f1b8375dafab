# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How benchmarks print spans and write what they measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


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
