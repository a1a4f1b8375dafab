# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Take a Keras batch apart into named tensors, and put tensors back into its structure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import tensorflow as tf
from tensorflow.python.util import nest

from tf_fuse.layout.types.errors import LayoutError

PARTS: Final = ("x", "y", "sample_weight")


class Batch(NamedTuple):
    """The input of a step, taken apart into tensors.

    Attributes:
      structure: with None for each tensor, and for what is left out.
      places: which of the structure's leaves the tensors are.
      tensors: or their `tf.TensorSpec`s.
      specs: of the tensors, with names.
    """

    structure: Any
    places: tuple[int, ...]
    tensors: tuple[Any, ...]
    specs: tuple[tf.TensorSpec, ...]

    @property
    def key(self) -> str:
        """Batches of one key run by one plan."""
        return f"{self.structure} {self.places} {self.specs}"

    @property
    def size(self) -> int | None:
        """Examples; None where nothing has a dimension."""
        return next((one.shape[0] for one in self.specs if one.shape.rank), None)

    def packed(self, tensors: Sequence[Any]) -> Any:
        """Return tensors in the batch's structure."""
        leaves = nest.flatten(self.structure)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return nest.pack_sequence_as(self.structure, leaves)


def batch_of(data: Any) -> Batch:
    """Take a Keras batch apart.

    Raises:
      LayoutError: a part of it is not a dense tensor.
    """
    parts = tuple(data) if isinstance(data, tuple | list) else (data,)
    if len(parts) > len(PARTS):
        raise LayoutError(
            f"a batch is x, (x, y) or (x, y, sample_weight), got {len(parts)} parts; give several "
            "inputs of a model as one list or dictionary"
        )
    parts = tuple(nest.map_structure(_leaf, one) for one in parts)
    while len(parts) > 1 and parts[-1] is None:
        parts = parts[:-1]
    leaves = nest.flatten(parts)
    names = [
        re.sub(r"\W", "_", f"{name}_{path}" if path else name)
        for name, one in zip(PARTS, parts, strict=False)
        for path, _ in nest.flatten_with_joined_string_paths(one)
    ]
    places = tuple(i for i, one in enumerate(leaves) if one is not None)
    return Batch(
        nest.map_structure(lambda _: None, parts),
        places,
        tuple(leaves[i] for i in places),
        tuple(tf.TensorSpec(leaves[i].shape, leaves[i].dtype, names[i]) for i in places),
    )


def _leaf(one: Any) -> Any:
    """Return a tensor, or None where there is nothing."""
    if one is None or isinstance(one, tf.experimental.Optional):
        return None
    if isinstance(one, tf.TensorSpec):
        return one
    if isinstance(one, tf.SparseTensor | tf.RaggedTensor):
        raise LayoutError(
            f"a batch has a {type(one).__name__}, and plans are for dense tensors of whole shapes; "
            "make it dense in the data's pipeline"
        )
    return tf.convert_to_tensor(one)
