# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read what is gained from the JSON files that `tf-fuse bench` and benchmarks/ write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tf_fuse.report.json_form import MAX_BYTES, ReportError, public
from tf_fuse.report.records.model import Gain, Measured, Note

# Keys of a file that name what ran, in this order; then settings that say how.
_NAMES = ("workload", "model", "optimizer")
_SETTINGS = (
    "tables", "features", "workers", "replicas", "ps", "servers", "batch", "tensors",
)  # fmt: skip
# The same of one of several rows.
_ROW_NAMES = ("op", "name")
_ROW_SETTINGS = {
    "ranks": "ranks",
    "bytes": "bytes",
    "frame_bytes": "bytes in a frame",
    "tensor_bytes": "bytes in a tensor",
}
# What others are compared with, if a benchmark has it.
_BASES = ("stock", "data-parallel", "not recorded")


def gains_of(paths: Iterable[Path]) -> tuple[list[Gain], list[Note]]:
    """Read JSON files of benchmarks; return what they hold, and which could not be read."""
    gains: list[Gain] = []
    notes: list[Note] = []
    for path in paths:
        try:
            gains += gains_in(path)
        except (OSError, ReportError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            notes.append(Note(path.name, f"not read: {reason}"))
    return gains, notes


def gains_in(path: Path) -> list[Gain]:
    """Read the JSON file of a benchmark that runs the same in several ways.

    Args:
      path: that `--json` was given.

    Returns:
      One gain for each thing that ran: a size, a link or a model, if there are several.

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
    found = list(_compared(data, path)) if isinstance(data, dict) else []
    if not found:
        raise ReportError(
            f"{path.name}: neither a report nor the JSON of a benchmark that runs the same in "
            "several ways"
        )
    return found


def _compared(data: Mapping[str, Any], path: Path) -> Iterator[Gain]:
    """Yield what a file compares, in whichever of the benchmarks' forms it is."""
    title = _title(data, path)
    modes = data.get("modes", data.get("variants"))
    if _is_dict_of_dicts(modes):
        yield _gain(title, modes)
    if (ways := _columns(data)) is not None:
        yield _gain(title, ways)
    # A row for each link: its modes, whose requests the link does not change.
    rpcs = data.get("recv_rpcs_per_step")
    for row in _rows(data, "conditions"):
        if _is_dict_of_dicts(row.get("modes")):
            counted = rpcs if isinstance(rpcs, dict) else {}
            ways = {
                name: {"recv_rpcs_per_step": counted.get(name), **one}
                for name, one in row["modes"].items()
            }
            yield _gain(_title_of_row(title, row), ways)
    # A row for each size; of collectives it has the times of calls.
    for key in ("sizes", "rows"):
        for row in _rows(data, key):
            if (ways := _columns(row)) is not None:
                yield _gain(_title_of_row(title, row), ways)
    # A row for each layout of a model's step.
    models: dict[str, dict[str, Any]] = {}
    for row in _rows(data, "step"):
        if isinstance(row.get("model"), str) and isinstance(row.get("layout"), str):
            models.setdefault(row["model"], {})[row["layout"]] = {
                "ms_per_step": row.get("ms"),
                "collective_bytes_per_step": row.get("received_bytes"),
            }
    for model, ways in models.items():
        yield _gain(f"{title}, {model}", ways)


def _rows(data: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    rows = data.get(key)
    return [one for one in rows if isinstance(one, dict)] if isinstance(rows, list) else []


def _is_dict_of_dicts(modes: Any) -> bool:
    return (
        isinstance(modes, dict)
        and bool(modes)
        and all(isinstance(one, dict) for one in modes.values())
    )


def _columns(row: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Return the numbers of each way, of a row that has a dict of ways for each number."""
    times = row.get("ms_per_step", row.get("ms"))
    if not isinstance(times, dict) or not times or "median" in times:
        return None

    def of(name: str, *keys: str) -> Any:
        columns = [row[key] for key in keys if isinstance(row.get(key), dict)]
        return columns[0].get(name) if columns else None

    return {
        name: {
            "ms_per_step": took,
            "cpu_ms_per_step": of(name, "cpu_ms_per_step", "cpu_ms"),
            "collective_bytes_per_step": of(name, "wire_bytes"),
        }
        for name, took in times.items()
    }


def _gain(title: str, modes: Mapping[str, Mapping[str, Any]]) -> Gain:
    ways = [_measured(name, one) for name, one in modes.items()]
    return Gain(title, tuple(sorted(ways, key=lambda one: one.name not in _BASES)))


def _title_of_row(title: str, row: Mapping[str, Any]) -> str:
    words = [title, *(row[key] for key in _ROW_NAMES if isinstance(row.get(key), str))]
    words += [f"{row[key]:,} {text}" for key, text in _ROW_SETTINGS.items() if _is_count(row, key)]
    return ", ".join(words) + ("; a step is a call" if "ms" in row else "")


def _is_count(data: Mapping[str, Any], key: str) -> bool:
    return isinstance(data.get(key), int) and not isinstance(data[key], bool) and data[key] > 0


def _title(data: Mapping[str, Any], path: Path) -> str:
    given = data.get("settings")
    settings: dict[str, Any] = given if isinstance(given, dict) else {}
    words = [str(data[key]) for key in _NAMES if isinstance(data.get(key), str)] or [path.stem]
    known = {**settings, **{key: data[key] for key in _SETTINGS if key in data}}
    words += [f"{known[key]} {key}" for key in _SETTINGS if _is_count(known, key)]
    return ", ".join(words)


def _measured(name: str, one: Mapping[str, Any]) -> Measured:
    rate = _number(one.get("steps_per_s"))
    for key in ("step_ms", "ms_per_step"):
        took = _number(one.get(key))
        if rate is None and took is not None and took > 0:
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
