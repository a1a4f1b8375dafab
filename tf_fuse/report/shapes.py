# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check what the types of a report do not say: dicts of its parts, and numbers that name others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse._deprecated.former_reports import with_new_names
from tf_fuse.report.records.model import Lane, Report, Timeline


@dataclass(frozen=True)
class _Each:
    """A dict with any keys, whose values have one shape."""

    shape: Any


# A shape is a type (float: any number), a dict of known keys, a list of one shape, or a tuple of
# the items of a list. Values that are None, and keys that are not here, fit.
_LEFT = {"variable": str, "reason": str, "meaning": str}
_GRADIENT = {**_LEFT, "gradient": str, "shape": [object], "bytes": float, "sharded": bool}
_WEIGHT_FUNCTION = {
    "function": str,
    "sharded": bool,
    "reason": str,
    "meaning": str,
    "buckets": [{"reason": str, "meaning": str, "gradients": [_GRADIENT]}],
}
_SHAPES = {
    "weight_updates": _Each(
        {
            "functions": [_WEIGHT_FUNCTION],
            "operations": [{"function": str, "way": str, "left": [_LEFT]}],
        }
    ),
    "server_updates": {
        "servers": _Each(
            dict.fromkeys(("updates", "update_us", "waits", "wait_us", "max_wait_us"), float)
        ),
        "workers": _Each(
            {
                "updates": float,
                "mean_staleness": float,
                "max_staleness": float,
                "staleness": [(float, float, float)],
            }
        ),
    },
    "placements": [
        {
            "servers": [
                dict.fromkeys(("kept_bytes", "read_bytes_per_step", "update_s_per_step"), float)
            ],
            "variables": [{"variable": str, "meaning": str, "kept_bytes": float}],
        }
    ],
}


def fitting(report: Report, problems: list[str]) -> Report:
    """Return a report without what a page or a trace cannot show.

    Args:
      report: whose fields have their types.
      problems: gets a text for each thing that is left out.
    """
    parts: dict[str, Any] = {}
    for name, shape in _SHAPES.items():
        value = getattr(report, name)
        as_read = list(value) if isinstance(value, tuple) else value
        if name == "weight_updates":
            as_read = {task: with_new_names(one) for task, one in value.items()}
        fits = _fitting(shape, as_read, name, problems)
        parts[name] = tuple(fits) if isinstance(value, tuple) else fits
    if report.timeline is not None:
        parts["timeline"] = _timeline(report.timeline, problems)
    return dataclasses.replace(report, **parts)


def _fitting(shape: Any, data: Any, where: str, problems: list[str]) -> Any:
    """Return what fits of data that is a dict or a list; other data unchanged, if it fits.

    Raises:
      TypeError: it does not.
    """
    if isinstance(shape, _Each | Mapping):
        found: dict[str, Any] = {}
        for key, value in _of(dict, data, where).items():
            inner = shape.shape if isinstance(shape, _Each) else shape.get(key, object)
            # (A key with any value is a task's name, which a page takes for one.)
            if value is None and not isinstance(shape, _Each):
                found[key] = None
            else:
                _try(inner, value, f"{where}.{key}", problems, found, key)
        return found
    if isinstance(shape, list):
        items: dict[int, Any] = {}
        for number, value in enumerate(_of(list, data, where)):
            _try(shape[0], value, f"{where}[{number}]", problems, items, number)
        return list(items.values())
    if isinstance(shape, tuple):
        if len(_of(list, data, where)) != len(shape):
            raise TypeError(f"{where}: expected {len(shape)} items, found {len(data)}")
        return [
            _fitting(one, value, where, problems) for one, value in zip(shape, data, strict=True)
        ]
    if shape is float:
        if isinstance(data, bool):
            raise TypeError(f"{where}: expected float, found bool")
        return data if isinstance(data, int) else _of(float, data, where)
    return _of(shape, data, where)


def _try(
    shape: Any, value: Any, where: str, problems: list[str], found: dict[Any, Any], key: Any
) -> None:
    try:
        found[key] = _fitting(shape, value, where, problems)
    except TypeError as error:
        problems.append(str(error))


def _of(wanted: type, data: Any, where: str) -> Any:
    if not isinstance(data, wanted):
        raise TypeError(f"{where}: expected {wanted.__name__}, found {type(data).__name__}")
    return data


def _timeline(timeline: Timeline, problems: list[str]) -> Timeline:
    """Return a timeline whose requests, times and paths name what it has."""
    receives = [one for one in timeline.receives if 0 <= one.transfer < len(timeline.transfers)]
    if len(receives) < len(timeline.receives):
        count = len(timeline.receives) - len(receives)
        problems.append(f"timeline.receives: {count} of a transfer that is not there")
    tasks = {one.task for one in timeline.lanes}
    tasks |= {task for one in timeline.transfers for task in (one.sender, one.receiver)}
    steps = []
    for number, step in enumerate(timeline.steps):
        strangers = {one.task for one in step.path} | {one.peer for one in step.path if one.peer}
        if strangers <= tasks:
            steps.append(step)
        else:
            problems.append(f"timeline.steps[{number}].path: of a task that is not there")
            steps.append(dataclasses.replace(step, path=()))
    return dataclasses.replace(
        timeline,
        lanes=tuple(_lane(one, problems) for one in timeline.lanes),
        receives=tuple(receives),
        steps=tuple(steps),
    )


def _lane(lane: Lane, problems: list[str]) -> Lane:
    busy: Sequence[tuple[float, ...]] = [one for one in lane.busy if len(one) == 2]
    if len(busy) < len(lane.busy):
        problems.append(f"timeline.lanes: {len(lane.busy) - len(busy)} times without begin and end")
    return dataclasses.replace(lane, busy=tuple(busy))
