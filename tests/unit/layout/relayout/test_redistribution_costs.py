# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Costs of relayouts against brute force, other systems and a paper."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.layout import baselines as layout_baselines
from benchmarks.layout import brute_force as layout_brute_force
from tests.slow_cases import slow
from tests.unit.layout.relayout.relayout_checks import ANY_PARTIAL, CONTIGUOUS, XY
from tf_fuse.layout import (
    MANY_AXES_STEPS,
    ONE_AXIS,
    LayoutError,
    Link,
    Mesh,
    from_sbp,
    plan_relayout,
)


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ((2,), (4, 2)),
        ((3,), (3, 1)),
        ((2, 2), (4, 4)),
        ((2, 4), (8, 8)),
        slow((4, 2), (4, 8)),
        ((2, 2), (2, 3)),
        ((2, 2), (2, 2, 4)),
        slow((2, 2, 2), (8, 4)),
    ],
)
@pytest.mark.parametrize(
    "allowed", [ONE_AXIS, CONTIGUOUS, ANY_PARTIAL], ids=["one", "joint", "partial"]
)
def test_plans_are_as_cheap_as_brute_force(sizes, shape, allowed):
    """Bytes first, then messages: of all sequences of steps, between any two layouts."""
    nodes = layout_brute_force.layouts(Mesh(zip("xyz", sizes, strict=False)), shape)
    best = layout_brute_force.distances(
        nodes, joint=allowed is not ONE_AXIS, any_partial=allowed is ANY_PARTIAL
    )
    for i, j in itertools.product(range(len(nodes)), repeat=2):
        plan = plan_relayout(nodes[i], nodes[j], 1, allowed=allowed)
        price = layout_brute_force.bytes_first((), plan.received_bytes, plan.messages)
        assert price == best[i, j], plan


@pytest.mark.parametrize(
    "links",
    [
        {"x": Link(8, 1), "y": Link(0, 8)},
        {"x": Link(64, 1), "y": Link(64, 1)},
        {"x": Link(0, 0), "y": Link(1000, 1)},
        {"x": Link(1000, 0), "y": Link(0, 1)},
    ],
    ids=str,
)
@pytest.mark.parametrize("allowed", [ONE_AXIS, CONTIGUOUS], ids=["one", "joint"])
def test_plans_are_as_fast_as_brute_force(links, allowed):
    """Whole numbers of seconds, times the number of devices, so that sums are exact."""
    nodes = layout_brute_force.layouts(XY, (8, 8))

    def price(axes, elements, messages):
        alpha = max(links[axis].seconds_per_message for axis in axes)
        beta = max(links[axis].seconds_per_byte for axis in axes)
        return alpha * messages * XY.size + beta * elements

    best = layout_brute_force.distances(nodes, allowed is CONTIGUOUS, price)
    for i, j in itertools.product(range(len(nodes)), repeat=2):
        plan = plan_relayout(nodes[i], nodes[j], 1, links, allowed)
        assert plan.seconds * XY.size == best[i, j], plan


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ((2, 2), (4, 4)), ((2, 4), (8, 8)), ((2, 3), (6, 12)), ((2, 2), (3, 5)),
        slow((2, 2, 2), (8, 2)),
    ],
)  # fmt: skip
def test_no_system_is_cheaper_on_any_pair(sizes, shape):
    nodes = layout_brute_force.layouts(Mesh(zip("xyz", sizes, strict=False)), shape)
    systems = layout_baselines.dtensor_default, layout_baselines.mindspore_greedy
    compared = dict.fromkeys(systems, 0)
    for source, target in itertools.product(nodes, repeat=2):
        plan = plan_relayout(source, target)
        contiguous = plan_relayout(source, target, allowed=CONTIGUOUS)
        assert plan.received_bytes <= contiguous.received_bytes
        for system in compared:
            try:
                theirs = system(source, target)
            except LayoutError:
                continue
            compared[system] += 1
            assert plan.received_bytes <= theirs.received_bytes, (plan, theirs)
    assert min(compared.values()) > len(nodes)


def test_no_system_is_cheaper_on_any_map_on_three_axes():
    """Nor with one axis per step. Where DTensor forgets a dimension there is nothing to compare."""
    mesh = Mesh({"x": 2, "y": 2, "z": 2})
    nodes = [
        one
        for one in layout_brute_force.layouts(mesh, (8, 8, 8), partial=False)
        if all(len(axes) < 2 for axes in one.splits)
    ]
    wrong = 0
    for source, target in itertools.permutations(nodes, 2):
        ours = plan_relayout(source, target, allowed=ONE_AXIS).received_bytes
        default = layout_baselines.dtensor_default(source, target)
        wrong += not default.right
        assert not default.right or ours <= default.received_bytes
        assert ours <= layout_baselines.mindspore_greedy(source, target).received_bytes
    assert wrong == 36


def test_no_system_is_cheaper_between_meshes():
    meshes = [Mesh({"x": 8}), Mesh({"x": 2, "y": 4}), Mesh({"x": 4, "y": 2})]
    compared = 0
    for first, second in itertools.permutations(meshes, 2):
        for source in layout_brute_force.layouts(first, (8, 8), partial=False):
            for target in layout_brute_force.layouts(second, (8, 8), partial=False):
                try:
                    theirs = layout_baselines.mindspore_greedy(source, target)
                except LayoutError:
                    continue
                compared += 1
                plan = plan_relayout(source, target)
                assert plan.received_bytes <= theirs.received_bytes, (plan, theirs)
    assert compared > 100


def test_one_axis_costs_what_the_paper_says():
    """Table 2 of the OneFlow paper, of p devices and V bytes: all 16 pairs."""
    p, elements = 4, 64
    mesh = Mesh({"x": p})
    v = elements * 4
    free = dict.fromkeys(itertools.product(["S(0)", "S(1)", "B", "P"], repeat=2), 0)
    expected = free | {
        ("S(0)", "S(1)"): (p - 1) * v // p,
        ("S(1)", "S(0)"): (p - 1) * v // p,
        ("S(0)", "B"): (p - 1) * v,
        ("S(1)", "B"): (p - 1) * v,
        ("P", "S(0)"): (p - 1) * v,
        ("P", "S(1)"): (p - 1) * v,
        ("P", "B"): 2 * (p - 1) * v,
    }
    assert expected == {
        (a, b): plan_relayout(
            from_sbp(mesh, (8, 8), [a]), from_sbp(mesh, (8, 8), [b])
        ).received_bytes
        for a, b in free
    }


def test_steps_of_many_axes_lie_between():
    """No worse than one axis at a time, no better than all steps; and the values stay."""
    nodes = layout_brute_force.layouts(Mesh({"x": 2, "y": 2, "z": 2}), (8, 8), partial=False)
    for source, target in itertools.permutations(nodes, 2):
        costs = [
            plan_relayout(source, target, allowed=allowed).received_bytes
            for allowed in (CONTIGUOUS, MANY_AXES_STEPS, ONE_AXIS)
        ]
        assert costs == sorted(costs)
