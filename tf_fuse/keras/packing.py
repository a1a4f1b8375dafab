# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pack the small tensors that a step returns into one: each would be a message of its own."""

from __future__ import annotations

import math
from typing import Any


class Packing:
    """How the outputs of one traced function are packed."""

    def __init__(self) -> None:
        self._structure: Any = None
        self._packed: list[tuple[int, Any, tuple[int, ...]]] = []  # number, dtype, shape

    def pack(self, structure: Any) -> list[Any]:
        """Pack tensors of known shapes, while the function is traced.

        Args:
          structure: nested tensors; None stays in its place.

        Returns:
          One tensor of bytes, and the tensors that are not in it.
        """
        import tensorflow as tf

        self._structure, self._packed = structure, []
        bytes_, others = [], []
        for number, one in enumerate(tf.nest.flatten(structure)):
            if tf.is_tensor(one) and _is_plain(one):
                self._packed.append((number, one.dtype.as_numpy_dtype, tuple(one.shape)))
                bytes_.append(tf.reshape(tf.bitcast(one, tf.uint8), [-1]))
            elif one is not None:
                others.append(one)
        return [tf.concat([*bytes_, tf.zeros([0], tf.uint8)], axis=0), *others]

    def unpack(self, packed: list[Any]) -> Any:
        """Return the structure; what was packed is NumPy arrays.

        Args:
          packed: what the function returned, on this machine.
        """
        import numpy as np
        import tensorflow as tf

        memory, others = packed[0].numpy(), iter(packed[1:])
        arrays, begin = {}, 0
        for number, dtype, shape in self._packed:
            count = math.prod(shape)
            end = begin + count * np.dtype(dtype).itemsize
            arrays[number] = memory[begin:end].view(dtype).reshape(shape)
            begin = end
        flat = [
            None if one is None else arrays[i] if i in arrays else next(others)
            for i, one in enumerate(tf.nest.flatten(self._structure))
        ]
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
