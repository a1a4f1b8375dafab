# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A program of a worker that trains and obeys commands; `test_exit.py` runs it.

python tests/cluster/shard_update/worker_program.py {end,first_use,stock} [{exit,default}]

The first word says where the new weights are gathered, or that nothing is sharded. After three
steps it takes one command a line: "read" all variables, also by a checkpoint; "step", which nobody
else may join; "loop", a function of steps without an end, which says when it is in the fifth one;
"fail" by an exception; or "end". The second word says what SIGTERM does: it ends the program
in a handler of its own, or by its default action; else TensorFlow's notifier of preemptions has it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import tempfile

import tensorflow as tf

import tf_fuse  # noqa: F401  (adds the option)


def main(gather: str, sigterm: str = "") -> None:
    """Trains, then obeys the command."""
    if gather != "stock":
        tf.config.optimizer.set_experimental_options(
            {
                "shard_weight_update": True,
                "shard_weight_update_always": True,
                "shard_weight_update_gather": gather,
            }
        )
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if sigterm:
        # (The strategy has set TensorFlow's handler.)
        signal.signal(signal.SIGTERM, _handle if sigterm == "exit" else signal.SIG_DFL)
    pairs = [_variables(strategy, rows) for rows in (30, 7)]
    # Each has parts of its own.
    steps = [tf.function(_step_of(strategy, *pair)) for pair in pairs]

    @tf.function
    def loop() -> None:
        step = _step_of(strategy, *pairs[0])
        for i in tf.range(10**9):
            step()
            if i == 5:
                tf.print("loops")

    for _ in range(3):
        for step in steps:
            step()
    print("trained", flush=True)
    for line in sys.stdin:
        if line in ("step\n", "loop\n"):
            print("begins", flush=True)
            try:
                (steps[0] if line == "step\n" else loop)()
            except tf.errors.OpError as error:
                print(type(error).__name__, flush=True)
        if line == "read\n":
            try:
                print(_read([variable for pair in pairs for variable in pair]), flush=True)
            except tf.errors.OpError as error:
                print(type(error).__name__, flush=True)
        if line == "fail\n":
            raise ValueError("on purpose")
        if line == "end\n":
            return


def _handle(number: int, frame: object) -> None:
    os.write(1, b"handled\n")  # The signal may come within a print, which cannot be entered twice.
    sys.exit(3)


def _variables(strategy: tf.distribute.Strategy, rows: int) -> tuple[tf.Variable, tf.Variable]:
    with strategy.scope():
        values = tf.reshape(tf.range(10.0 * rows), [rows, 10])
        return tf.Variable(values / (10.0 * rows)), tf.Variable(tf.zeros([rows, 10]))


def _step_of(strategy: tf.distribute.Strategy, weight: tf.Variable, slot: tf.Variable):
    def replica() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(weight)) ** 2
        gradient = tape.gradient(loss, weight)
        total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)

        def update(variable: tf.Variable, momentum: tf.Variable, g: tf.Tensor) -> None:
            momentum.assign(0.9 * momentum + g)
            variable.assign_sub(0.01 * momentum)

        update(weight, slot, total)

    return lambda: strategy.run(replica)


def _read(variables: list[tf.Variable]) -> str:
    """A digest of some variables' values, which a checkpoint has too."""
    with tempfile.TemporaryDirectory() as folder:
        objects = {str(i): variable for i, variable in enumerate(variables)}
        reader = tf.train.load_checkpoint(tf.train.Checkpoint(**objects).write(f"{folder}/saved"))
        saved = [reader.get_tensor(f"{i}/.ATTRIBUTES/VARIABLE_VALUE").tobytes() for i in objects]
    assert saved == [variable.numpy().tobytes() for variable in variables]
    return hashlib.sha256(b"".join(saved)).hexdigest()


if __name__ == "__main__":
    main(*sys.argv[1:])
