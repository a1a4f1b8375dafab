# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How benchmarks print, write what they measured, and get it from their processes."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console


class ProcessError(RuntimeError):
    """A process of a benchmark failed; the text is the end of its standard error."""


def rows_of(command: Sequence[str], timeout_s: float) -> list[dict[str, Any]]:
    """Run a process, and return the rows that it gives.

    Args:
      command: its program calls `give_rows`. The name of the file for the rows is added to the end:
        TensorFlow's threads log to the standard streams whenever they like.
      timeout_s: the longest that it may take.

    Raises:
      ProcessError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        done = subprocess.run(
            [*command, str(path)], capture_output=True, text=True, check=False, timeout=timeout_s
        )
        if done.returncode:
            error = done.stderr.strip()[-4000:]
            raise ProcessError(error or f"{' '.join(command)} ended with {done.returncode}")
        rows: list[dict[str, Any]] = json.loads(path.read_text())
        return rows


def give_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows into the file that the first argument of this process names."""
    Path(sys.argv[1]).write_text(json.dumps(rows))


def say(console: Console, text: str) -> None:
    """Print a line unchanged: what is in brackets is part of a name."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def span(values: Mapping[str, float], form: str) -> str:
    """Return the median of rounds, then minimum and maximum."""
    return f"{values['median']:{form}} ({values['min']:{form}} to {values['max']:{form}})"


def write(
    result: Mapping[str, Any],
    args: argparse.Namespace,
    tell: Callable[[str], None],
    plot: Callable[[Mapping[str, Any], Path], None],
) -> None:
    """Write a result to the files that were asked for.

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
