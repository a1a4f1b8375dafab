# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps of a job that fail, or that wait inside a fused receive for what a queue will bring."""

from __future__ import annotations

from typing import Any

from tests.fault import coordinator


class QueueSteps:
    """Functions over variables of all servers, and over a queue on the first.

    Attributes:
      variables: scalars 0, 1, ..., 11.
      tables: six of them, of four rows.
      entered: how many steps have begun to wait.
      queue: what they wait for.
      step: the sum of the variables.
      fails: takes rows of the tables; none is there for an index of 4 or more.
      blocks: `step`, and what the server makes of an element of the queue: nine times its value.
    """

    def __init__(self, job: coordinator.Job):
        """Makes the variables and the queue."""
        import tensorflow as tf

        self._job = job
        self.variables = vs = job.variables([float(i) for i in range(12)])
        self.tables = tables = job.variables([[0.0, 1.0, 2.0, 3.0]] * 6)
        self.entered = entered = job.variables([0])[0]
        with tf.device("/job:ps/replica:0/task:0"):
            self.queue = queue = tf.queue.FIFOQueue(
                4, [tf.float32], shapes=[[]], shared_name="never_filled"
            )

        @tf.function
        def step():
            return tf.add_n([v.read_value() for v in vs])

        @tf.function
        def fails(first):
            return tf.add_n([tf.gather(t, [first + i]) for i, t in enumerate(tables)])

        @tf.function
        def blocks():
            with tf.device("/job:ps/replica:0/task:0"):
                with tf.control_dependencies([entered.assign_add(1)]):
                    value = queue.dequeue()
                values = [value * 2.0, value * 3.0, value * 4.0]
            return tf.add_n([v.read_value() for v in vs]) + tf.add_n(values)

        self.step, self.fails, self.blocks = step, fails, blocks

    def run(self, count: int) -> list[float]:
        """Runs `step` so often, and returns what it gave."""
        results = [self._job.coordinator.schedule(self.step) for _ in range(count)]
        self._job.coordinator.join()
        return [float(result.fetch()) for result in results]

    def enter(self, function: Any, count: int) -> tuple[list[Any], bool]:
        """Starts steps that wait; returns them, and whether all have begun to."""
        before = int(self.entered.numpy())
        results = [self._job.coordinator.schedule(function) for _ in range(count)]
        is_in = coordinator.wait_until(lambda: int(self.entered.numpy()) >= before + count)
        return results, bool(is_in)

    def empty_queue(self) -> None:
        """Takes what no step took."""
        if size := int(self.queue.size()):
            self.queue.dequeue_up_to(size)
