# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Relayouts: which steps a plan has, what it says, and all error texts."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from rich.console import Console

from benchmarks.layout import brute_force as layout_brute_force
from tests.unit.layout.relayout.relayout_checks import ANY_PARTIAL, CONTIGUOUS, XY, check_values
from tf_fuse.layout import (
    ALL_STEPS,
    MANY_AXES_STEPS,
    ONE_AXIS,
    LayoutError,
    Link,
    Mesh,
    StepSet,
    TensorLayout,
    plan_relayout,
)
from tf_fuse.layout.relayout import shortest_path
from tf_fuse.layout.relayout.redistribution import sources_of


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
    """The axis in front of another one changes places with it; else both would be gathered."""
    mesh = Mesh({"x": 2, "y": 2})
    source, target = TensorLayout(mesh, (8,), [["x", "y"]]), TensorLayout(mesh, (8,), [["y"]])
    plan = plan_relayout(source, target, 1)
    assert plan.shape == (2, 2, 2)
    assert str(plan).endswith(
        "(as [2, 2, 2]): permute over x+y; all_gather over x, dimension 1; 12 bytes in all"
    )
    one_by_one = dataclasses.replace(ALL_STEPS, joint=ALL_STEPS.joint - {"permute"})
    assert plan_relayout(source, target, 1, allowed=one_by_one).received_bytes == 16
    assert plan_relayout(source, target, 1, allowed=CONTIGUOUS).received_bytes == 12


def swapped(mesh: Mesh) -> tuple[TensorLayout, TensorLayout]:
    """Both axes split a dimension each, and then each the other one."""
    first, last = [["x"], ["y"]], [["y"], ["x"]]
    return TensorLayout(mesh, (8, 8), first), TensorLayout(mesh, (8, 8), last)


def test_axes_change_places_in_one_step():
    """Two of four devices exchange their slices; each slice has 64 bytes."""
    mesh = Mesh({"x": 2, "y": 2})
    source, target = swapped(mesh)
    plan = plan_relayout(source, target)
    assert str(plan).endswith("permute over x+y; 128 bytes in all")
    assert plan.messages == 1
    assert sources_of(plan.steps[0]) == [0, 2, 1, 3]
    one_by_one = dataclasses.replace(ALL_STEPS, joint=ALL_STEPS.joint - {"permute"})
    assert plan_relayout(source, target, allowed=one_by_one).received_bytes == 448


def test_three_axes_change_places_in_one_step():
    mesh = Mesh({"x": 2, "y": 2, "z": 2})
    source = TensorLayout(mesh, (2, 2, 2), [["x"], ["y"], ["z"]])
    plan = plan_relayout(source, TensorLayout(mesh, (2, 2, 2), [["z"], ["x"], ["y"]]), 1)
    assert [step.kind for step in plan.steps] == ["permute"]
    # All but the devices at three equal coordinates receive another slice, of one byte.
    assert plan.received_bytes == 6
    # An axis that splits nothing takes the place of one that does.
    source = TensorLayout(mesh, (2, 4), [["z"], ["y"]])
    plan = plan_relayout(source, TensorLayout(mesh, (2, 4), [["x"], ["y"]]), 1)
    assert str(plan).endswith("permute over x+z; 8 bytes in all")


def test_axes_of_other_sizes_do_not_change_places():
    mesh = Mesh({"x": 2, "y": 4})
    source, target = swapped(mesh)
    assert "permute" not in {step.kind for step in plan_relayout(source, target).steps}


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


def test_plans_do_not_depend_on_what_was_asked_before():
    nodes = layout_brute_force.layouts(XY, (8, 8))
    shortest_path.router.cache_clear()
    forth = {pair: plan_relayout(*pair) for pair in itertools.product(nodes, repeat=2)}
    shortest_path.router.cache_clear()
    pairs = reversed(list(itertools.product(nodes, repeat=2)))
    assert {pair: plan_relayout(*pair) for pair in pairs} == forth


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
            "several axes: all_reduce, all_to_all, permute; mixed; not stacked; pad; not "
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
