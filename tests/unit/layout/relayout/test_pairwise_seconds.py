# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Seconds of many relayouts at once: those of the plans, to the last bit."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks.layout import brute_force as layout_brute_force
from tf_fuse.layout import (
    ALL_STEPS,
    MANY_AXES_STEPS,
    ONE_AXIS,
    LayoutError,
    Link,
    Mesh,
    StepSet,
    plan_relayout,
)
from tf_fuse.layout.relayout.pairwise_seconds import relayout_seconds

LINKS = {"x": Link(3e-6, 7e-10), "y": Link(1e-5, 1.3e-10), "z": Link(0.0, 1e-9)}
# Sizes of the mesh, shape, how many layouts are taken, steps.
CASES = [
    ((2, 4), (8, 24), 40, None),
    ((2, 4), (6, 40, 1), 24, None),
    ((4, 2), (16, 4, 2), 24, ALL_STEPS),
    ((2, 3), (6, 18), 40, None),
    ((1, 2), (4, 1), 40, None),
    ((2, 2, 2), (8, 4), 24, None),
    ((2, 4), (8, 24), 40, ONE_AXIS),
    ((2, 2, 2), (16, 8), 20, MANY_AXES_STEPS),
    ((2, 2), (4, 12), 40, StepSet(any_partial=True)),
    ((2, 2), (4, 12), 40, StepSet(stacked=False, pad=False)),
    ((4,), (4, 5, 8), 40, None),
]


def seconds(source, target, item_bytes, links, steps) -> float:
    try:
        return plan_relayout(source, target, item_bytes, links, steps).seconds
    except LayoutError:
        return float("inf")


@pytest.mark.parametrize(("sizes", "shape", "most", "steps"), CASES)
def test_they_are_those_of_the_plans(sizes, shape, most, steps):
    mesh = Mesh(dict(zip("xyz", sizes, strict=False)))
    links = {axis: LINKS[axis] for axis in mesh.axes}
    nodes = layout_brute_force.layouts(mesh, shape)
    rng = random.Random(0)
    sources, targets = (rng.sample(nodes, min(most, len(nodes))) for _ in range(2))
    for item_bytes in (4, 2):
        found = relayout_seconds(sources, targets, item_bytes, links, steps)
        wanted = [[seconds(a, b, item_bytes, links, steps) for b in targets] for a in sources]
        assert found.tolist() == wanted
        assert np.count_nonzero(found) > len(found)


def test_shapes_that_are_divided_alike_have_their_own_bytes():
    """One graph of layouts serves both, and seconds grow with what is moved."""
    mesh = Mesh({"x": 2, "y": 4})
    links = {axis: Link(0.0, 1e-9) for axis in mesh.axes}
    small, large = (layout_brute_force.layouts(mesh, shape) for shape in ((8, 64), (24, 640)))
    one, other = (relayout_seconds(nodes, nodes, 4, links) for nodes in (small, large))
    assert [str(a.splits) for a in small] == [str(a.splits) for a in large]
    assert other == pytest.approx(one * 30, rel=1e-12)
    assert one.max() > 0


def test_relayouts_that_cannot_be():
    """Without slices that are stacked there is no way to or from a dimension over two axes."""
    mesh = Mesh({"x": 2, "y": 2})
    nodes = layout_brute_force.layouts(mesh, (8, 8), partial=False)
    steps = StepSet(stacked=False, strided=False, pad=False)
    found = relayout_seconds(nodes, nodes, 4, dict.fromkeys("xy", LINKS["x"]), steps)
    stacked = np.array([any(len(axes) > 1 for axes in one.splits) for one in nodes])
    assert np.isinf(found[np.ix_(~stacked, stacked)]).all()
    assert np.isfinite(found[np.ix_(~stacked, ~stacked)]).all()


def test_nothing_is_asked_for():
    assert relayout_seconds([], [], 4, {}).shape == (0, 0)
