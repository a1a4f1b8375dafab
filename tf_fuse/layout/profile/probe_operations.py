# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the operations that a device runs while it is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_fuse.layout.operators.contraction import CONVOLUTION, EINSUM
from tf_fuse.layout.profile.contraction_cases import GRADIENT_OF_FILTER, GRADIENT_OF_IMAGES


def powers(one: Any, count: int) -> Any:
    """Multiply matrices one after the other; few products keep numbers finite."""
    found = one
    for _ in range(count):
        found = tf.linalg.matmul(found, one)
    return found


def leaky_relus(one: Any, count: int) -> Any:
    """Run leaky ReLUs of a vector one after the other; the result has its own memory.

    Grappler would run others, such as absolute values, as a single operation on a chain of them.
    """
    for _ in range(count):
        one = tf.nn.leaky_relu(one)
    return one


def sigmoids(one: Any, count: int) -> Any:
    """Run sigmoids of a vector one after the other, each behind a leaky ReLU."""
    for _ in range(count):
        one = tf.sigmoid(tf.nn.leaky_relu(one))
    return one


def small(one: Any, count: int) -> Any:
    """Run operations on a small tensor; each third one reads two others, as in a model's graph."""
    for _ in range(count // 3):
        one = tf.tanh(one) * tf.sigmoid(one)
    return one


def contractions(kind: str, text: str, inputs: Sequence[Sequence[Any]]) -> Any:
    """Run contractions one after the other; return an element of each, added up.

    Args:
      kind: of them.
      text: as in `contraction_cases.CONTRACTIONS`.
      inputs: of each.
    """
    found: list[Any] = []
    for pair in inputs:
        with tf.control_dependencies(found[-1:]):
            if kind == EINSUM:
                made = tf.einsum(text, *pair)
            elif kind == CONVOLUTION:
                made = _convolution(text, *pair)
            else:
                made = tf.linalg.matmul(*pair, transpose_a=text == "a", transpose_b=text == "b")
        found.append(tf.reshape(made, [-1])[:1])
    return tf.add_n(found)


def _convolution(text: str, left: Any, right: Any) -> Any:
    options = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    if text == GRADIENT_OF_IMAGES:  # of a filter and the gradient of the result
        shape = [*right.shape[:3], left.shape[2]]
        return tf.raw_ops.Conv2DBackpropInput(
            input_sizes=shape, filter=left, out_backprop=right, **options
        )
    if text.startswith(GRADIENT_OF_FILTER):  # of images and the gradient of the result
        size = int(text.removeprefix(GRADIENT_OF_FILTER))
        shape = [size, size, left.shape[3], right.shape[3]]
        return tf.raw_ops.Conv2DBackpropFilter(
            input=left, filter_sizes=shape, out_backprop=right, **options
        )
    return tf.raw_ops.Conv2D(input=left, filter=right, **options)
