# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read what is gained from the JSON files that `tf-fuse bench` and benchmarks/ write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tf_fuse.report.json_form import MAX_BYTES, ReportError, public
from tf_fuse.report.model import Gain, Measured, Note

# Keys of a file that name what ran, in this order; then settings that say how.
_NAMES = ("workload", "model", "optimizer")
_SETTINGS = ("tables", "features", "workers", "replicas", "ps", "servers", "batch")


def gains_of(paths: Iterable[Path]) -> tuple[list[Gain], list[Note]]:
    """Read JSON files of benchmarks; return what they hold, and which could not be read."""
    gains, notes = [], []
    for path in paths:
        try:
            gains.append(gain_of(path))
        except (OSError, ReportError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            notes.append(Note(path.name, f"not read: {reason}"))
    return gains, notes


def gain_of(path: Path) -> Gain:
    """Read the JSON file of a benchmark that has several modes or variants.

    Args:
      path: that `--json` was given.

    Raises:
      ReportError: it is another file, or truncated.
      OSError: it cannot be read.
    """
    if path.stat().st_size > MAX_BYTES:
        raise ReportError(f"{path.name}: too large for the numbers of a benchmark")
    try:
        data = public(json.loads(path.read_text(encoding="utf-8")))
    except (RecursionError, ValueError) as error:
        raise ReportError(f"{path.name}: not JSON, or cut off ({error})") from None
    modes = data.get("modes", data.get("variants")) if isinstance(data, dict) else None
    if not isinstance(modes, dict) or not all(isinstance(one, dict) for one in modes.values()):
        raise ReportError(
            f'{path.name}: neither a report nor the JSON of a benchmark with "modes" or "variants"'
        )
    ways = tuple(_measured(str(name), one) for name, one in modes.items())
    return Gain(_title(data, path), tuple(sorted(ways, key=lambda one: one.name != "stock")))


def _title(data: Mapping[str, Any], path: Path) -> str:
    given = data.get("settings")
    settings: dict[str, Any] = given if isinstance(given, dict) else {}
    words = [str(data[key]) for key in _NAMES if isinstance(data.get(key), str)] or [path.stem]
    known = {**settings, **{key: data[key] for key in _SETTINGS if key in data}}
    words += [
        f"{known[key]} {key}"
        for key in _SETTINGS
        if isinstance(known.get(key), int) and not isinstance(known.get(key), bool) and known[key]
    ]
    return ", ".join(words)


def _measured(name: str, one: Mapping[str, Any]) -> Measured:
    rate = _number(one.get("steps_per_s"))
    for key in ("step_ms", "ms_per_step"):
        took = _number(one.get(key))
        if rate is None and took:
            rate = 1e3 / took
    return Measured(
        name,
        rate,
        _number(one.get("recv_rpcs_per_step")),
        _number(one.get("collective_bytes_per_step")),
        _number(one.get("cpu_ms_per_step")),
    )


def _number(value: Any) -> float | None:
    """Return a number, the median of several, or the sum of those of all roles."""
    if isinstance(value, dict):
        if "median" in value:
            return _number(value["median"])
        parts = [_number(one) for one in value.values()]
        return sum(one for one in parts if one is not None) if parts else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
