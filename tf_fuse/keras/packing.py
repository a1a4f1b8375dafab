# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pack the small tensors that a step returns into one: each would be a message of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

_STEPS = 4  # bytes of the number of steps, which come first


class _PackedTensor(NamedTuple):
    """Where a tensor is in the packed one."""

    dtype: Any
    shape: tuple[int, ...]
    begin: int
    end: int


class Packing:
    """How the tensors of one structure are packed.

    Attributes:
      numbers: the structure, with a number in the place of each tensor.
    """

    def __init__(self) -> None:
        self.numbers: Any = None
        # By number: the place, or which one of the others it is; None for None.
        self._places: list[_PackedTensor | int | None] = []

    def pack(self, structure: Any, steps: Any = 0) -> list[Any]:
        """Pack tensors of known shapes.

        Args:
          structure: nested tensors; None stays in its place.
          steps: from which they come, an integer.

        Returns:
          One tensor of bytes, and the tensors that are not in it.
        """
        import tensorflow as tf

        flat = tf.nest.flatten(structure)
        self.numbers = tf.nest.pack_sequence_as(structure, range(len(flat)))
        self._places = []
        bytes_ = [tf.bitcast(tf.cast(steps, tf.int32), tf.uint8)]
        begin = _STEPS
        others = []
        for one in flat:
            if one is None:
                self._places.append(None)
            elif tf.is_tensor(one) and _is_plain(one):
                end = begin + math.prod(one.shape) * one.dtype.size
                self._places.append(_PackedTensor(one.dtype, tuple(one.shape), begin, end))
                bytes_.append(tf.reshape(tf.bitcast(one, tf.uint8), [-1]))
                begin = end
            else:
                others.append(one)
                self._places.append(len(others))
        return [tf.concat(bytes_, axis=0), *others]

    def steps(self, packed: Sequence[Any]) -> int:
        """Return the number of steps in what `pack` returned, as NumPy arrays."""
        return int(packed[0][:_STEPS].view("int32")[0])

    def taken(self, packed: Sequence[Any]) -> list[int]:
        """Return the numbers of batches, "taken" in the structure, in what `pack` returned."""
        numbers = self.numbers["taken"][: self.steps(packed)]
        return [int(self.array(packed, one)) for one in numbers]

    def array(self, packed: Sequence[Any], number: int) -> Any:
        """Return one of the tensors that were packed, from NumPy arrays; do not change it."""
        place = self._places[number]
        assert place is not None
        if isinstance(place, int):
            return packed[place]
        bytes_ = packed[0][place.begin : place.end]
        return bytes_.view(place.dtype.as_numpy_dtype).reshape(place.shape)

    def tensor(self, packed: Sequence[Any], number: int) -> Any:
        """Return one of the tensors that were packed, from tensors; None for None."""
        import tensorflow as tf

        place = self._places[number]
        if place is None or isinstance(place, int):
            return None if place is None else packed[place]
        bytes_ = packed[0][place.begin : place.end]
        return tf.bitcast(tf.reshape(bytes_, [*place.shape, place.dtype.size]), place.dtype)


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
