# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train 100 embedding tables on two parameter servers, without and with tf_fuse."""

import time

import tensorflow as tf

import tf_fuse.cluster  # adds the option "tf_fuse" and the protocol "grpc+fuse"

cluster = tf_fuse.cluster.LocalCluster(workers=1, ps=2)  # three processes on this machine
strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    tables = [tf.Variable(tf.random.normal([1000, 16])) for _ in range(100)]


def train():
    ids = tf.random.uniform([64], 0, 1000, tf.int32)
    rows = [tf.gather(table, ids) for table in tables]
    for table, gradient in zip(tables, tf.gradients(tf.add_n(rows) ** 2, rows), strict=True):
        table.scatter_sub(tf.IndexedSlices(0.01 * gradient, ids))


def steps_per_second(count):
    step = tf.function(train)
    coordinator.schedule(step).fetch()  # traces the function
    began = time.perf_counter()
    steps = [coordinator.schedule(step) for _ in range(count)]
    coordinator.join()
    return len(steps) / (time.perf_counter() - began)


stock = steps_per_second(50)
tf.config.optimizer.set_experimental_options({"tf_fuse": True})
fused = steps_per_second(50)
print(f"steps/s: {stock:.1f} without, {fused:.1f} with tf_fuse: {fused / stock:.1f} times")
