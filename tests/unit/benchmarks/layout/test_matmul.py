# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A layer in one, two and three dimensions: published bytes, and seconds on hosts."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from rich.progress import Progress

from benchmarks.layout import matmul
from benchmarks.layout.matmul import WAYS, crossing, gathered, layer_cost, sizes_of, summa
from tf_fuse.layout import Hosts, LayoutError, Link, Mesh
from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.optimize import search
from tf_fuse.layout.optimize.graph_problem import problem_of
from tf_fuse.layout.types.operation import Operation, Tensor

DATA, NESTED, OUTPUT, INPUT, TWO, TWO_INPUT, SUMMA, THREE = WAYS.values()
# Hosts, and devices of each.
CLUSTERS = [(2, 2), (2, 4), (4, 2), (4, 4), (2, 8), (8, 8)]
NEAR, CARD = 2.0**-37, 2.0**-33
# (rows, width) of a layer.
LAYERS = [(512, 64), (64, 512), (256, 256)]


def on(devices_per_host, near=NEAR, card=CARD) -> Hosts:
    return Hosts(devices_per_host, Link(0.0, near), Link(0.0, card))


@pytest.mark.parametrize(
    ("name", "hosts", "devices"),
    [
        (name, *cluster)
        for name, cluster in itertools.product(WAYS, CLUSTERS)
        # Two devices of a host are not two axes.
        if min(sizes_of(WAYS[name], *cluster).values()) > 1
    ],
)
def test_bytes_are_those_that_are_published(name, hosts, devices):
    way = WAYS[name]
    for rows, width in LAYERS:
        v_y, v_w = 4 * rows * width, 4 * width * width
        found = layer_cost(way, rows, width, hosts * devices, on(devices))
        sizes = sizes_of(way, hosts, devices)
        assert found.received_bytes == way.volume(sizes, v_y, v_w, v_y)


@pytest.mark.parametrize(("hosts", "devices"), CLUSTERS)
def test_seconds_are_those_of_rings_that_share_cards(hosts, devices):
    """Of an all-reduce of V bytes over p devices each receives 2 (p - 1) / p V.

    Along hosts as many rings share a card as a host has devices, each with 1 / devices of V.
    """
    h, d = hosts, devices
    p = h * d
    d1, d2 = list(sizes_of(THREE, h, d).values())[1:]
    near, card = Fraction(NEAR), Fraction(CARD)

    def share(count) -> Fraction:
        return Fraction(count - 1, count)

    for rows, width in LAYERS:
        y, w = 4 * rows * width, 4 * width * width
        expected = {
            DATA: 2 * share(p) * w * card,
            NESTED: 2 * (share(h) * card + share(d) * near) * w,
            OUTPUT: 2 * share(p) * y * card,
            INPUT: 2 * share(p) * y * card,
            TWO: 2 * share(h) * w * card + 2 * share(d) * y / h * near,
            TWO_INPUT: 2 * share(h) * w * card + 2 * share(d) * y / h * near,
            SUMMA: 2 * share(h) * w * card + 2 * share(d) * y / h * near,
            THREE: 2 * share(h) * w * card
            + 2 * share(d1) * y / (h * d2) * near
            + 2 * share(d2) * y / (h * d1) * near,
        }
        for way, seconds in expected.items():
            if way is THREE and d1 == 1:
                continue
            found = layer_cost(way, rows, width, p, on(d)).seconds
            assert found == pytest.approx(float(seconds), rel=1e-12, abs=0), way


@pytest.mark.parametrize(("hosts", "devices"), CLUSTERS)
def test_two_dimensions_cross_one(hosts, devices):
    """Against one ring over all devices at the ratio of the links, whatever their number.

    Gradients that are reduced inside first may beat that ring: they cross at the number of hosts.
    """
    for near in (CARD, CARD / 4, CARD / 16):
        links = on(devices, near)
        assert crossing(DATA, TWO, hosts, links) == pytest.approx(CARD / near, rel=1e-9)
        nested = crossing(NESTED, TWO, hosts, links)
        assert nested == pytest.approx(min(hosts, CARD / near), rel=1e-9)


@pytest.mark.parametrize("root", [2, 4])
def test_fewer_bytes_are_not_less_time_where_links_are_alike(root):
    """4 (sqrt(p) - 1) V < 2 (p - 1) V, and yet the same seconds through one card per host."""
    width, p = 256, root * root
    v = 4 * width * width
    one, two = (layer_cost(way, width, width, p, on(root, CARD)) for way in (DATA, TWO))
    assert two.received_bytes == 4 * (root - 1) * v < one.received_bytes == 2 * (p - 1) * v
    assert two.seconds == pytest.approx(one.seconds, rel=1e-12, abs=0)


@pytest.mark.parametrize("hosts", [2, 4])
def test_a_search_changes_from_two_dimensions_to_one(hosts):
    """Of three layers the one in the middle changes at the number of hosts, as `crossing` says."""
    mesh, width = Mesh({"h": hosts, "d": 4}), 256
    # Products are dear, so that each device has its part of all.
    rates = Rates(mesh, on(4, CARD / 16), 1e-10)
    found = []
    for rows in (width * hosts * 3 // 4, width * hosts * 3 // 2):
        # A parameter, so that the first layer's input has a gradient, too.
        tensors = [Tensor("x", (rows, width), parameter=True)]
        tensors += [Tensor(f"y{i}", (rows, width)) for i in range(3)]
        operations = [
            Operation(str(i), "MatMul", [tensors[i], weight], [tensors[i + 1]])
            for i in range(3)
            for weight in [Tensor(f"w{i}", (width, width), parameter=True)]
        ]
        plan = search(problem_of(operations, rates, training=True).problem)
        assert plan.optimal
        found.append(plan.strategies["1"])
    assert found[0] != found[1] == "split m, split m"


# SUMMA.


def phases(hop, fill, product, panels) -> tuple[float, float]:
    """When the last product ends, one event after the other: without overlap, and with it."""
    arrived = ended = alone = fill
    for _ in range(panels):
        alone += hop + product
        arrived += hop
        ended = max(arrived, ended) + product
    return alone, ended


@pytest.mark.parametrize("sizes", [(2, 4), (4, 4), (1, 4), (4, 1), (3, 2)])
@pytest.mark.parametrize("seconds_per_flop", [0.0, 1e-15, 1e-12])
def test_phases_of_summa(sizes, seconds_per_flop):
    mesh = Mesh(sizes, ("h", "d"))
    p1, p2 = sizes
    # (Of smaller ones, messages decide: a permutation has one.)
    m, k, n = 16 * 96, 16 * 48, 16 * 24
    near, card = Link(1e-6, 1e-9), Link(1e-5, 4e-9)
    rates = Rates(mesh, Hosts(p2, near, card), seconds_per_flop)
    for panels in (12, 24, 48):
        x_panel, w_panel = 4 * m // p1 * k // panels, 4 * n // p2 * k // panels
        right = near.seconds(x_panel, 1) if p2 > 1 else 0.0
        down = Link(1e-5, p2 * 4e-9).seconds(w_panel, 1) if p1 > 1 else 0.0
        fill = right * max(0, p2 - 2) + down * max(0, p1 - 2)
        product = seconds_per_flop * 2 * m * n * k / (p1 * p2 * panels)
        found = summa((m, k, n), mesh, panels, rates)
        assert (found.seconds, found.overlapped_seconds) == pytest.approx(
            phases(right + down, fill, product, panels), rel=1e-12
        )
        whole = gathered((m, k, n), mesh, rates)
        v_x, v_w = 4 * m * k, 4 * k * n
        assert found.received_bytes == (p2 - 1) * v_x + (p1 - 1) * v_w == whole.received_bytes
        assert found.panel_bytes * panels == whole.panel_bytes


def test_panels_that_are_in_two_blocks():
    mesh = Mesh({"h": 2, "d": 3})
    rates = Rates(mesh, on(3), 0.0)
    with pytest.raises(LayoutError, match="must divide 24, and be a multiple of 6"):
        summa((12, 24, 12), mesh, 4, rates)


def test_rows_of_the_benchmark():
    rows = matmul.measure(Progress(disable=True))
    assert [row["way"] for row in rows][: len(WAYS)] == list(WAYS)
    limits = [row["two_dimensions_below"] for row in rows if "two_dimensions_below" in row]
    assert limits == pytest.approx([8, 4])
    at = {row["way"]: dict(zip(row["y_over_w"], row["ms"], strict=True)) for row in rows}
    data, two = (next(name for name, way in WAYS.items() if way is one) for one in (DATA, TWO))
    assert [at[two][ratio] < at[data][ratio] for ratio in matmul.RATIOS] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert matmul.render(rows).row_count == len(rows)
