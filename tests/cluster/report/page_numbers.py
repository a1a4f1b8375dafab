# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Numbers of a report's JSON as its page writes and sums them."""

from decimal import ROUND_HALF_UP, Decimal


def _rounded(value, digits):
    """Return a number with so many digits after the point, as a browser rounds it."""
    exact = Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    text = f"{exact:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def formatted(value, form):
    """Return a number as the page writes it."""
    if form in ("seconds", "us"):
        value = value / 1e6 if form == "us" else value
        by, unit = (
            (1, "s")
            if value == 0 or abs(value) >= 1
            else (1e3, "ms")
            if abs(value) >= 1e-3
            else (1e6, "µs")
        )
        value *= by
        digits = 2 - Decimal(repr(value)).adjusted() if value else 0
        return f"{_rounded(value, digits)} {unit}"
    if form == "bytes":
        units = ["B", "KiB", "MiB", "GiB"]
        unit = 0
        while value >= 1024 and unit < 3:
            value, unit = value / 1024, unit + 1
        return f"{_rounded(value, 1 if unit else 0)} {units[unit]}"
    if form == "percent":
        return f"{_rounded(100 * value, 0)} %"
    if form == "times":
        return f"{_rounded(value, 2)}\u00d7"
    return _rounded(value, 2)


def sums_of(data, step):
    """What a page sums of the JSON: times of a path and of waits, and how many times as fast.

    Args:
      data: the JSON.
      step: number of the recorded step whose path is shown.
    """
    wanted = {}
    for number, gain in enumerate(data["gains"]):
        base = gain["ways"][0]["steps_per_s"]
        for row, way in enumerate(gain["ways"]):
            if base and way["steps_per_s"]:
                wanted[f"speed {number} {row}"] = way["steps_per_s"] / base
    timeline = data["timeline"]
    if timeline is None:
        return wanted
    waits = {}
    for one in timeline["receives"]:
        late = 0 if one["ready_us"] is None else one["ready_us"] - one["start_us"]
        waits.setdefault(one["transfer"], []).append((one["end_us"] - one["start_us"], late))
    for transfer, of in waits.items():
        wanted[f"receives of transfer {transfer}"] = len(of)
        wanted[f"mean wait of transfer {transfer}"] = sum(wait for wait, _ in of) / len(of)
        wanted[f"mean late of transfer {transfer}"] = sum(late for _, late in of) / len(of)
    step = timeline["steps"][step]
    whole = step["end_us"] - step["start_us"]
    for row, part in enumerate(step["path"]):
        took = part["end_us"] - part["start_us"]
        wanted[f"path from {row}"] = part["start_us"] - step["start_us"]
        wanted[f"path takes {row}"] = took
        wanted[f"path share {row}"] = took / whole
    return wanted


def rows_of(function):
    """What the picture of a function writes at each arrow: its tensors, and their known bytes.

    What was left alone is one arrow for the same devices and reason.
    """
    rows = {f"g{number}": group["tensors"] for number, group in enumerate(function["groups"])}
    alone = {}
    for left in function["left"]:
        key = left["sender"], left["receiver"], left["reason"]
        alone.setdefault(key, []).append(left["tensor"])
    rows |= {f"l{number}": tensors for number, tensors in enumerate(alone.values())}
    wanted = {}
    for row, tensors in rows.items():
        known = [one["bytes"] for one in tensors if one["bytes"] is not None]
        wanted[f"tensors of row {row}"] = len(tensors)
        if known:
            wanted[f"bytes of row {row}"] = sum(known)
            if len(known) < len(tensors):
                wanted[f"unknown of row {row}"] = len(tensors) - len(known)
    return wanted
