# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A worker of MultiWorkerMirroredStrategy: one all-reduce, by the installed package alone."""

import tensorflow as tf

import tf_fuse


def main() -> None:
    """Sum the ranks of all workers; print the sum."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = strategy.cluster_resolver.task_id

    @tf.function
    def reduce():
        def replica():
            context = tf.distribute.get_replica_context()
            return context.all_reduce("sum", tf.fill([1000], rank + 1.0))

        return strategy.run(replica)

    total = reduce().numpy()
    assert (total == 3.0).all(), total
    counters = tf_fuse.metrics()
    sent = {path: counters[f"collective_bytes_{path}"] for path in ("shm", "tcp", "grpc")}
    assert any(sent.values()) or counters["direct_collectives"], counters
    assert not counters["collective_bytes_stock"], counters
    print(f"all-reduce: {total[0]}")


if __name__ == "__main__":
    main()
