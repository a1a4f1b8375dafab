# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One step of a worker and a server with fused receives, by the installed package alone."""

import os

import tensorflow as tf

import tf_fuse
from tf_fuse.cluster import LocalCluster


def main() -> None:
    """Run the step; print the file of the package and the number of fused receives."""
    tf.config.optimizer.set_experimental_options({"do_fuse_recv": True})
    with LocalCluster(workers=1, ps=1) as cluster:
        strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            variables = [tf.Variable(float(i)) for i in range(4)]

        @tf.function
        def step():
            total = tf.add_n([variable.read_value() for variable in variables])
            for variable in variables:
                variable.assign_add(total)
            return total

        total = coordinator.schedule(step).fetch()
        fused = tf_fuse.cluster_metrics()["/job:worker/replica:0/task:0"]["fused_rpcs"]
        assert total == 6.0, total
        assert [float(v.numpy()) for v in variables] == [6.0, 7.0, 8.0, 9.0], variables
        assert fused > 0, fused
        print(
            f"fused step: {os.path.dirname(tf_fuse.__file__)}, TensorFlow {tf.__version__}",
            flush=True,
        )
        cluster.close()
    os._exit(0)  # A coordinator cannot leave its cluster.


if __name__ == "__main__":
    main()
