# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `run.py` makes of its measurements: rows of numbers, a table and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from benchmarks.common import output
from benchmarks.common.rank_group import Measurement
from examples.compare import spread

_PATHS = ("shm", "tcp", "grpc")
_COPIED = "collective_copied_bytes"
_OURS = "tf_fuse"
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes of a size such as 4KB, 16MiB or 1000; a KB has 1024 bytes.

    Raises:
      ValueError: it is not such a size, or not one of whole float32 elements.
    """
    digits = text.strip().rstrip("BKMGibkmg")
    unit = text.strip()[len(digits) :].upper().replace("I", "") or "B"
    if not digits.isdecimal() or unit not in _UNITS:
        raise ValueError(f"no size: {text!r}; expected a number and one of {', '.join(_UNITS)}")
    size = int(digits) * _UNITS[unit]
    if size < 4 or size % 4:
        raise ValueError(f"{text!r} is {size} bytes; expected a positive multiple of 4 (float32)")
    return size


def size_name(size: int) -> str:
    """Return a number of bytes for people, exact: 4KB, 1000B."""
    for unit, factor in sorted(_UNITS.items(), key=lambda item: -item[1]):
        if size % factor == 0 and size >= factor:
            return f"{size // factor}{unit}"
    return f"{size}B"


def row(
    op: str, ranks: int, size: int, rounds: Mapping[str, Sequence[Measurement]]
) -> dict[str, Any]:
    """Return the numbers of one op, for so many ranks and bytes.

    Args:
      op: the op.
      ranks: how many.
      size: bytes of the whole tensor.
      rounds: variant to what it took in each round; the same rounds for all.

    Returns:
      op, ranks, bytes, rounds, calls (per round); and by variant ms (per call, {median, min, max}
      of the rounds), wire_bytes and cpu_ms (per call, medians over the rounds, all ranks
      together), and of ours only path_bytes (per call, by data path) and copies_per_byte; ratio, of
      times by round, with the keys "stock/gloo", and "stock/…" and "gloo/…" for each variant of
      ours.
    """
    first = next(iter(rounds.values()))
    ms = {name: _ms(of) for name, of in rounds.items()}
    counted = {name: _counted(of) for name, of in rounds.items()}
    paths = {name: _path_bytes(counters) for name, counters in counted.items()}
    return {
        "op": op,
        "ranks": ranks,
        "bytes": size,
        "rounds": len(first),
        "calls": first[0].calls,
        "ms": {name: spread(values) for name, values in ms.items()},
        "wire_bytes": {
            name: statistics.median(m.wire_bytes / m.calls for m in of)
            for name, of in rounds.items()
        },
        "cpu_ms": {
            name: statistics.median(1e3 * m.cpu_s / m.calls for m in of)
            for name, of in rounds.items()
        },
        "path_bytes": {name: of for name, of in paths.items() if of},
        "copies_per_byte": {
            name: counted[name][_COPIED] / moved
            for name, of in paths.items()
            if (moved := sum(of.values(), 0.0)) and _COPIED in counted[name]
        },
        "ratio": {
            f"{other}/{name}": _ratio(ms[other], ms[name])
            for name in ms
            for other in ("stock", "gloo")
            if other in ms and (name.startswith(_OURS) or (other, name) == ("stock", "gloo"))
        },
    }


def over_all_reduce(rounds: Mapping[str, Mapping[str, Sequence[Measurement]]], op: str) -> Any:
    """Return the times of an op over those of all_reduce in the same rounds.

    Args:
      rounds: op to variant to what it took in each round.
      op: another op than all_reduce.

    Returns:
      Variant to {median, min, max}; empty without all_reduce.
    """
    reduces = rounds.get("all_reduce", {})
    return {
        name: _ratio(_ms(of), _ms(reduces[name]))
        for name, of in rounds[op].items()
        if name in reduces
    }


def _ms(rounds: Sequence[Measurement]) -> list[float]:
    return [1e3 * m.seconds / m.calls for m in rounds]


def _ratio(numerator: Sequence[float], denominator: Sequence[float]) -> dict[str, float]:
    return spread(n / d for n, d in zip(numerator, denominator, strict=True))


def _counted(rounds: Sequence[Measurement]) -> dict[str, float]:
    """Per call, the mean over all rounds: counters grow in steps."""
    calls = sum(m.calls for m in rounds)
    names = sorted({name for m in rounds for name in m.counters})
    return {name: sum(m.counters.get(name, 0) for m in rounds) / calls for name in names}


def _path_bytes(counters: Mapping[str, float]) -> dict[str, float]:
    return {
        path: counters[f"collective_bytes_{path}"]
        for path in _PATHS
        if f"collective_bytes_{path}" in counters
    }


def render(result: Mapping[str, Any]) -> Table:
    """Return the rows as a table, a line per variant."""
    link = result.get("link")
    table = Table(title=f"Collectives {_where(link)}, {_rounds(result['rows'])} rounds")
    # Between hosts the paths are shown in place of the copies: there is no room for both.
    copies = not link and any(entry["copies_per_byte"] for entry in result["rows"])
    for column in ("op", "ranks", "size"):
        table.add_column(column, justify="right" if column != "op" else "left")
    table.add_column("variant", no_wrap=True)
    for column in ("ms per call\n(min to max)", "stock's time over it\n(by round)",
                   "wire MB\nper call", "CPU ms\nper call",
                   *(["copies\nper byte"] if copies else []),
                   *(["data\npath"] if link else [])):  # fmt: skip
        table.add_column(column, justify="right")
    for entry in result["rows"]:
        for at, name in enumerate(entry["ms"]):
            head = [entry["op"], str(entry["ranks"]), size_name(entry["bytes"])]
            table.add_row(
                *(head if at == 0 else [""] * 3),
                escape(name),
                *_cells(entry, name, copies),
                *([_paths_taken(entry, name)] if link else []),
                end_section=at == len(entry["ms"]) - 1,
            )
    return table


def _cells(entry: Mapping[str, Any], name: str, copies: bool) -> list[str]:
    ratio = entry["ratio"].get(f"stock/{name}")
    cells = [
        output.span(entry["ms"][name], ".3f" if entry["bytes"] < 1 << 20 else ".1f"),
        output.span(ratio, ".2f") if ratio else "",
        f"{entry['wire_bytes'][name] / 1e6:.3f}",
        f"{entry['cpu_ms'][name]:.2f}",
    ]
    per_byte = entry["copies_per_byte"].get(name)
    return cells + ([f"{per_byte:.2f}" if per_byte is not None else ""] if copies else [])


def _rounds(rows: Sequence[Mapping[str, Any]]) -> str:
    return " or ".join(str(count) for count in sorted({entry["rounds"] for entry in rows}))


def _where(link: Mapping[str, Any] | None) -> str:
    if not link:
        return "on loopback"
    return f"between two hosts (link by {link['emulator']}: {link['name']})"


def _paths_taken(entry: Mapping[str, Any], name: str) -> str:
    """Return the data paths over which bytes went, by our counters."""
    return ", ".join(path for path, count in entry["path_bytes"].get(name, {}).items() if count)


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Draw the time per call over the size, a panel per op and number of ranks.

    Args:
      result: what `--json` writes.
      path: the picture; its ending chooses the format.
    """
    from matplotlib.figure import Figure

    ops = list(dict.fromkeys(entry["op"] for entry in result["rows"]))
    ranks = list(dict.fromkeys(entry["ranks"] for entry in result["rows"]))
    figure = Figure(figsize=(1 + 3.5 * len(ranks), 0.5 + 3 * len(ops)), layout="constrained")
    panels = figure.subplots(len(ops), len(ranks), squeeze=False)
    for at_op, op in enumerate(ops):
        for at_ranks, count in enumerate(ranks):
            rows = [e for e in result["rows"] if (e["op"], e["ranks"]) == (op, count)]
            _panel(panels[at_op][at_ranks], rows)
            panels[at_op][at_ranks].set_title(f"{op}, {count} ranks", fontsize=10)
    panels[0][0].legend()
    if link := result.get("link"):
        figure.suptitle(f"Collectives {_where(link)}", fontsize=10)
    figure.savefig(path)


def _panel(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    for name in dict.fromkeys(name for entry in rows for name in entry["ms"]):
        entries = [entry for entry in rows if name in entry["ms"]]
        times = [entry["ms"][name] for entry in entries]
        medians = [time["median"] for time in times]
        errors = [
            [time["median"] - time["min"] for time in times],
            [time["max"] - time["median"] for time in times],
        ]
        sizes = [entry["bytes"] for entry in entries]
        axes.errorbar(sizes, medians, yerr=errors, marker="o", capsize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = [entry["bytes"] for entry in rows]
    axes.set_xticks(sizes, [size_name(size) for size in sizes])
    axes.set_ylabel("ms per call")
