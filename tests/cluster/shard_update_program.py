# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A program of a worker that trains and ends; `test_shard_update_exit.py` runs it.

python tests/cluster/shard_update_program.py {read,end,fail,train} [{end,first_use}]

After three steps: "read" the variables when a line comes, "end", "fail" by an exception, or "train"
on. The second word says where the new weight is gathered.
"""

from __future__ import annotations

import hashlib
import sys

import tensorflow as tf

import tf_fuse  # noqa: F401  (adds the option)


def main(what: str, gather: str = "end") -> None:
    """Trains, then does what it is told."""
    tf.config.optimizer.set_experimental_options(
        {
            "shard_weight_update": True,
            "shard_weight_update_always": True,
            "shard_weight_update_gather": gather,
        }
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weight = tf.Variable(tf.reshape(tf.range(300.0), [30, 10]) / 300)
        slot = tf.Variable(tf.zeros([30, 10]))

    def replica() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(weight)) ** 2
        gradient = tape.gradient(loss, weight)
        total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)

        def update(variable: tf.Variable, momentum: tf.Variable, g: tf.Tensor) -> None:
            momentum.assign(0.9 * momentum + g)
            variable.assign_sub(0.01 * momentum)

        update(weight, slot, total)

    step = tf.function(lambda: strategy.run(replica))
    for _ in range(3):
        step()
    print("trained", flush=True)
    if what == "read":
        sys.stdin.readline()
        values = weight.numpy().tobytes() + slot.numpy().tobytes()
        print(hashlib.sha256(values).hexdigest(), flush=True)
    if what == "fail":
        sys.stdin.readline()
        raise ValueError("on purpose")
    if what == "train":
        step()


if __name__ == "__main__":
    main(*sys.argv[1:])
