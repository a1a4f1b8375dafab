# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Links that follow from where devices are: rings and all-to-alls that share network cards."""

from __future__ import annotations

import itertools
import math

import pytest

from benchmarks.layout import brute_force
from tf_fuse.layout import (
    Hosts,
    LayoutError,
    Link,
    Mesh,
    StepSet,
    from_sbp,
    plan_relayout,
)
from tf_fuse.layout.relayout import link_rates
from tf_fuse.layout.relayout.pairwise_seconds import relayout_seconds
from tf_fuse.layout.relayout.steps import ALL_REDUCE, ALL_TO_ALL

# Without operations, which need no link.
INSIDE, CARD = Link(3.0, 2.0), Link(7.0, 16.0)
SHAPES = [(8,), (2, 4), (4, 2), (2, 2, 2), (12,), (3, 4), (2, 6), (4, 3), (2, 3, 2)]
LINE = Mesh({"devices": 16})
AMOUNT = 8 * 3 * 5 * 7 * 11


def simulated(mesh, hosts, axes, received, messages, exchange) -> float:
    """Seconds of groups in which each device receives so many bytes, message by message."""

    def host(device) -> int:
        return device // hosts.devices_per_host

    card = [0.0] * mesh.size
    bytes_inside, latency = 0.0, 0.0
    for group in mesh.groups(axes):
        ring = sorted(group)
        for i, receiver in enumerate(ring):
            senders = [one for one in ring if one != receiver] if exchange else [ring[i - 1]]
            near = [one for one in senders if host(one) == host(receiver)]
            far = len(senders) - len(near)
            each = received / len(senders)
            card[host(receiver)] += far * each
            bytes_inside = max(bytes_inside, len(near) * each)
            waits = [INSIDE.seconds_per_message] * len(near) + [CARD.seconds_per_message] * far
            latency = max(latency, sum(waits) * messages / len(senders))
    return latency + max(bytes_inside * INSIDE.seconds_per_byte, max(card) * CARD.seconds_per_byte)


@pytest.mark.parametrize("devices_per_host", [1, 2, 3, 4, 5, 6, 8, 12, 20])
@pytest.mark.parametrize("exchange", [False, True])
def test_seconds_are_those_of_all_messages(devices_per_host, exchange):
    hosts = Hosts(devices_per_host, INSIDE, CARD)
    for shape in SHAPES:
        mesh = Mesh(list(zip("xyz", shape, strict=False)))
        links = link_rates.of_mesh(mesh, hosts)
        for count in range(1, len(shape) + 1):
            for axes in itertools.combinations(mesh.axes, count):
                messages = 2 * (math.prod(map(mesh.size_of, axes)) - 1)
                found = links.of(list(map(mesh.index, axes)), exchange)
                assert found.seconds(AMOUNT, messages) == pytest.approx(
                    simulated(mesh, hosts, axes, AMOUNT, messages, exchange), rel=1e-12
                ), (shape, axes)


def test_rings_through_one_card_have_parts_of_it():
    """Rows are hosts: four rings share a card along them, and one ring over both has it alone."""
    links = link_rates.of_mesh(Mesh({"rows": 2, "cols": 4}), Hosts(4, INSIDE, CARD))
    assert links.of([1]) == INSIDE
    assert links.of([0]) == Link(7.0, 4 * 16.0)
    assert links.of([0, 1]) == links.of([1, 0]) == Link(7.0, 16.0)
    # Each of four devices has 4 of its 7 blocks from the other host.
    assert links.of([0, 1], exchange=True) == Link((3 * 3.0 + 4 * 7.0) / 7, 16.0 * 4 * 4 / 7)
    # Columns are hosts: rows are rings in no order that spares the card.
    turned = link_rates.of_mesh(Mesh({"rows": 4, "cols": 2}), Hosts(4, INSIDE, CARD))
    assert turned.of([0]) == Link(7.0, 2 * 16.0)
    assert turned.of([1]) == INSIDE
    one_host = link_rates.of_mesh(Mesh({"rows": 2, "cols": 4}), Hosts(8, INSIDE, CARD))
    assert {one_host.of(axes) for axes in ([0], [1], [0, 1])} == {INSIDE}


def test_the_work_of_devices_is_that_of_the_slowest_link():
    inside, card = Link(1.0, 1.0, 5.0, 0.25), Link(2.0, 2.0, 3.0, 0.5)
    links = link_rates.of_mesh(Mesh({"x": 2, "y": 2}), Hosts(2, inside, card))
    assert links.of([0, 1]) == Link(2.0, 2.0, 5.0, 0.5)
    assert links.of([0]) == Link(2.0, 4.0, 3.0, 0.5)
    assert links.of([1]) == inside


@pytest.mark.parametrize(
    ("sizes", "shape", "devices_per_host"),
    [((2, 4), (8, 8), 4), ((4, 2), (8, 8), 2), ((4, 2), (8, 8), 4), ((2, 2, 2), (8,), 4)],
)
def test_relayouts_are_the_cheapest_of_all_sequences(sizes, shape, devices_per_host):
    mesh = Mesh(list(zip("xyz", sizes, strict=False)))
    hosts = Hosts(devices_per_host, INSIDE, CARD)
    scale = 1 << 20

    def price(exchange):
        def of(axes, elements, messages) -> int:
            if not messages:
                return 0
            received = 4 * elements / mesh.size
            return round(scale * simulated(mesh, hosts, axes, received, messages, exchange))

        return of

    nodes = brute_force.layouts(mesh, shape)
    # (Permutations are priced as all-to-alls, which is above what their messages take.)
    never = brute_force.distances(
        nodes, True, price(False), exchange_price=price(True), permute_price=lambda *_: 1 << 40
    )
    best = never / scale
    joint = frozenset({ALL_TO_ALL, ALL_REDUCE})
    contiguous = StepSet(joint, strided=False)
    found = relayout_seconds(nodes, nodes, 4, hosts, contiguous)
    assert found == pytest.approx(best, rel=1e-6)
    for steps in (contiguous, StepSet(joint)):
        found = relayout_seconds(nodes, nodes, 4, hosts, steps)
        plans = [
            [plan_relayout(a, b, 4, hosts, steps).seconds for b in nodes[:20]] for a in nodes[::7]
        ]
        assert plans == found[::7, :20].tolist()


def test_the_cheapest_all_reduce_goes_inside_first():
    """What a host's devices have in common crosses its card once, as in a ring over all."""
    mesh = Mesh({"hosts": 4, "devices": 4})
    source, target = (from_sbp(mesh, (64, 64), [one] * 2) for one in "PB")
    hosts = Hosts(4, Link(0.0, 1e-11), Link(0.0, 1e-9))
    found = plan_relayout(source, target, 4, hosts)
    assert [(step.kind, step.axes) for step in found.steps] == [
        ("reduce_scatter", ("devices",)),
        ("all_reduce", ("hosts",)),
        ("all_gather", ("devices",)),
    ]
    size = 4 * 64 * 64
    near, far = 3 / 4 * size * 1e-11, 3 / 4 * size / 4 * 4e-9
    assert found.seconds == pytest.approx(2 * near + 2 * far, rel=1e-12)
    flat = plan_relayout(from_sbp(LINE, (64, 64), "P"), from_sbp(LINE, (64, 64), "B"), 4, hosts)
    assert flat.seconds == pytest.approx(2 * 15 / 16 * size * 1e-9, rel=1e-12)


def test_the_hosts_of_two_meshes_are_the_same():
    first, second = Mesh({"x": 8}), Mesh({"a": 2, "b": 4})
    hosts = Hosts(4, INSIDE, CARD)
    found = plan_relayout(
        from_sbp(first, (8, 8), ["P"]), from_sbp(second, (8, 8), ["P", "B"]), 4, hosts
    )
    assert [(step.kind, step.axes) for step in found.steps] == [("all_reduce", ("x.1",))]
    assert found.seconds == INSIDE.seconds(2 * 3 / 4 * 256, 6)


def test_what_is_wrong_with_hosts():
    with pytest.raises(LayoutError) as caught:
        Hosts(0, INSIDE, 3)
    assert caught.value.problems == (
        "between is a Link, got 3",
        "devices_per_host: a size is a whole number, 1 or more, got 0",
    )
    with pytest.raises(LayoutError, match="inside is a Link, got None"):
        Hosts(2, None, CARD)
