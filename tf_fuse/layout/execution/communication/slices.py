# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Take slices of tensors of any number of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf

# TensorFlow's slices have no more.
_DIMENSIONS: Final = 8


def cut(tensor: Any, begin: Sequence[int], size: Sequence[int]) -> Any:
    """Return a slice, as `tf.slice` does."""
    shape = tensor.shape.as_list()
    if len(shape) <= _DIMENSIONS:
        return tf.slice(tensor, begin, size)
    # Dimensions side by side that are taken whole become one.
    merged: list[tuple[int, int, int]] = []
    for whole, first, count in zip(shape, begin, size, strict=True):
        is_whole = whole == count
        if is_whole and merged and merged[-1][0] == merged[-1][2]:
            product = merged.pop()[0] * whole
            merged.append((product, 0, product))
        else:
            merged.append((whole, first, count))
    shape, begin, inner = (list(one) for one in zip(*merged, strict=True))
    return tf.reshape(tf.slice(tf.reshape(tensor, shape), begin, inner), size)
