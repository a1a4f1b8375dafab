# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pack the small tensors that a step returns into one: each would be a message of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_STEPS = 4  # bytes of the number of steps, which come first


class Packing:
    """How the tensors of one structure are packed."""

    def __init__(self) -> None:
        self._structure: Any = None
        self._packed: dict[int, tuple[Any, tuple[int, ...]]] = {}  # dtype, shape by number

    def pack(self, structure: Any, steps: Any = 0) -> list[Any]:
        """Pack tensors of known shapes.

        Args:
          structure: nested tensors; None stays in its place.
          steps: from which they come, an integer.

        Returns:
          One tensor of bytes, and the tensors that are not in it.
        """
        import tensorflow as tf

        self._structure, self._packed = structure, {}
        bytes_ = [tf.bitcast(tf.cast(steps, tf.int32), tf.uint8)]
        others = []
        for number, one in enumerate(tf.nest.flatten(structure)):
            if tf.is_tensor(one) and _is_plain(one):
                self._packed[number] = one.dtype, tuple(one.shape)
                bytes_.append(tf.reshape(tf.bitcast(one, tf.uint8), [-1]))
            elif one is not None:
                others.append(one)
        return [tf.concat(bytes_, axis=0), *others]

    def steps(self, packed: Sequence[Any]) -> Any:
        """Return the number of steps that was packed; a tensor while a function is traced."""
        import tensorflow as tf

        if tf.executing_eagerly():
            return int(packed[0].numpy()[:_STEPS].view("int32")[0])
        return tf.bitcast(packed[0][:_STEPS], tf.int32)

    def unpack(self, packed: Sequence[Any]) -> Any:
        """Return the structure of what `pack` returned."""
        import tensorflow as tf

        others = iter(packed[1:])
        begin = _STEPS
        flat = []
        for number, one in enumerate(tf.nest.flatten(self._structure)):
            if number in self._packed:
                dtype, shape = self._packed[number]
                end = begin + math.prod(shape) * dtype.size
                bytes_ = tf.reshape(packed[0][begin:end], [*shape, dtype.size])
                flat.append(tf.bitcast(bytes_, dtype))
                begin = end
            else:
                flat.append(None if one is None else next(others))
        return tf.nest.pack_sequence_as(self._structure, flat)


def _is_plain(tensor: Any) -> bool:
    """Whether a tensor's bytes are known in number, and mean the same on each machine."""
    import tensorflow as tf

    dtype = tensor.dtype
    return bool(
        isinstance(tensor, tf.Tensor)
        and tensor.shape.is_fully_defined()
        and (dtype.is_floating or dtype.is_integer)
        and not dtype.is_quantized
        and dtype.size > 1
    )
