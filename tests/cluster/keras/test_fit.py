# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`fit`, `evaluate` and `predict` of Keras 3 on parameter servers.

With one worker all values are those of Keras in one process without a strategy, to the last bit.
"""

import functools
import sys

import pytest

from tests.fault import coordinator
from tests.slow_cases import slow

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

# Each with its steps per execution.
_CASES = {
    "mlp": 1,
    "wide & deep": 3,
    "two outputs": 1,
    "own train_step": 3,
    "recurrent": 1,
    "attention": 2,
    "mlp, steps together": 3,
}


@pytest.fixture(scope="module")
def runs():
    """A function that returns what a mode gives, which runs once."""
    return functools.cache(lambda mode: coordinator.run(__file__, mode))


@pytest.mark.parametrize("mode", [slow("off"), "on"])
@pytest.mark.parametrize("name", _CASES)
def test_values_are_those_of_one_process(runs, name, mode):
    expected, here = (runs(one)[name] for one in ("one process", mode))
    assert "raised" not in expected and "raised" not in here, (expected, here)
    for what in ("history", "evaluated", "predicted", "variables"):
        assert here[what] == expected[what], what


@pytest.mark.parametrize(("name", "steps"), _CASES.items())
def test_callbacks_are_called_as_in_one_process(runs, name, steps):
    expected, here = (runs(one)[name]["calls"] for one in ("one process", "on"))
    assert here == expected
    assert ["on_train_batch_end", steps - 1] in [call[:2] for call in here]


def _main(mode):
    import keras
    import tensorflow as tf

    from tests.cluster.keras import fit_models

    keras.config.disable_interactive_logging()
    if mode == "one process":
        scope = tf.distribute.get_strategy().scope
    else:
        job = coordinator.Job("off", 1, 2)
        import tf_fuse.keras  # noqa: F401  (has Keras run its steps on workers)

        tf.config.optimizer.set_experimental_options({"tf_fuse": mode == "on"})
        scope = job.strategy.scope

    class Calls(keras.callbacks.Callback):
        """Notes how callbacks are called: name, number, names in the logs."""

        def __init__(self):
            super().__init__()
            self.made = []

        def __getattribute__(self, name):
            if not name.startswith("on_"):
                return super().__getattribute__(name)

            def note(*args, logs=None):
                numbers = [one for one in args if isinstance(one, int)]
                given = next((one for one in args if isinstance(one, dict)), logs)
                self.made.append([name, *numbers, sorted(given or {})])

            return note

    def case(name, steps):
        def run():
            keras.backend.clear_session()
            keras.utils.set_random_seed(3)
            calls = Calls()
            with scope():
                model, data = fit_models.MODELS[name.partition(",")[0]]()
                model.steps_per_execution = steps
            given = {key: data[key] for key in ("x", "y", "batch_size") if key in data}
            history = model.fit(
                **data, epochs=2, verbose=0, callbacks=[calls], validation_data=_validation(given)
            )
            evaluated = model.evaluate(**given, verbose=0, return_dict=True)
            inputs = {key: given[key] for key in ("x", "batch_size") if key in given}
            predicted = model.predict(**inputs, verbose=0)
            variables = [*model.variables, *model.optimizer.variables]
            return {
                "history": coordinator.exact(history.history),
                "evaluated": coordinator.exact(evaluated),
                "predicted": coordinator.exact(predicted),
                "variables": coordinator.exact([keras.ops.convert_to_numpy(v) for v in variables]),
                "calls": calls.made,
            }

        return run

    coordinator.finish({name: case(name, steps) for name, steps in _CASES.items()})


def _validation(given):
    """What `fit` takes as validation data: a tuple, or one dataset."""
    return (given["x"], given["y"]) if "y" in given else given["x"]


if __name__ == "__main__":
    _main(*sys.argv[1:])
