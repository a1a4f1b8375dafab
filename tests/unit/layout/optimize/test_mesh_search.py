# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Meshes: the shapes that a number of devices has, and a search over them."""

from __future__ import annotations

import pytest

from tests.unit.layout.optimize.plan_examples import cells, error, example
from tf_fuse.layout import LayoutError, Mesh
from tf_fuse.layout.optimize import MemoryLimitError, Problem, search, search_meshes, shapes

# Meshes.


def test_shapes_of_meshes():
    assert shapes(1) == ((1,),)
    assert shapes(8) == ((8,), (2, 4), (4, 2), (2, 2, 2))
    assert shapes(8, 2) == ((8,), (2, 4), (4, 2))
    assert shapes(16) == (
        (16,), (2, 8), (4, 4), (8, 2), (2, 2, 4), (2, 4, 2), (4, 2, 2),
    )  # fmt: skip
    assert shapes(12, 3) == (
        (12,), (2, 6), (3, 4), (4, 3), (6, 2), (2, 2, 3), (2, 3, 2), (3, 2, 2),
    )  # fmt: skip
    assert error(shapes, 0) == "devices is 1 or more, got 0"
    assert error(shapes, 2.0) == "devices is a whole number, got 2.0"
    assert error(shapes, "4") == "devices is a whole number, got '4'"
    assert error(shapes, 8, 0) == "max_axes is 1 or more, got 0"


def test_search_over_meshes():
    def on(mesh: Mesh) -> Problem:
        if mesh.shape == (4, 2):
            raise LayoutError("4 does not divide 6")
        return example(limit=None, mesh=mesh, fast=0.5 if mesh.shape == (2, 4) else 0.9)

    times = iter([0.0, 0.25, 1.0, 1.5, 2.0, 2.125, 3.0, 6.0])
    found = search_meshes(8, on, clock=lambda: next(times))
    assert str(found.best.problem.mesh) == "x:2;y:4"
    assert [one.plan and one.plan.picoseconds for one in found.tried] == [
        10**10, 8 * 10**9, None, 10**10,
    ]  # fmt: skip
    assert cells(found.table()) == [
        ["mesh", "ms", "bytes/device", "searched, s", ""],
        ["x:8", "10.000", "8,000", "0.25", ""],
        ["x:2;y:4", "8.000", "2,000", "0.50", "best"],
        ["x:4;y:2", "", "", "0.12", "4 does not divide 6"],
        ["x:2;y:2;z:2", "10.000", "8,000", "3.00", ""],
    ]

    def never(mesh: Mesh) -> Problem:
        return example(limit=100, mesh=mesh)

    text = error(search_meshes, 2, never)
    assert text.startswith("mesh x:2: no plan fits into memory_limit_bytes=100: ")
    with pytest.raises(MemoryLimitError):
        search(never(Mesh({"x": 2})))
