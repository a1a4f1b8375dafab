# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a device runs while it is measured; in the graph of a `tf.function`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def powers(one: Any, count: int) -> Any:
    """Products of matrices, one after the other; for so few, numbers stay below the largest."""
    found = one
    for _ in range(count):
        found = tf.linalg.matmul(found, one)
    return found


def absolutes(one: Any, count: int) -> Any:
    """Absolute values of a vector, one after the other; what makes a tensor its device's own."""
    for _ in range(count):
        one = tf.abs(one)
    return one


def small(one: Any, count: int) -> Any:
    """Operations on a small tensor: each third one reads two others, as in a model's graph."""
    for _ in range(count // 3):
        one = tf.tanh(one) * tf.sigmoid(one)
    return one
