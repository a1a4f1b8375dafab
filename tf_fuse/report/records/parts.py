# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make a part of a report or note why it is missing, and shorten names of tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_fuse.report.records.model import Note


def part(name: str, notes: list[Note], make: Callable[[], Any], default: Any) -> Any:
    """Return a part of a report; the default, and a note, if it cannot be made."""
    try:
        return make()
    except Exception as error:  # Of the job, which may end at any time: the other parts are shown.
        notes.append(Note(name, f"not known: {type(error).__name__}: {str(error)[:300]}"))
        return default


def short(device: str) -> str:
    """Return "ps:1" for the task or device "/job:ps/replica:0/task:1…"."""
    parts = dict(part.partition(":")[::2] for part in device.split("/")[1:])
    return f"{parts['job']}:{parts['task']}" if {"job", "task"} <= parts.keys() else device
