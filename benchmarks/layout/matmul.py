# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bytes and seconds of a layer in one, two and three dimensions, on hosts with one network card.

    python benchmarks/layout/run.py --parts matmul --json matmul.json

Nothing runs: all numbers follow from the cost model. The layer is one of many alike, Y = X W with
square weights, in training: X, Y and W have V_x, V_y and V_w bytes. What its layouts move is what
OneFlow publishes of its signatures ("OneFlow: Redesign the Distributed Deep Learning Framework from
Scratch", Yuan et al., 2021, table 2, and a product of two signatures for two axes). The seconds are
those of rings that share the network cards (`tf_fuse.layout.Hosts`).

The last rows are of one product in SUMMA's phases (van de Geijn and Watts, "SUMMA: Scalable
Universal Matrix Multiplication Algorithm", 1997): each phase broadcasts one panel of X along the
rows of devices and one of W along the columns, and adds their product. Plans do not run in phases:
they gather X and W whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.progress import Progress
from rich.table import Table

from tf_fuse.layout import Hosts, LayoutError, Link, Mesh, TensorLayout, from_sbp, plan_relayout
from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.relayout import link_rates
from tf_fuse.layout.strategies.strategy import Strategy, strategies
from tf_fuse.layout.types.operation import Operation, Tensor

ITEM_BYTES = 4
# Inside a host 100 GB/s, and a network card of 100 Gbit/s.
INSIDE, CARD = Link(5e-6, 1e-11), Link(2e-5, 8e-11)
SECONDS_PER_FLOP = 1e-14
HOSTS, DEVICES, WIDTH = 4, 4, 4096
# V_y / V_w.
RATIOS = (0.25, 1, 4, 16, 64)
PANELS = (4, 16, 64, 256)


class Way(NamedTuple):
    """How a layer lies.

    Attributes:
      axes: of the mesh; "p" is all devices, "h" hosts, "d" the devices of one, and "d1" and "d2"
        two axes of these.
      words: the strategy's choices, one for each axis.
      next_words: those of every other layer, which takes what the others make.
      weights: how the weights lie between steps; as the product reads them if "".
      volume: bytes that all devices receive, of sizes of axes and V_x, V_w and V_y.
    """

    axes: tuple[str, ...]
    words: tuple[str, ...]
    next_words: tuple[str, ...]
    weights: str
    volume: Callable[[Mapping[str, int], float, float, float], float]


WAYS: Mapping[str, Way] = {
    "data: 2 (p - 1) V_w": Way(
        ("p",), ("split m",), ("split m",), "", lambda n, x, w, y: 2 * (n["p"] - 1) * w
    ),
    "data, inside and between: 2 (p - 1) V_w": Way(
        ("h", "d"), ("split m", "split m"), ("split m", "split m"), "",
        lambda n, x, w, y: 2 * (n["h"] * n["d"] - 1) * w,
    ),
    "model, output: 2 (p - 1) V_y": Way(
        ("p",), ("split n",), ("split n",), "", lambda n, x, w, y: 2 * (n["p"] - 1) * y
    ),
    "model, input: 2 (p - 1) V_y": Way(
        ("p",), ("split k",), ("split k",), "", lambda n, x, w, y: 2 * (n["p"] - 1) * y
    ),
    "2-D, output: 2 (d - 1) V_y + 2 (h - 1) V_w": Way(
        ("h", "d"), ("split m", "split n"), ("split m", "split n"), "",
        lambda n, x, w, y: 2 * (n["d"] - 1) * y + 2 * (n["h"] - 1) * w,
    ),
    "2-D, input: 2 (d - 1) V_y + 2 (h - 1) V_w": Way(
        ("h", "d"), ("split m", "split k"), ("split m", "split k"), "",
        lambda n, x, w, y: 2 * (n["d"] - 1) * y + 2 * (n["h"] - 1) * w,
    ),
    "SUMMA: 2 (d - 1) V_x + 2 (h - 1) V_w": Way(
        ("h", "d"), ("split m", "split n"), ("split m", "split n"), "(S(0), S(1))",
        lambda n, x, w, y: 2 * (n["d"] - 1) * x + 2 * (n["h"] - 1) * w,
    ),
    "3-D: 2 (d1 - 1) V_y + 2 (h - 1) V_w + 2 (d2 - 1) V_x": Way(
        ("h", "d1", "d2"), ("split m", "split k", "split n"), ("split m", "split n", "split k"), "",
        lambda n, x, w, y: 2 * (n["d1"] - 1) * y + 2 * (n["h"] - 1) * w + 2 * (n["d2"] - 1) * x,
    ),
}  # fmt: skip


def sizes_of(way: Way, hosts: int, devices: int) -> dict[str, int]:
    """Sizes of a way's axes; the devices of a host are two axes as equal as can be."""
    first = max(one for one in range(1, math.isqrt(devices) + 1) if devices % one == 0)
    all_ = {"p": hosts * devices, "h": hosts, "d": devices, "d1": first, "d2": devices // first}
    return {axis: all_[axis] for axis in way.axes}


class LayerCost(NamedTuple):
    """What a layer costs in a step: received bytes of all devices, and seconds."""

    received_bytes: int
    seconds: float


def layer_cost(way: Way, rows: int, width: int, devices: int, links: Hosts) -> LayerCost:
    """Relayouts of a layer in a row of them, forward and backward, on average.

    Args:
      way: how it lies.
      rows: of X.
      width: of X, W and Y.
      devices: their number.
      links: where they are.
    """
    mesh = Mesh(sizes_of(way, devices // links.devices_per_host, links.devices_per_host))
    x, w = Tensor("x", (rows, width)), Tensor("w", (width, width), parameter=True)
    layer = Operation("y", "MatMul", [x, w], [Tensor("y", (rows, width))])
    both = [
        next(one for one in strategies(layer, mesh) if str(one) == ", ".join(words))
        for words in (way.words, way.next_words)
    ]
    plans = [
        plan_relayout(before, after, ITEM_BYTES, links)
        for one, reader in (both, reversed(both))
        for before, after in _relayouts(one, reader, way.weights)
    ]
    return LayerCost(
        sum(one.received_bytes for one in plans) // 2, math.fsum(one.seconds for one in plans) / 2
    )


def _relayouts(
    one: Strategy, reader: Strategy, weights: str
) -> list[tuple[TensorLayout, TensorLayout]]:
    """From, to: the output to the next layer and its gradient back; the weights and theirs."""
    read, gradient = one.inputs[1], one.input_gradients[1]
    back, needed = reader.input_gradients[0], one.output_gradients[0]
    assert gradient and back and needed
    kept = from_sbp(read.mesh, read.shape, weights) if weights else read
    return [(one.outputs[0], reader.inputs[0]), (back, needed), (kept, read), (gradient, kept)]


def crossing(first: Way, second: Way, hosts: int, links: Hosts) -> float:
    """V_y / V_w above which the first way is faster than the second, without messages' time.

    Seconds of the second one must grow faster with V_y.
    """
    free = Hosts(
        links.devices_per_host,
        Link(0.0, links.inside.seconds_per_byte),
        Link(0.0, links.between.seconds_per_byte),
    )
    devices = hosts * links.devices_per_host
    width = devices * devices
    # Seconds are linear in the rows.
    rows = (width, 2 * width)
    one, other = (
        [layer_cost(way, count, width, devices, free).seconds for count in rows]
        for way in (first, second)
    )
    per_ratio = (other[1] - other[0]) - (one[1] - one[0])
    return 1 + (one[0] - other[0]) / per_ratio


class Summa(NamedTuple):
    """A product in phases.

    Attributes:
      seconds: one phase after the other.
      overlapped_seconds: where the broadcasts of a phase run during the product of the one before.
      received_bytes: by all devices.
      panel_bytes: that a device holds beside its blocks; twice that if it overlaps.
    """

    seconds: float
    overlapped_seconds: float
    received_bytes: int
    panel_bytes: int


def summa(sizes: tuple[int, int, int], mesh: Mesh, panels: int, rates: Rates) -> Summa:
    """Seconds of Y = X W in phases; X, W and Y lie in blocks, as (S(0), S(1)).

    A panel goes from device to device along its ring. The next panel follows at once, so only the
    first one waits for all hops.

    Args:
      sizes: rows of X, columns of X, columns of W.
      mesh: rows and columns of devices.
      panels: number of phases.
      rates: of the devices.

    Raises:
      LayoutError: a panel would not lie in one block of X and of W.
    """
    (m, k, n), (p1, p2) = sizes, mesh.shape
    if panels % math.lcm(p1, p2) or k % panels or m % p1 or n % p2:
        raise LayoutError(
            f"{panels} panels of {m} x {k} and {k} x {n} on {mesh}: the number of panels must "
            f"divide {k}, and be a multiple of {math.lcm(p1, p2)}; blocks must be even"
        )
    width = k // panels
    links = link_rates.of_mesh(mesh, rates.links)
    panel_bytes = (ITEM_BYTES * m // p1 * width, ITEM_BYTES * width * n // p2)
    hops = [
        links.of([axis]).seconds(count, 1) if mesh.shape[axis] > 1 else 0.0
        for axis, count in zip((1, 0), panel_bytes, strict=True)
    ]
    fill = hops[0] * max(0, p2 - 2) + hops[1] * max(0, p1 - 2)
    touched = sum(panel_bytes) + 2 * ITEM_BYTES * (m // p1) * (n // p2)
    product = rates.compute(2 * (m // p1) * (n // p2) * width, touched)
    hop = sum(hops)
    return Summa(
        fill + panels * (hop + product),
        fill + hop + (panels - 1) * max(hop, product) + product,
        panels * ((p2 - 1) * p1 * panel_bytes[0] + (p1 - 1) * p2 * panel_bytes[1]),
        sum(panel_bytes),
    )


def gathered(sizes: tuple[int, int, int], mesh: Mesh, rates: Rates) -> Summa:
    """Return the same product as plans run it: gather X and W whole, and multiply."""
    (m, k, n), (p1, p2) = sizes, mesh.shape
    blocks, read = "(S(0), S(1))", ("(S(0), B)", "(B, S(1))")
    plans = [
        plan_relayout(from_sbp(mesh, shape, blocks), from_sbp(mesh, shape, to), ITEM_BYTES,
                      rates.links)
        for shape, to in zip(((m, k), (k, n)), read, strict=True)
    ]  # fmt: skip
    panel_bytes = ITEM_BYTES * k * (m // p1 + n // p2)
    touched = panel_bytes + ITEM_BYTES * (m // p1) * (n // p2)
    product = rates.compute(2 * (m // p1) * (n // p2) * k, touched)
    seconds = math.fsum(one.seconds for one in plans) + product
    return Summa(seconds, seconds, sum(one.received_bytes for one in plans), panel_bytes)


def measure(progress: Progress) -> list[dict[str, Any]]:
    """One row per way, and one per number of SUMMA's phases, for `--json`.

    Args:
      progress: gets a task for the ways.
    """
    links = Hosts(DEVICES, INSIDE, CARD)
    devices = HOSTS * DEVICES
    task = progress.add_task("matrix products", total=len(WAYS))
    found = []
    for name, way in WAYS.items():
        costs = [layer_cost(way, round(WIDTH * ratio), WIDTH, devices, links) for ratio in RATIOS]
        found.append({
            "way": name,
            "mesh": list(sizes_of(way, HOSTS, DEVICES).values()),
            "devices_per_host": DEVICES,
            "y_over_w": list(RATIOS),
            "received_bytes": [one.received_bytes for one in costs],
            "ms": [one.seconds * 1e3 for one in costs],
        })  # fmt: skip
        if way.words[-1] == way.words[0] == "split m":
            found[-1]["two_dimensions_below"] = crossing(way, _two_dimensions(), HOSTS, links)
        progress.advance(task)
    return [*found, *map(_product_row, (None, *PANELS))]


def _two_dimensions() -> Way:
    return next(way for way in WAYS.values() if way.words == ("split m", "split n"))


def _product_row(panels: int | None) -> dict[str, Any]:
    mesh = Mesh({"h": HOSTS, "d": DEVICES})
    rates = Rates(mesh, Hosts(DEVICES, INSIDE, CARD), SECONDS_PER_FLOP)
    sizes = [(round(WIDTH * ratio), WIDTH, WIDTH) for ratio in RATIOS]
    found = [
        summa(one, mesh, panels, rates) if panels else gathered(one, mesh, rates) for one in sizes
    ]
    return {
        "way": f"one product in {panels} phases" if panels else "one product, gathered",
        "mesh": list(mesh.shape),
        "devices_per_host": DEVICES,
        "y_over_w": list(RATIOS),
        "received_bytes": [one.received_bytes for one in found],
        "ms": [one.seconds * 1e3 for one in found],
        "overlapped_ms": [one.overlapped_seconds * 1e3 for one in found],
        "panel_bytes": [one.panel_bytes for one in found],
    }


def render(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows as a table, by V_y / V_w; the fastest way of each column is marked."""
    table = Table(
        title=f"ms per layer of width {WIDTH} on {HOSTS} hosts of {DEVICES} devices, by V_y / V_w\n"
        "(of phases: one product; if communication and products overlap)"
    )
    limits = [row["two_dimensions_below"] for row in rows if "two_dimensions_below" in row]
    table.caption = "but for messages, 2-D is faster than the rows of data below " + " and ".join(
        f"{one:g}" for one in limits
    )
    table.add_column("")
    for ratio in RATIOS:
        table.add_column(f"{ratio:g}", justify="right")
    layers = [row for row in rows if "overlapped_ms" not in row]
    least = [min(column) for column in zip(*(row["ms"] for row in layers), strict=True)]
    for row in rows:
        overlapped = row.get("overlapped_ms")
        if overlapped:
            cells = [
                f"{one:.1f} ({both:.1f})" for one, both in zip(row["ms"], overlapped, strict=True)
            ]
        else:
            cells = [
                f"{one:.1f}{' *' if one == best else ''}"
                for one, best in zip(row["ms"], least, strict=True)
            ]
        table.add_row(row["way"], *cells)
    return table
