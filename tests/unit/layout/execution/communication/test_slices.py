# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Slices of tensors of many dimensions, as gradients of `tf.tile` have them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tf_fuse.layout.execution.communication.slices import cut

SHAPE = (2, 1, 3, 2, 2, 4, 1, 2, 1, 3)


@pytest.mark.parametrize("cuts", [{}, {0: 1}, {2: 2}, {3: 1, 5: 2}, {4: 1, 9: 2}, {1: 1, 7: 1}])
@pytest.mark.parametrize("rank", [1, 8, 9, 10])
def test_slices_of_any_number_of_dimensions(rank, cuts):
    shape = SHAPE[:rank]
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    size = [cuts.get(i, one) for i, one in enumerate(shape)]
    begin = [one - count for one, count in zip(shape, size, strict=True)]
    taken = tuple(slice(first, None) for first in begin)
    assert np.array_equal(cut(tf.constant(x), begin, size), x[taken])
