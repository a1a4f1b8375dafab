# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make variables that no device ever holds whole.

A `tf.Variable` has its value from the beginning, in each process. Of one of these, each device
makes its own part when a plan lays the variable out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.tensor_layout import TensorLayout

# From where a part begins, and its shape, its value.
PartOf = Callable[[Sequence[int], Sequence[int]], Any]


class VariableInParts(resource_variable_ops.UninitializedVariable):
    """A variable without a value, until a plan lays it out."""

    def __init__(
        self, shape: Sequence[int], part_of: PartOf, dtype: Any, name: str | None, trainable: bool
    ):
        """Make no value.

        Args:
          shape: of the whole.
          part_of: see `variable_in_parts`.
          dtype: of the value.
          name: of the variable.
          trainable: whether tapes watch it.
        """
        super().__init__(
            trainable=trainable, name=name, shape=tf.TensorShape(shape), dtype=tf.as_dtype(dtype)
        )
        self._part_of = part_of

    def part(self, layout: TensorLayout, device: int) -> Any:
        """Return a device's part of the first value.

        Raises:
          LayoutError: the function that makes it returns another shape.
        """
        begin = [one.start for one in layout.slice_of(device)]
        shape = layout.slice_shape
        value = tf.convert_to_tensor(self._part_of(begin, shape), self.dtype)
        if tuple(value.shape.as_list()) != tuple(shape):
            raise LayoutError(
                f"variable {self.name!r}: part_of({begin}, {list(shape)}) has shape {value.shape}; "
                "return a part of the shape that it is given"
            )
        return value

    def is_initialized(self, name: str | None = None) -> Any:
        """Return whether it has a value; what `hold_nothing` left is not one."""
        found = super().is_initialized(name)
        if not tf.executing_eagerly() or not found:
            return found
        held = tf.raw_ops.VariableShape(input=self.handle)
        return tf.constant(held.numpy().tolist() == self.shape.as_list())

    def hold_nothing(self) -> None:
        """Give the handle an empty buffer, which can be closed as others are."""
        empty = tf.zeros([0], self.dtype)
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=empty)


def variable_in_parts(
    shape: Sequence[int],
    part_of: PartOf | None = None,
    dtype: Any = "float32",
    name: str | None = None,
    trainable: bool = True,
) -> VariableInParts:
    """Return a variable that no device holds whole, if a plan splits it.

    Args:
      shape: of the whole.
      part_of: a function of where a part begins in each dimension, and of its shape; it returns
        the part's first value. All processes must have the same. None for zeros.
      dtype: of the value.
      name: of the variable.
      trainable: whether tapes watch it.
    """

    def zeros(begin: Sequence[int], part: Sequence[int]) -> Any:
        del begin
        return tf.zeros(part, dtype)

    return VariableInParts(shape, part_of or zeros, dtype, name, trainable)
