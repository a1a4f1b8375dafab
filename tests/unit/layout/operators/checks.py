# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs all strategies of an operation, or their gradients, and compares with the whole."""

from __future__ import annotations

import numpy as np

from tests.unit.layout.operators import cases
from tests.unit.layout.operators import numpy_execution as execution
from tf_fuse.layout import Mesh
from tf_fuse.layout.strategies.strategy import strategies

SQUARE = Mesh({"x": 2, "y": 2})
UNEVEN = Mesh({"x": 3, "y": 2})
ONE = Mesh({"x": 1})


def assert_same(found, expected, what) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and one.dtype.kind in "iub":
            np.testing.assert_array_equal(one, other, err_msg=str(what))
        elif one is not None:
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9, err_msg=str(what))


def check(operation, inputs, mesh) -> int:
    """Runs all strategies; returns how many there are."""
    kernel = cases.KERNELS[operation.kind]
    expected = execution.run(operation, strategies(operation, ONE)[0], inputs, kernel)
    all_of_them = strategies(operation, mesh)
    for strategy in all_of_them:
        assert_same(execution.run(operation, strategy, inputs, kernel), expected, strategy)
    return len(all_of_them)


def check_gradients(operation, inputs, mesh, gradient, backs=None) -> int:
    """Runs the gradients of all strategies; returns how many there are."""
    whole = strategies(operation, ONE)[0]
    if backs is None:
        backs = [cases.whole_numbers(one.shape, 11) for one in operation.outputs]
    expected = execution.gradients(operation, whole, inputs, backs, gradient)
    assert any(one is not None for one in expected)
    all_of_them = strategies(operation, mesh)
    for strategy in all_of_them:
        found = execution.gradients(operation, strategy, inputs, backs, gradient)
        assert_same(found, expected, strategy)
    return len(all_of_them)


def reals(*shapes):
    random = np.random.default_rng(3)
    return [random.normal(size=shape) for shape in shapes]
