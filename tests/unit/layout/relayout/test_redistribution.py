# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Relayouts: values on simulated devices, and costs against brute force and other systems."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.layout import baselines as layout_baselines
from benchmarks.layout import brute_force as layout_brute_force
from benchmarks.layout import simulation
from tf_fuse.layout import (
    ALL_STEPS,
    MANY_AXES_STEPS,
    ONE_AXIS,
    LayoutError,
    Link,
    Mesh,
    StepSet,
    TensorLayout,
    from_sbp,
    plan_relayout,
)
from tf_fuse.layout.relayout import shortest_path

CONTIGUOUS = StepSet(strided=False)
ANY_PARTIAL = StepSet(strided=False, any_partial=True)
XY = Mesh({"x": 2, "y": 4})


def value_of(shape) -> np.ndarray:
    return np.arange(1, math.prod(shape) + 1).reshape(shape)


def check_values(source: TensorLayout, target: TensorLayout, allowed: StepSet) -> None:
    """The pieces behind the plan are those of the target, to the last bit."""
    value = value_of(source.shape)
    plan = plan_relayout(source, target, allowed=allowed)
    pieces = simulation.run(plan, simulation.scatter(value, source, seed=1))
    np.testing.assert_array_equal(simulation.assemble(pieces, target), value)
    if not target.partial:
        for piece, expected in zip(pieces, simulation.scatter(value, target), strict=True):
            np.testing.assert_array_equal(piece, expected)


@pytest.mark.parametrize(
    "allowed", [ALL_STEPS, ONE_AXIS, ANY_PARTIAL], ids=["all", "one", "partial"]
)
@pytest.mark.parametrize(
    ("sizes", "shape", "pairs"),
    [
        ((3,), (6, 9), 4**2),
        ((2, 2), (4, 4), 18**2),
        ((2, 3), (12, 6), 18**2),
        ((2, 2), (2, 3), 8**2),
    ],
)  # fmt: skip
def test_every_pair_keeps_the_values(sizes, shape, pairs, allowed):
    """In 1-D the 16 pairs of OneFlow's test; in 2-D its 256, and those in another order of axes."""
    nodes = layout_brute_force.layouts(Mesh(zip("xyz", sizes, strict=False)), shape)
    assert len(nodes) ** 2 == pairs
    for source, target in itertools.product(nodes, repeat=2):
        check_values(source, target, allowed)


@pytest.mark.parametrize("allowed", [ALL_STEPS, ONE_AXIS], ids=["all", "one"])
def test_every_map_on_three_axes_keeps_the_values(allowed):
    """All tensor maps: each axis splits at most one dimension, and each dimension one axis."""
    mesh = Mesh({"x": 2, "y": 2, "z": 2})
    nodes = [
        one
        for one in layout_brute_force.layouts(mesh, (2, 4, 2), partial=False)
        if all(len(axes) < 2 for axes in one.splits)
    ]
    assert len(nodes) == 34
    for source, target in itertools.product(nodes, repeat=2):
        check_values(source, target, allowed)


def some_layout(mesh: Mesh, rank: int):
    """A strategy for layouts of a tensor whose dimensions have 24 elements."""

    def make(letters, order):
        splits: list[list[str]] = [[] for _ in range(rank)]
        for axis in order:
            if isinstance(letters[axis], int):
                splits[letters[axis]].append(axis)
        sums = [axis for axis, letter in letters.items() if letter == "P"]
        return TensorLayout(mesh, (24,) * rank, splits, sums)

    letters = st.fixed_dictionaries(
        {axis: st.sampled_from(["B", "P", *range(rank)]) for axis in mesh.axes}
    )
    order = st.permutations(mesh.axes)
    return st.builds(make, letters, order)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from([ALL_STEPS, ONE_AXIS]))
def test_any_pair_on_three_axes_keeps_the_values(data, allowed):
    mesh = Mesh(zip("xyz", data.draw(st.permutations([2, 2, 3])), strict=True))
    rank = data.draw(st.integers(1, 2))
    one = some_layout(mesh, rank)
    check_values(data.draw(one), data.draw(one), allowed)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_meshes_of_other_sizes_are_unified(data):
    """The same devices, as other meshes: device d holds what the target's mesh says."""
    sizes = st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (2, 1, 4)])
    meshes = [
        Mesh(zip(names, data.draw(sizes), strict=False)) for names in ("xyz", "xbc")
    ]  # fmt: skip
    check_values(*(data.draw(some_layout(mesh, 2)) for mesh in meshes), ALL_STEPS)


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ((2,), (4, 2)),
        ((3,), (3, 1)),
        ((2, 2), (4, 4)),
        ((2, 4), (8, 8)),
        ((4, 2), (4, 8)),
        ((2, 2), (2, 3)),
        ((2, 2), (2, 2, 4)),
        ((2, 2, 2), (8, 4)),
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
    [((2, 2), (4, 4)), ((2, 4), (8, 8)), ((2, 3), (6, 12)), ((2, 2), (3, 5)), ((2, 2, 2), (8, 2))],
)
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


def test_a_plan_in_words_and_numbers():
    source = TensorLayout(XY, (8, 16), [["x"], []], ["y"])
    target = TensorLayout(XY, (8, 16), [[], ["x"]])
    plan = plan_relayout(source, target, 4, dict.fromkeys("xy", Link(1e-3, 1e-6)))
    assert str(plan) == (
        "[8/x, 16] sum over y on x:2;y:4 -> [8, 16/x] on x:2;y:4: all_to_all over x, dimension 0 "
        "to 1; all_reduce over y; 4096 bytes in all"
    )
    # 128 of 256 bytes, and 2 * 3 / 4 of 256.
    assert [step.received_bytes for step in plan.steps] == [128 * 8, 384 * 8]
    assert (plan.received_bytes_per_device, plan.messages) == (512, 1 + 6)
    assert plan.seconds == pytest.approx(7e-3 + 512e-6)
    console = Console(width=100)
    with console.capture() as capture:
        console.print(plan.table())
    lines = [line for line in capture.get().splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines] == [
        ["all_to_all over x, dimension 0 to 1", "[8, 8]", "128", "1", "1.128"],
        ["all_reduce over y", "[8, 8]", "384", "6", "6.384"],
        ["sum", "", "512", "7", "7.512"],
    ]


def test_strided_slices_save_bytes():
    """The axis in front of another one is gathered first; else both would have to be."""
    mesh = Mesh({"x": 2, "y": 2})
    source, target = TensorLayout(mesh, (8,), [["x", "y"]]), TensorLayout(mesh, (8,), [["y"]])
    plan = plan_relayout(source, target, 1)
    assert plan.shape == (2, 2, 2)
    assert str(plan).endswith(
        "(as [2, 2, 2]): all_gather over x, dimension 0; all_to_all over y, dimension 1 to 0; "
        "16 bytes in all"
    )
    assert plan_relayout(source, target, 1, allowed=CONTIGUOUS).received_bytes == 24


def test_latency_decides_where_bytes_are_few():
    """All-reduce over both axes at once, or one after the other, as messages or bytes cost more."""
    source, target = TensorLayout(XY, (3, 5), None, ["x", "y"]), TensorLayout(XY, (3, 5))
    assert [step.axes for step in plan_relayout(source, target).steps] == [("x", "y")]
    links = dict.fromkeys("xy", Link(1.0, 0.0))
    steps = plan_relayout(source, target, 4, links).steps
    assert [(step.axes, step.messages) for step in steps] == [(("x",), 2), (("y",), 6)]


def test_zeros_are_added_only_where_it_is_allowed():
    """Half of the bytes: only what the second axis leaves is sent."""
    source = TensorLayout(XY, (16, 16), [[], ["x"]])
    target = TensorLayout(XY, (16, 16), [["x"], ["y"]])
    plan = plan_relayout(source, target, 1, allowed=ANY_PARTIAL)
    assert [step.kind for step in plan.steps] == ["pad", "slice", "reduce_scatter"]
    assert plan.received_bytes == 256
    assert plan_relayout(source, target, 1, allowed=ONE_AXIS).received_bytes == 512


def test_on_many_axes_not_all_steps_are_searched():
    mesh = Mesh({"a": 2, "b": 2, "c": 2, "d": 2})
    source = TensorLayout(mesh, (16, 16), [["a", "b"], ["c"]])
    target = TensorLayout(mesh, (16, 16), [["c"], ["a", "b"]])
    plan = plan_relayout(source, target)
    assert plan == plan_relayout(source, target, allowed=MANY_AXES_STEPS)
    assert plan.received_bytes < plan_relayout(source, target, allowed=ONE_AXIS).received_bytes
    check_values(source, target, MANY_AXES_STEPS)


def test_steps_of_many_axes_lie_between():
    """No worse than one axis at a time, no better than all steps; and the values stay."""
    nodes = layout_brute_force.layouts(Mesh({"x": 2, "y": 2, "z": 2}), (8, 8), partial=False)
    for source, target in itertools.permutations(nodes, 2):
        costs = [
            plan_relayout(source, target, allowed=allowed).received_bytes
            for allowed in (CONTIGUOUS, MANY_AXES_STEPS, ONE_AXIS)
        ]
        assert costs == sorted(costs)


def test_plans_do_not_depend_on_what_was_asked_before():
    nodes = layout_brute_force.layouts(XY, (8, 8))
    shortest_path.router.cache_clear()
    forth = {pair: plan_relayout(*pair) for pair in itertools.product(nodes, repeat=2)}
    shortest_path.router.cache_clear()
    pairs = reversed(list(itertools.product(nodes, repeat=2)))
    assert {pair: plan_relayout(*pair) for pair in pairs} == forth


def test_a_simulated_step_that_is_wrong_is_seen():
    """The simulation is of use only if it tells right from wrong."""
    mesh = Mesh({"x": 2, "y": 2})
    source, target = TensorLayout(mesh, (8, 8), [["x", "y"], []]), TensorLayout(mesh, (8, 8))
    plan = plan_relayout(source, target, allowed=CONTIGUOUS)
    assert [step.axes for step in plan.steps] == [("y",), ("x",)]
    swapped = [
        dataclasses.replace(step, axes=(axis,)) for step, axis in zip(plan.steps, "xy", strict=True)
    ]
    wrong = dataclasses.replace(plan, steps=tuple(swapped))
    pieces = simulation.run(wrong, simulation.scatter(value_of((8, 8)), source))
    assert not np.array_equal(pieces[0], value_of((8, 8)))
    pieces = simulation.scatter(value_of((8, 8)), TensorLayout(XY, (8, 8), [["x"], []]))
    pieces[6] = pieces[6] + 1
    with pytest.raises(LayoutError, match="devices 4 and 6 hold different values of slice"):
        simulation.assemble(pieces, TensorLayout(XY, (8, 8), [["x"], []]))


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (
            (TensorLayout(XY, [8]), TensorLayout(XY, [4])),
            "the shape is (8,) before and (4,) after; a relayout keeps it, so reshape first",
        ),
        (
            (TensorLayout(XY, [8]), TensorLayout(Mesh({"x": 4}), [8])),
            "mesh 'x:2;y:4' has 8 devices and mesh 'x:4' has 4; a relayout keeps the devices",
        ),
        (
            (TensorLayout(Mesh({"x": 2, "y": 3}), [8]), TensorLayout(Mesh({"x": 3, "y": 2}), [8])),
            "meshes 'x:2;y:3' and 'x:3;y:2' have no common refinement: their axes end at 6, 3, 2, "
            "1 devices, and each number must divide the one before; relayout to a mesh with axes "
            "in another order, or to a replicated tensor",
        ),
        ((TensorLayout(XY, [8]), TensorLayout(XY, [8]), 0), "item_bytes is 1 or more, got 0"),
        (
            (TensorLayout(XY, [8]), TensorLayout(XY, [8]), 4, {"x": Link(1, 1)}),
            "axes 'y' of mesh 'x:2;y:4' have no link; give one for each axis, or none at all to "
            "count bytes first and messages second",
        ),
        (
            (TensorLayout(XY, [8]), TensorLayout(XY, [8]), 4, dict.fromkeys("xyz", Link(1, 1))),
            "link: axis 'z' is not in mesh 'x:2;y:4'; its axes are: x, y",
        ),
        (
            (TensorLayout(XY, [8]), TensorLayout(XY, [8]), 4, dict.fromkeys("xy", 1)),
            "the link of axis 'x' is a Link, got 1",
        ),
        (
            (
                TensorLayout(XY, [8]),
                TensorLayout(XY, [8], [["x", "y"]]),
                4,
                None,
                StepSet(stacked=False, strided=False),
            ),
            "no sequence of allowed steps leads from [8] on x:2;y:4 to [8/x+y] on x:2;y:4: over "
            "several axes: all_reduce, all_to_all; mixed; not stacked; pad; not "
            "any_partial; not strided",
        ),
    ],
)
def test_relayouts_that_cannot_be_say_why(args, expected):
    with pytest.raises(LayoutError) as caught:
        plan_relayout(*args)
    assert str(caught.value) == expected


def test_links_are_numbers():
    with pytest.raises(LayoutError) as caught:
        Link(-1, math.inf)
    assert caught.value.problems == (
        "seconds_per_byte is a finite number, 0 or more, got inf",
        "seconds_per_message is a finite number, 0 or more, got -1",
    )
