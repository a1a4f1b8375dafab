# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Meshes and sets of steps that tests of relayouts share, and how values of a plan are checked."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.layout import simulation
from tf_fuse.layout import Mesh, StepSet, TensorLayout, plan_relayout

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
