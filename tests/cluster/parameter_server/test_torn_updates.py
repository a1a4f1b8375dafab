# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Two workers, one held in the middle of its update: torn in stock, each time, and not here.

Keras 3's Adam assigns both of its moments and then, with the learning rate, the weight. The rate of
one worker comes late. Stock TensorFlow has changed the moments by then, and not the weight, when
another worker's update and a reader come by. An update that is one operation waits for all that it
needs.
"""

import sys
import threading

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_TIMES = 5


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


def test_stock_tears_an_update_each_time(cases):
    for one in cases["stock"]:
        assert one["held"] == {"moments": "one update", "weight": "none"}
        # The other worker's weight is made of moments of both updates.
        assert one["between"] == {"moments": "two updates", "weight": "torn"}


def test_an_update_that_is_one_operation_is_never_torn(cases):
    for one in cases["fuse_weight_update"]:
        assert one["held"] == {"moments": "none", "weight": "none"}
        assert one["between"] == {"moments": "one update", "weight": "one update, the second"}
        assert one["behind"]["moments"] == "two updates"


def _main():
    import keras
    import numpy as np
    import tensorflow as tf

    job = coordinator.Job("off", 2, 1)
    with tf.device("/job:worker/replica:0/task:0"):
        queue = tf.queue.FIFOQueue(1, [tf.float32], shapes=[[]], shared_name="rate")

    class Rate(keras.optimizers.schedules.LearningRateSchedule):
        """A rate that some functions wait for.

        Attributes:
          is_late: whether the function that is traced does.
        """

        is_late = False

        def __call__(self, step):
            return queue.dequeue() if self.is_late else tf.constant(0.125)

    rate = Rate()
    with job.strategy.scope():
        weight = tf.Variable(tf.zeros([64]))
        entered = tf.Variable(0, trainable=False)
        optimizer = keras.optimizers.Adam(rate)
        optimizer.build([weight])
    moments = [optimizer._momentums[0], optimizer._velocities[0]]

    def step_of(worker, is_late):
        @tf.function(autograph=False)
        def step():
            def replica():
                rate.is_late = is_late
                optimizer.apply_gradients([(tf.ones([64]), weight)])
                rate.is_late = False
                return entered.assign_add(1)

            return job.strategy.run(replica)

        def run():
            with tf.device(f"/job:worker/replica:0/task:{worker}"):
                step()

        return run

    def reset():
        for one in (weight, *moments, optimizer.iterations, entered):
            one.assign(tf.zeros(one.shape, one.dtype))

    def values():
        return [np.asarray(tf.convert_to_tensor(one)).tobytes() for one in (*moments, weight)]

    def case(is_on):
        def run():
            tf.config.optimizer.set_experimental_options(
                {"fuse_weight_update": is_on, "do_fuse_recv": True}
            )
            plain, late = step_of(1, False), step_of(0, True)
            reset()
            known = {"none": values()}
            for name in ("one update", "two updates"):
                plain()
                known[name] = values()
            # The counter of steps waits for no rate, so the held step is counted.
            reset()
            optimizer.iterations.assign(1)
            plain()
            known["one update, the second"] = values()
            return [interleaved(plain, late, known, is_on) for _ in range(_TIMES)]

        return run

    def interleaved(plain, late, known, is_on):
        def seen():
            now = values()

            def of(part):
                return next((n for n, one in known.items() if one[part] == now[part]), "torn")

            both = {of(0), of(1)}
            return {"moments": both.pop() if len(both) == 1 else "torn", "weight": of(2)}

        reset()
        thread = threading.Thread(target=late)
        thread.start()
        # What does not wait for the rate is done now: in stock the moments are, too.
        coordinator.wait_until(lambda: int(entered.numpy()) == 1)
        if not is_on:
            coordinator.wait_until(lambda: seen()["moments"] == "one update")
        result = {"held": seen()}
        plain()
        result["between"] = seen()
        queue.enqueue(0.125)
        thread.join()
        return result | {"behind": seen()}

    coordinator.finish({"stock": case(False), "fuse_weight_update": case(True)})


if __name__ == "__main__":
    assert len(sys.argv) == 1
    _main()
