# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Carry tensors of all types by collectives that have few."""

from __future__ import annotations

import math
from typing import Any, Final

import tensorflow as tf

from tf_fuse.layout.types.errors import LayoutError

# Types that gathers and all-to-alls take; others travel as bits or as wider numbers.
CARRIED: Final = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_BITS: Final = {
    tf.bfloat16: tf.float16,
    tf.complex64: tf.float32,
    tf.complex128: tf.float64,
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
}


def shaped(tensor: Any, shape: Any) -> Any:
    """Return a tensor whose shape is known."""
    tensor.set_shape(shape)
    return tensor


def wide(tensor: Any) -> tuple[Any, Any]:
    """Return a tensor of a type that can be reduced, and the way back."""
    kind = tensor.dtype
    if is_summed(kind):
        return tensor, lambda one: one
    if kind.is_complex or kind in (tf.uint32, tf.uint64):
        raise LayoutError(
            f"TensorFlow has no all-reduce of {kind.name} between processes; use a plan in which "
            "it is not partial, or another type"
        )
    return tf.cast(tensor, tf.int32), lambda one: tf.cast(one, kind)


def carried(tensor: Any) -> tuple[Any, Any]:
    """Return a tensor of a type that collectives carry, with the same bits, and the way back."""
    kind = tensor.dtype
    if kind in CARRIED:
        return tensor, lambda one: one
    if kind in _BITS:
        return tf.bitcast(tensor, _BITS[kind]), lambda one: tf.bitcast(one, kind)
    # Numbers of one or two bytes: several in one of four, where they fill it.
    row = math.prod(tensor.shape.as_list()[1:])
    narrow = tf.cast(tensor, tf.uint8) if kind == tf.bool else tensor
    fits = 4 // narrow.dtype.size
    if row % fits:
        return tf.cast(tensor, tf.int32), lambda one: tf.cast(one, kind)
    shape = tensor.shape.as_list()
    packed = tf.bitcast(tf.reshape(narrow, [shape[0], row // fits, fits]), tf.int32)

    def back(one: Any) -> Any:
        return tf.cast(tf.reshape(tf.bitcast(one, narrow.dtype), shape_of(one)), kind)

    def shape_of(one: Any) -> list[int]:
        return [one.shape[0], *shape[1:]]

    return packed, back


def as_integers(tensor: Any) -> tuple[Any, Any]:
    """Return the bits of a tensor as integers that can be added up, and the way back."""
    kind = tensor.dtype
    if kind == tf.bool:
        return tf.cast(tensor, tf.int32), lambda one: tf.cast(one, kind)
    if kind.size >= 4:
        return tf.bitcast(tensor, tf.int32), lambda one: tf.bitcast(one, kind)
    narrow = tf.uint8 if kind.size == 1 else tf.uint16
    return (
        tf.cast(tf.bitcast(tensor, narrow), tf.int32),
        lambda one: tf.bitcast(tf.cast(one, narrow), kind),
    )


def is_summed(kind: Any) -> bool:
    """Return whether collectives add up tensors of a type without a cast."""
    return kind in CARRIED or kind == tf.bfloat16
