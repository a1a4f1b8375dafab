# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Relayouts keep all values, on simulated devices."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.layout import brute_force as layout_brute_force
from benchmarks.layout import simulation
from tests.slow_cases import slow
from tests.unit.layout.relayout.relayout_checks import (
    ANY_PARTIAL,
    CONTIGUOUS,
    XY,
    check_values,
    value_of,
)
from tf_fuse.layout import ALL_STEPS, ONE_AXIS, LayoutError, Mesh, TensorLayout, plan_relayout


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


@pytest.mark.parametrize("allowed", [ALL_STEPS, slow(ONE_AXIS)], ids=["all", "one"])
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
