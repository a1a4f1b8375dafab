# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases of `cases.py` with functions that call others, or that other means call."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.fuse_recv.bench import Bench, case, whole_numbers


@case
def nested(bench: Bench) -> list[Any]:
    """Functions in functions, called twice with different arguments."""
    variables = [bench.variable(i, whole_numbers("float32", i)) for i in range(4)]

    @tf.function
    def inner(scale):
        return tf.add_n([v * scale for v in variables])

    @tf.function
    def middle(scale):
        return inner(scale) + inner(scale + 1.0)

    @tf.function
    def outer(scale):
        return middle(scale), [v - inner(scale) for v in variables]

    return bench.call(outer, tf.constant(2.0))


@case
def resource_handles(bench: Bench) -> list[Any]:
    """Handles of variables cross to the worker, for a call that is not inlined."""
    variables = [bench.variable(i, whole_numbers("float32", i)) for i in range(6)]

    @tf.function(experimental_attributes={"_noinline": True})
    def inner(scale):
        for v in variables[:2]:
            v.assign_add(scale * tf.ones([3]))
        return [v * scale for v in variables]

    @tf.function
    def outer(scale):
        values = inner(scale)
        return values, [x - 1.0 for x in values]

    values = bench.call(outer, tf.constant(2.0)) + bench.call(outer, tf.constant(3.0))
    return values + [v.numpy() for v in variables]


@case
def compiled(bench: Bench) -> list[Any]:
    """Islands that XLA compiles, fed with what was received, inside a step that is not compiled."""
    weights = [bench.variable(i, whole_numbers("float32", i, (4, 4)) / 8.0) for i in range(6)]

    @tf.function(jit_compile=True)
    def island(x, w):
        return tf.reduce_sum(tf.nn.relu(tf.matmul(x, w) - 2.0), axis=1, keepdims=True) + w

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            values = [tf.convert_to_tensor(w) for w in weights]
            tape.watch(values)
            for value in values:
                x = island(x, value)
        gradients = tape.gradient(x, values)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.125 * tf.round(gradient))
        return x, gradients

    x = whole_numbers("float32", 7, (4, 4)) / 16.0
    return bench.call(step, x) + [w.numpy() for w in weights]


@case
def local_dataset(bench: Bench) -> list[Any]:
    """A tf.data iterator that the function makes on the worker, over values that it received."""
    variables = [bench.variable(i, whole_numbers("int64", i)) for i in range(4)]

    @tf.function
    def step():
        first = tf.stack([tf.convert_to_tensor(v) for v in variables])
        total = tf.zeros([3], tf.int64)
        for row in tf.data.Dataset.from_tensor_slices(first).map(lambda r: r * 2):
            total += row
        return total, [v - total for v in variables]

    return bench.call(step)


@case
def python_function(bench: Bench) -> list[Any]:
    """A tf.py_function runs in the coordinator's process, which receives like a worker."""
    variables = [bench.variable(i, whole_numbers("float32", i)) for i in range(4)]
    seen = []

    def look(*values):
        seen.append(len(values))
        return tf.add_n(values)

    @tf.function
    def run():
        total = tf.py_function(look, [v * 2.0 for v in variables], tf.float32)
        total.set_shape([3])
        return total, [v + total for v in variables]

    values = bench.call(run, on=["chief:0"])
    return [*values, np.array(seen)]


@case
def scheduled(bench: Bench) -> list[Any]:
    """ClusterCoordinator.schedule with a dataset per worker; sums of whole numbers commute."""
    variables = [bench.variable(i, whole_numbers("int64", i)) for i in range(4)]
    total = bench.variable(1, tf.zeros([3], tf.int64))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(bench.strategy)

    @tf.function
    def step(iterator):
        x = tf.reduce_sum(next(iterator))
        total.assign_add(x * tf.add_n([v + 0 for v in variables]))
        return x

    def dataset():
        return tf.data.Dataset.from_tensors(tf.constant([1, 2], tf.int64)).repeat()

    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    with bench.counting():
        results = [coordinator.schedule(step, args=(iterator,)) for _ in range(6)]
        coordinator.join()
    return [*(result.fetch() for result in results), total.numpy()]
