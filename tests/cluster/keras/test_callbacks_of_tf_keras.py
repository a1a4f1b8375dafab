# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Callbacks are called as by `fit` of tf_keras on parameter servers, with the same keys in logs."""

import sys

import pytest

from tests.fault import coordinator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_EPOCHS, _STEPS, _ROWS, _BATCH = 2, 4, 32, 8


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


@pytest.mark.parametrize("steps", [1, 2])
def test_calls_are_those_of_tf_keras(cases, steps):
    assert cases[f"keras, {steps}"] == cases[f"tf_keras, {steps}"]


def _main():
    import keras
    import numpy as np
    import tensorflow as tf
    import tf_keras

    job = coordinator.Job("off", 1, 1)
    import tf_fuse.keras  # noqa: F401  (makes Keras run its steps on workers)

    tf.config.optimizer.set_experimental_options({"tf_fuse": True})
    x = np.ones([_ROWS, 3], np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(_BATCH).repeat()

    def calls(package, steps):
        made = []

        class Calls(package.callbacks.Callback):
            """Notes each call: name, number, names in the logs."""

        for name in dir(package.callbacks.Callback):
            if name.startswith("on_"):

                def note(self, *args, logs=None, name=name):
                    numbers = [one for one in args if isinstance(one, int)]
                    for one in args:
                        logs = one if not isinstance(one, int) else logs
                    if hasattr(logs, "fetch"):  # RemoteValue
                        logs = logs.fetch()
                    made.append([name, *numbers, sorted(logs or {})])

                setattr(Calls, name, note)

        callback = Calls()
        callback._supports_tf_logs = True  # Or tf_keras refuses calls of batches.
        package.utils.set_random_seed(3)
        with job.strategy.scope():
            layers = [package.layers.Dense(2), package.layers.Dense(1)]
            model = package.Sequential([package.Input([3]), *layers])
            model.compile("adam", "mse", metrics=["mae"], steps_per_execution=steps)
        model.fit(
            dataset,
            epochs=_EPOCHS,
            steps_per_epoch=_STEPS,
            validation_data=dataset,
            validation_steps=_STEPS,
            callbacks=[callback],
            verbose=0,
        )
        return made

    coordinator.finish(
        {
            f"{package.__name__}, {steps}": lambda package=package, steps=steps: calls(
                package, steps
            )
            for package in (keras, tf_keras)
            for steps in (1, 2)
        }
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
