# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches that the coordinator reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def in_cluster(dataset: Any) -> Any:
    """Return a dataset that can be read after the process has connected to a cluster.

    That gives the process's devices other names, and a dataset that was made before is on a device
    of the old name, where nothing runs any more.
    """
    import tensorflow as tf

    variant = tf.data.experimental.to_variant(dataset)
    if any(variant.device == one.name for one in tf.config.list_logical_devices()):
        return dataset
    with tf.device("CPU:0"):
        moved = tf.identity(variant)
    found = tf.data.experimental.from_variant(moved, dataset.element_spec)
    return found.with_options(dataset.options())


def read(iterator: Iterator[Any], count: int) -> list[Any]:
    """Return the next batches; fewer at the end.

    Raises:
      StopIteration: there is none.
    """
    found: list[Any] = []
    while len(found) < count:
        try:
            found.append(next(iterator))
        except StopIteration:
            if not found:
                raise
            break
    return found


def with_specs(batches: Sequence[Any], spec: Any) -> tuple[list[Any], list[Any]]:
    """Make tensors of batches.

    Args:
      batches: read from a dataset.
      spec: the dataset's `element_spec`; None for that of the first batch with any number of rows.
        Steps are traced for it: kernels round in other ways where they know a shape.

    Returns:
      The batches, and a spec for each.
    """
    import keras

    tensors = keras.tree.map_structure(_tensor, list(batches))
    if spec is None:
        spec = keras.tree.map_structure(_any_rows, tensors[0])
    else:
        spec = keras.tree.map_structure(_spec, spec)
    return tensors, [spec] * len(tensors)


def _tensor(one: Any) -> Any:
    """Return a part of a batch as a tensor."""
    import tensorflow as tf

    # The sample weight that a generator lacks; only Keras's own iterators need it.
    if one is None or isinstance(one, tf.experimental.Optional):
        return None
    return one if tf.is_tensor(one) else tf.convert_to_tensor(one)


def _spec(one: Any) -> Any:
    import tensorflow as tf

    return None if isinstance(one, tf.OptionalSpec) else one


def _any_rows(one: Any) -> Any:
    """Return the spec of a tensor of a batch, with any number of rows."""
    import tensorflow as tf

    if one is None:
        return None
    spec = tf.type_spec_from_value(one)
    shape = [None, *spec.shape[1:]] if spec.shape.rank else spec.shape
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)
