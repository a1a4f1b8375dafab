# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Two workers, one held in the middle of an update of rows: torn in stock, each time, and not here.

Keras 3's Adagrad, Adadelta and RMSprop change their slots, look at all of one of them for zeros and
NaNs, and then change the weight, with the learning rate. The rate of one worker comes late.
"""

import sys
import threading

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_TIMES = 3
_OPTIMIZERS = ("Adadelta", "Adagrad", "RMSprop", "RMSprop momentum")


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_stock_tears_an_update_each_time(cases, name):
    for one in cases[f"stock {name}"]["seen"]:
        # A slot has changed, and the weight has not.
        assert one["held"] == "torn"
        assert one["between"] == "torn"


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_an_update_that_is_one_operation_is_never_torn(cases, name):
    found = cases[f"fuse_weight_update {name}"]
    assert found["seen"] == [{"held": "none", "between": "one", "behind": "two"}] * _TIMES
    # The table and its slots; and the counter of steps.
    assert found["variables"] == [1, {"Adadelta": 3, "RMSprop momentum": 3}.get(name, 2)]


def _main():
    import keras
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.eager import context as context_module

    from tf_fuse.shard_update import interception

    job = coordinator.Job("off", 2, 1)
    context = context_module.context()
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

    class Case:
        """A table, its optimizer, and a step for each worker."""

        def __init__(self, name):
            self.rate = Rate()
            cls, *momentum = name.split()
            options = {"momentum": 0.5} if momentum else {}
            with job.strategy.scope():
                self.table = tf.Variable(tf.zeros([16, 4]))
                self.entered = tf.Variable(0, trainable=False)
                self.optimizer = getattr(keras.optimizers, cls)(self.rate, **options)
                self.optimizer.build([self.table])
            self.state = [self.table, *self.optimizer.variables]
            self.first = [tf.convert_to_tensor(one) for one in self.state]

        def step_of(self, worker, is_late):
            @tf.function(autograph=False)
            def step():
                def replica():
                    self.rate.is_late = is_late
                    rows = tf.IndexedSlices(tf.ones([3, 4]), tf.constant([5, 2, 9]), [16, 4])
                    self.optimizer.apply_gradients([(rows, self.table)])
                    self.rate.is_late = False
                    return self.entered.assign_add(1)

                return job.strategy.run(replica)

            def run():
                with tf.device(f"/job:worker/replica:0/task:{worker}"):
                    step()

            return run

        def reset(self):
            for one, value in zip(self.state, self.first, strict=True):
                one.assign(value)
            self.entered.assign(0)

        def values(self):
            # (The counter of steps waits for no rate, and is changed by itself.)
            found = [one for one in self.state if one is not self.optimizer.iterations]
            return [np.asarray(tf.convert_to_tensor(one)).tobytes() for one in found]

    def run(name, is_on):
        tf.config.optimizer.set_experimental_options(
            {"fuse_weight_update": is_on, "do_fuse_recv": True}
        )
        before = len(interception.fuser_of(context).decisions)
        case = Case(name)
        plain, late = case.step_of(1, False), case.step_of(0, True)
        known = {"none": case.values()}
        for times in ("one", "two"):
            plain()
            known[times] = case.values()

        def seen():
            now = case.values()
            return next((times for times, values in known.items() if values == now), "torn")

        found = []
        for _ in range(_TIMES):
            case.reset()
            thread = threading.Thread(target=late)
            thread.start()
            # What does not wait for the rate is done now: in stock a slot's part is, too.
            coordinator.wait_until(lambda: int(case.entered.numpy()) == 1)
            if not is_on:
                coordinator.wait_until(lambda: seen() == "torn")
            result = {"held": seen()}
            plain()
            result["between"] = seen()
            queue.enqueue(0.125)
            thread.join()
            found.append(result | ({"behind": seen()} if is_on else {}))
        decided = interception.fuser_of(context).decisions[before:]
        variables = {len(fusion.variables) for one in decided for fusion in one.outline.clusters}
        return {"seen": found, "variables": sorted(variables)}

    cases = {}
    for name in _OPTIMIZERS:
        for who, is_on in (("stock", False), ("fuse_weight_update", True)):
            cases[f"{who} {name}"] = lambda name=name, is_on=is_on: run(name, is_on)
    coordinator.finish(cases)


if __name__ == "__main__":
    assert len(sys.argv) == 1
    _main()
