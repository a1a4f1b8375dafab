# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The programs examples/quickstart_*.py, with fewer steps: tests are not about the numbers."""

import re
from pathlib import Path
from typing import Any, Final

import pytest

_FOLDER = Path(__file__).resolve().parents[3] / "examples"
NAMES: Final = sorted(path.name for path in _FOLDER.glob("quickstart_*.py"))
# A replica says its rate alone: the program compares the two where it starts its own cluster.
RATE: Final = r"[\d.]+ steps/s"
SPEED_UP: Final = r"steps/s: [\d.]+ without, [\d.]+ with tf_fuse: [\d.]+ times"


def text(name: str) -> str:
    """Return the text of a program."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def cases(*fast: str) -> list[Any]:
    """Return names with whether the program is unchanged; most are slow.

    `make quickstarts` runs those that are unchanged.

    Args:
      fast: names of programs that also the other tests run, with fewer steps.
    """
    return [
        pytest.param(
            name,
            unchanged,
            id=f"{name}-{'unchanged' if unchanged else 'short'}",
            marks=() if name in fast and not unchanged else pytest.mark.slow,
        )
        for unchanged in (False, True)
        for name in NAMES
    ]


def shortened(name: str) -> str:
    """Return it with two steps wherever it measures."""
    short = re.sub(r"\bSTEPS = .*", lambda found: re.sub(r"\d+$", "2", found[0]), text(name))
    return short.replace("steps_per_second(50)", "steps_per_second(2)")
