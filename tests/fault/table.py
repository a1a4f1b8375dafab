# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The table of docs/faults.md: what a fault does to stock TensorFlow, and what it does here.

Every row names a test module and a case of it, or a function of it. The tests assert the outcomes
that the table states, so neither can change without the other. In the column of the plugin, "same"
stands for the outcome of stock TensorFlow. Times are reported, not asserted: with
TF_FUSE_FAULTS_JSON set, the tests write them to that folder, and
`python tests/fault/table.py FOLDER` (`make faults`) puts those of a second and more into the table.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
_ROW = re.compile(r"^\| (.+?) \| (?:(.+?) \| )?(.+?) \| `(test_\w+)::(\w+)` \|$", re.MULTILINE)
_NO_SUCH_FAULT = "n/a"  # also where a table has no column of stock TensorFlow
_SECONDS = re.compile(r" \([\d.]+ s\)$")
_SAME = "same"
_LEAST_SECONDS = 1.0  # Shorter times are not written.
_VARIABLE = "TF_FUSE_FAULTS_JSON"


@dataclasses.dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
      fault: what happens.
      stock: the outcome in stock TensorFlow, without its time.
      here: the outcome with the plugin and the option on, without its time.
    """

    fault: str
    stock: str
    here: str


def rows() -> dict[tuple[str, str], Row]:
    """The rows of the document by test module and case.

    Raises:
      ValueError: two rows name the same case.
    """
    found: dict[tuple[str, str], Row] = {}
    for fault, stock, here, module, case in _ROW.findall(DOCUMENT.read_text()):
        if (module, case) in found and not case.startswith("test_"):
            raise ValueError(f"{DOCUMENT}: two rows name the case {module}: {case}")
        stock, here = _SECONDS.sub("", stock or _NO_SUCH_FAULT), _SECONDS.sub("", here)
        found[module, case] = Row(fault, stock, stock if here == _SAME else here)
    return found


def cases(module: str) -> list[str]:
    """The cases that the document has of a test module (its `__file__`), in its order.

    Not those rows that name a test function, which asserts the outcome itself.
    """
    stem = Path(module).stem
    return [case for name, case in rows() if name == stem and not case.startswith("test_")]


def _agrees(outcome: Any, documented: str) -> bool:
    """Whether an outcome is the documented one.

    Where it is up to a race, the document has all that were seen, with " or " between them; an
    outcome of several tasks is written so, too. Parts with "; " between them are compared each.
    """
    if not isinstance(outcome, str):
        return False
    seen, known = ([set(part.split(" or ")) for part in text.split("; ")]
                   for text in (outcome, documented))  # fmt: skip
    return len(seen) == len(known) and all(a <= b for a, b in zip(seen, known, strict=True))


def check(module: str, case: str, stock: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Compares what happened with what the document says.

    Args:
      module: `__file__` of the test module.
      case: name of the case.
      stock: what `observe` returned in stock TensorFlow.
      here: the same with the plugin.

    Raises:
      AssertionError: an outcome is not the documented one.
    """
    stem = Path(module).stem
    row = rows()[stem, case]
    observed = {"stock": stock, "here": here}
    documented = {"stock": row.stock, "here": row.here}
    for mode, result in observed.items():
        assert _agrees(result.get("outcome"), documented[mode]), (
            f"{row.fault} ({stem}: {case}): {mode}: {observed}"
        )
    if folder := os.environ.get(_VARIABLE):
        times = {mode: result.get("seconds") for mode, result in observed.items()}
        path = Path(folder) / f"{stem}.{case}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(times))


def observe(
    action: Callable[[], Any], describe: Callable[[Any], str] = lambda value: "recovered"
) -> dict[str, Any]:
    """Runs an action and says how it ended.

    Args:
      action: called once.
      describe: what to call the outcome if it does not raise, from the value.

    Returns:
      "outcome", the class of a TensorFlow error in backquotes or what `describe` says; "seconds";
      and "text", the beginning of an error's text.
    """
    import tensorflow as tf

    start = time.monotonic()
    text = ""
    try:
        outcome = describe(action())
    except tf.errors.OpError as error:
        outcome, text = f"`{type(error).__name__}`", str(error)[:2000]
    return {"outcome": outcome, "seconds": round(time.monotonic() - start, 3), "text": text}


def _with_time(outcome: str, seconds: float | None) -> str:
    if seconds is None or seconds < _LEAST_SECONDS:
        return outcome
    return f"{outcome} ({seconds:.1f} s)"


def write_times(folder: Path) -> int:
    """Puts the times that the tests reported into the document; returns how many rows got one."""
    updated = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal updated
        fault, stock, here, module, case = match.groups()
        path = folder / f"{module}.{case}.json"
        if not path.exists():
            return match.group()
        updated += 1
        times = json.loads(path.read_text())
        cells = [fault]
        if stock:
            cells.append(_with_time(_SECONDS.sub("", stock), times["stock"]))
        cells.append(_with_time(_SECONDS.sub("", here), times["here"]))
        return f"| {' | '.join(cells)} | `{module}::{case}` |"

    DOCUMENT.write_text(_ROW.sub(replace, DOCUMENT.read_text()))
    return updated


if __name__ == "__main__":
    print(f"{DOCUMENT}: the times of {write_times(Path(sys.argv[1]))} rows were updated")
