# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Count the bytes of relayouts and of whole training steps on the wire, beside those of the plans.

Four processes, of one device each, talk over loopback; the interface's counter is read around some
relayouts. Where `unshare` may make one (root), they have a network namespace of their own, so that
nobody else's bytes are counted.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.table import Table

from benchmarks.common import output
from benchmarks.layout import wire_relayouts

_HERE = Path(__file__).resolve().parent
_PROGRAMS = {
    "relayouts": _HERE / "wire_relayouts.py",
    "training steps": _HERE / "wire_steps.py",
}
_APART = ("unshare", "--net")


def measure(progress: Progress) -> list[dict[str, Any]]:
    """One row per relayout and per training step, for `--json`.

    Args:
      progress: gets tasks that end with the processes.

    Raises:
      ProcessError: a process failed, or has wrong values.
    """
    rows = []
    for what, program in _PROGRAMS.items():
        progress.add_task(f"{what} in four processes", total=None)
        rows += _rows(program)
    return rows


def _rows(program: Path) -> list[dict[str, Any]]:
    command = [*(_APART if _can_be_apart() else ()), sys.executable, str(program)]
    return output.rows_of(command, wire_relayouts.TIMEOUT_S + 60)


def _can_be_apart() -> bool:
    try:
        return not subprocess.run([*_APART, "true"], capture_output=True, check=False).returncode
    except FileNotFoundError:
        return False


def render(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows as a table."""
    size = " x ".join(map(str, wire_relayouts.SHAPE))
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
