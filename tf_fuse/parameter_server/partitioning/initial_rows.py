# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compute the initial values of each piece of a Keras 3 variable on the piece's server.

TensorFlow asks an initializer for the values of one piece only if the program gives shape and type
with it. Keras gives no shape, so TensorFlow computes the whole value on the coordinator, and sends
each server its part: a table of gigabytes passes through one process.

The values of a piece are rows of what the initializer computes. A random operation without a state
numbers its values, and can begin at any number; all that Keras's initializers do afterwards works
element by element. An initializer that does more stays with TensorFlow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

# Smaller values travel as fast as they are computed.
_LEAST_BYTES = 1 << 20
_UNARY = frozenset({"Identity", "Neg"})
_BINARY = frozenset({"Add", "AddV2", "Mul", "Sub"})
# Philox makes four values of four bytes at a time. From one such group to the next it counts up by
# this: truncation may need more values, for which TensorFlow leaves room.
_RANDOM = {
    "StatelessRandomUniformV2": 1,
    "StatelessRandomNormalV2": 1,
    "StatelessTruncatedNormalV2": 256,
}
_GROUP = 4
# Algorithms: Philox, and what TensorFlow chooses for the device, which is Philox on CPUs.
_PHILOX, _CHOSEN = 1, 3


class _UnsupportedError(Exception):
    """An operation whose rows cannot be computed alone."""


def by_rows(
    initial: Callable[[], Any], initializer: Any, shape: Sequence[int], dtype: str
) -> Callable[..., Any] | None:
    """Return a function that computes rows of an initial value, as TensorFlow's strategy calls it.

    Args:
      initial: computes the whole value.
      initializer: of Keras, that it calls. (Others may have effects when they are traced.)
      shape: of the value.
      dtype: name of its type.

    Returns:
      Gets `partition_shape` and `partition_offset`; without them it computes the whole value. None
      for a small value, or where only the whole can be computed.
    """
    if not type(initializer).__module__.startswith("keras.") or dtype != "float32":
        return None
    if not shape or 4 * math.prod(shape) < _LEAST_BYTES:
        return None
    total = int(shape[0])
    try:
        _function(initial, 0, 1, total)
    except _UnsupportedError:
        return None

    def value(
        partition_shape: Sequence[int] | None = None, partition_offset: Sequence[int] | None = None
    ) -> Any:
        if partition_shape is None or partition_offset is None:
            return initial()
        return _function(initial, int(partition_offset[0]), int(partition_shape[0]), total)()

    return value


def _function(initial: Callable[[], Any], first: int, count: int, total: int) -> Any:
    """Return a function of TensorFlow that computes rows.

    What it does not need of the whole is removed before it runs.
    """
    from tensorflow.python.eager import wrap_function

    def rows() -> Any:
        whole = initial()
        operations = whole.graph.get_operations()
        if whole.graph.captures or any(map(_has_state, operations)):
            raise _UnsupportedError
        return _Rows(first, count, total).of(whole)

    return wrap_function.wrap_function(rows, [])


def _has_state(op: Any) -> bool:
    return op.op_def is not None and bool(op.op_def.is_stateful)


class _Rows:
    """Some rows of tensors."""

    def __init__(self, first: int, count: int, total: int):
        """Take `count` rows from `first` on, of tensors that have `total`."""
        self._first, self._count, self._total = first, count, total

    def of(self, tensor: Any) -> Any:
        """Return the rows of a tensor of a graph.

        Raises:
          _UnsupportedError: it is not computed row by row.
        """
        from tensorflow.python.framework import ops
        from tensorflow.python.ops import array_ops, math_ops

        op = tensor.op
        if not tensor.shape.is_fully_defined() or tensor.shape.rank < 1:
            raise _UnsupportedError
        rest = tensor.shape.as_list()[1:]
        with ops.device(op.device or None):
            if op.type in _UNARY:
                rows = self.of(op.inputs[0])
                return math_ops.negative(rows) if op.type == "Neg" else rows
            if op.type in _BINARY:
                a, b = (self._operand(one, tensor.shape.rank) for one in op.inputs)
                made = {"Mul": math_ops.multiply, "Sub": math_ops.subtract}
                return made.get(op.type, math_ops.add)(a, b)
            if op.type == "Fill":
                return array_ops.fill([self._count, *rest], op.inputs[1])
            if op.type in _RANDOM:
                return self._random(op, rest)
        raise _UnsupportedError

    def _operand(self, tensor: Any, rank: int) -> Any:
        """Return the rows of an operand; all of one that has the same values for each row."""
        if not tensor.shape.is_fully_defined():
            raise _UnsupportedError
        if tensor.shape.rank < rank or tensor.shape[0] == 1 < self._total:
            return tensor
        return self.of(tensor)

    def _random(self, op: Any, rest: Sequence[int]) -> Any:
        """Return rows of random numbers: the generator begins with the group of the first one."""
        from tensorflow.python.framework import dtypes, tensor_util
        from tensorflow.python.ops import array_ops, array_ops_stack, math_ops
        from tensorflow.python.ops import gen_stateless_random_ops_v2 as random_ops

        _, key, counter, algorithm = op.inputs
        is_philox = tensor_util.constant_value(algorithm) in (_PHILOX, _CHOSEN)
        if op.outputs[0].dtype != dtypes.float32 or not is_philox:
            raise _UnsupportedError
        width = math.prod(rest)
        group, before = divmod(self._first * width, _GROUP)
        more = math_ops.cast(group * _RANDOM[op.type], dtypes.uint64)
        low = counter[0] + more
        carried = math_ops.cast(low < more, dtypes.uint64)
        begun = array_ops_stack.stack([low, counter[1] + carried])
        made = {
            "StatelessRandomUniformV2": random_ops.stateless_random_uniform_v2,
            "StatelessRandomNormalV2": random_ops.stateless_random_normal_v2,
            "StatelessTruncatedNormalV2": random_ops.stateless_truncated_normal_v2,
        }[op.type]
        flat = made([before + self._count * width], key, begun, _PHILOX, dtype=dtypes.float32)
        return array_ops.reshape(flat[before:], [self._count, *rest])
