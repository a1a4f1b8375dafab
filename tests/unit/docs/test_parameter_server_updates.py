# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Of how many operations Keras 3 makes an update, as docs/parameter_server_updates.md says."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import pytest
import tensorflow as tf

_NOT_COUNTED = {"Const", "Identity", "NoOp", "Placeholder"}


def _operations(make, count):
    weights = [keras.Variable(tf.ones([8, 8])) for _ in range(count)]
    optimizer = make()
    optimizer.build(weights)

    @tf.function
    def step(gradients):
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    graph = step.get_concrete_function([tf.TensorSpec([8, 8])] * count).graph
    return sum(op.type not in _NOT_COUNTED for op in graph.get_operations())


@pytest.mark.parametrize(
    ("make", "operations"),
    [
        (lambda: keras.optimizers.Adam(0.01), 28),
        (lambda: keras.optimizers.SGD(0.01, momentum=0.9), 8),
    ],
)
def test_operations_of_one_more_update(make, operations):
    assert _operations(make, 2) - _operations(make, 1) == operations
