# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Datasets whose batches are copied before a strategy slices them."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tf_fuse.keras import processes

_Pair = collections.namedtuple("_Pair", ["x", "y"])


def _ones(*shape):
    return tf.ones(shape)


def _dataset(element):
    return tf.data.Dataset.from_tensors(element)


@pytest.mark.parametrize(
    "dataset",
    [
        _dataset(_ones(4, 2)),
        _dataset((_ones(4, 2),)),
        _dataset((_ones(4, 2), _ones(4))),
        _dataset({"x": _ones(4, 2), "y": {"z": _ones(4)}}),
        _dataset(_Pair(_ones(4, 2), {"z": _ones(4)})),
        _dataset((_ones(4, 2), None)),
        _dataset((_ones(4, 2), tf.experimental.Optional.empty(None))),
        _dataset((tf.ragged.constant([[1], [2, 3]]), tf.constant(["a", "b"]))),
        _dataset((tf.sparse.from_dense(_ones(4, 2)), _ones(4))),
        _dataset((_ones(4, 2), _ones())),
        tf.data.Dataset.from_generator(lambda: [np.ones([4, 2])], tf.float64),
        tf.data.Dataset.from_generator(
            lambda: [np.ones([4, 2])], output_signature=tf.TensorSpec([None, 2], tf.float64)
        ),
    ],
    ids=lambda dataset: str(dataset.element_spec),
)
def test_copies_have_the_structure_of_the_batches(dataset):
    copies = processes._in_own_memory(dataset)
    assert copies is not dataset
    assert copies.element_spec == dataset.element_spec
    assert copies.cardinality() == dataset.cardinality()
    for copy, batch in zip(copies, dataset, strict=True):
        for one, expected in zip(_parts(copy), _parts(batch), strict=True):
            np.testing.assert_array_equal(one, expected)


def _parts(batch):
    flat = tf.nest.flatten(batch, expand_composites=True)
    return [one for one in flat if one is not None and one.dtype != tf.variant]


def test_copies_have_memory_of_their_own():
    """Of an array that begins where TensorFlow makes a tensor of it without copying it."""
    memory = np.zeros(192, np.uint8)
    begin = -memory.ctypes.data % 64
    array = memory[begin : begin + 128]
    spec = tf.TensorSpec([None], tf.uint8)
    dataset = tf.data.Dataset.from_generator(lambda: [array], output_signature=spec)

    def address(one):
        return np.asarray(memoryview(next(iter(one)))).ctypes.data

    assert address(dataset) == array.ctypes.data
    assert address(processes._in_own_memory(dataset)) != array.ctypes.data


def test_what_tensorflow_has_batched_is_not_copied():
    dataset = tf.data.Dataset.range(8).batch(4).shuffle(2).prefetch(1)
    assert processes._in_own_memory(dataset) is dataset
