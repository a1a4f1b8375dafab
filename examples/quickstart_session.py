# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train in a `tf.compat.v1.Session` on two parameter servers, without and with tf_fuse."""

import time

import tensorflow as tf

import tf_fuse.cluster  # adds the protocol "grpc+fuse"

STEPS = 50
v1 = tf.compat.v1
v1.disable_eager_execution()
cluster = tf_fuse.cluster.LocalCluster(workers=1, ps=2)  # three processes on this machine
spec = cluster.cluster_spec
target = f"grpc+fuse://{spec['worker'][0]}"

with v1.device(v1.train.replica_device_setter(cluster=tf.train.ClusterSpec(spec))):
    tables = [v1.get_variable(f"table_{i}", [1000, 16]) for i in range(100)]
    ids = tf.random.uniform([64], 0, 1000, tf.int32)
    rows = tf.add_n([tf.gather(table, ids) for table in tables])
    train = v1.train.GradientDescentOptimizer(0.01).minimize(tf.reduce_mean(rows**2))


def steps_per_second(config):
    """Train in a session with a config."""
    with v1.Session(target, config=config) as session:
        session.run(v1.global_variables_initializer())
        session.run(train)  # the workers partition the graph
        began = time.perf_counter()
        for _ in range(STEPS):
            session.run(train)
        return STEPS / (time.perf_counter() - began)


stock = steps_per_second(v1.ConfigProto())
fused = steps_per_second(tf_fuse.session_config())
print(f"steps/s: {stock:.1f} without, {fused:.1f} with tf_fuse: {fused / stock:.1f} times")
cluster.close()
