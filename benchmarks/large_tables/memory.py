# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Peak memory of processes, by phases, and the memory that the machine has left."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

_KIB = 1024


def _field(path: Path, name: str) -> int:
    """Return a field of a file of /proc in bytes."""
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * _KIB
    raise ValueError(f"{path} has no field {name}")


def begin(pids: Mapping[str, int]) -> None:
    """Let the peaks of processes begin anew.

    Args:
      pids: by task.
    """
    for pid in pids.values():
        # (Where the kernel does not allow it, peaks are those since the start.)
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def peaks(pids: Mapping[str, int]) -> dict[str, int]:
    """Return the largest resident set of each process since `begin`, in bytes.

    Args:
      pids: by task.
    """
    return {task: _field(Path(f"/proc/{pid}/status"), "VmHWM") for task, pid in pids.items()}


def available() -> int:
    """Return the bytes that programs can still get without swapping."""
    return _field(Path("/proc/meminfo"), "MemAvailable")
