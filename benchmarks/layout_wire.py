# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bytes that relayouts on DTensor, and whole training steps, bring onto the wire, against plans.

Four processes, of one device each, talk over loopback; the interface's counter is read around some
relayouts. Where `unshare` may make one (root), they have a network namespace of their own, so that
nobody else's bytes are counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.table import Table

from benchmarks import layout_wire_rank

_HERE = Path(__file__).resolve().parent
_PROGRAMS = {
    "relayouts": _HERE / "layout_wire_rank.py",
    "training steps": _HERE / "layout_wire_steps.py",
}
_APART = ("unshare", "--net")


class WireError(RuntimeError):
    """The processes failed; the text is what they said."""


def measure(progress: Progress) -> list[dict[str, Any]]:
    """One row per relayout and per training step, for `--json`.

    Args:
      progress: gets tasks that end with the processes.

    Raises:
      WireError: a process failed, or has wrong values.
    """
    rows = []
    for what, program in _PROGRAMS.items():
        progress.add_task(f"{what} in four processes", total=None)
        rows += _rows(program)
    return rows


def _rows(program: Path) -> list[dict[str, Any]]:
    command = [sys.executable, str(program)]
    if _can_be_apart():
        command = [*_APART, *command]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=layout_wire_rank.TIMEOUT_S + 60,
    )
    if done.returncode:
        raise WireError(done.stderr.strip() or f"{program.name} ended with {done.returncode}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def _can_be_apart() -> bool:
    try:
        return not subprocess.run([*_APART, "true"], capture_output=True, check=False).returncode
    except FileNotFoundError:
        return False


def render(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows as a table."""
    size = " x ".join(map(str, layout_wire_rank.SHAPE))
    table = Table(title=f"bytes on the wire, 2x2 processes; relayouts of float32 {size}")
    table.add_column("relayout, or model and layout")
    table.add_column("steps")
    for name in ("predicted", "measured", "measured / predicted"):
        table.add_column(name, justify="right")
    for row in rows:
        ratio = row["measured_bytes"] / row["predicted_bytes"] if row["predicted_bytes"] else 1.0
        table.add_row(
            row["name"],
            "\n".join(step.partition(",")[0] for step in row["plan"]),
            f"{row['predicted_bytes']:,}",
            f"{row['measured_bytes']:,}",
            f"{ratio:.4f}",
        )
    return table
