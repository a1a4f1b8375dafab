# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`fit`, `evaluate` and `predict` of Keras 3 on parameter servers.

With one worker all values are those of Keras in one process without a strategy, and those of a
custom loop on the same servers, to the last bit.
"""

import functools
import sys

import pytest

from tests.fault import coordinator
from tests.slow_cases import slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

# The steps per execution of each model.
_STEPS = {
    "wide & deep": 3,
    "MLP": 2,
    "own train_step": 1,
    "running metric": 1,
    "metric in a step": 2,
    "partitioned": 1,
    "accumulated": 2,
    "float16": 1,
    "DLRM": 1,
    "DeepFM": 2,
    "DIN": 1,
    "MMoE": 1,
    "two towers": 3,
    "ResNet": 1,
    "LSTM": 1,
    "Transformer": 2,
    "preprocessing": 1,
}
_DEFAULT = [
    "wide & deep", "own train_step", "metric in a step", "partitioned", "accumulated", "float16",
]  # fmt: skip
# Of these, by default also trained by a custom loop, and without a cluster after the import.
_ALSO_BY_LOOP = ["wide & deep", "own train_step"]
_ALONE = ["wide & deep", "metric in a step"]
_EPOCHS = 2
# With the options off, a Keras 3 variable in parts is stock's, which Keras cannot train.
_NAMES_AND_MODES = [
    (name, mode)
    for name in _STEPS
    for mode in ("on", "off")
    if (name, mode) != ("partitioned", "off")
]
_LOOP = "{}, loop".format


def _group(name):
    """Which models run in one process, one after the other."""
    return "ResNet" if name.startswith("ResNet") else "others"


def _slow(mode, group):
    """Cases of a group that only slow tests ask for."""
    names = [name for name in _STEPS if _group(name) == group]
    fast = _ALONE if mode == "imported" else _DEFAULT
    slow = [name for name in names if name not in fast]
    if mode in ("on", "off"):
        slow += [_LOOP(name) for name in names if mode == "off" or name not in _ALSO_BY_LOOP]
    return slow


@pytest.fixture(scope="module")
def runs():
    """A function that returns what a model gave in a mode; models run together, once."""

    @functools.cache
    def run(mode, group):
        return coordinator.Cases(__file__, mode, group, slow=_slow(mode, group), seconds=850)

    return lambda mode, name: run(mode, _group(name))[name]


@pytest.mark.parametrize(
    ("name", "mode"),
    slow_but(_NAMES_AND_MODES, lambda case: case[0] in _DEFAULT and case[1] == "on"),
)
def test_values_are_those_of_one_process(runs, name, mode):
    expected, here = runs("one process", name), runs(mode, name)
    assert "raised" not in expected and "raised" not in here, (expected, here)
    for what in ("history", "evaluated", "predicted", "variables"):
        assert here[what] == expected[what], what


@pytest.mark.parametrize(
    ("name", "mode"),
    slow_but(_NAMES_AND_MODES, lambda case: case[0] in _ALSO_BY_LOOP and case[1] == "on"),
)
def test_values_are_those_of_a_custom_loop(runs, name, mode):
    here, loop = runs(mode, name), runs(mode, _LOOP(name))
    assert "raised" not in loop, loop
    assert loop["history"].items() <= here["history"].items()
    assert "loss" in loop["history"]
    assert loop["variables"] == here["trained"]


def test_the_partitioned_table_is_on_both_servers(runs):
    assert runs("on", "partitioned")["parts"] == [2, 1, 1]
    assert runs("one process", "partitioned")["parts"] == [1, 1, 1]


@pytest.mark.parametrize("name", slow_but(list(_STEPS)[:8], _ALONE.__contains__))
def test_the_import_leaves_models_without_a_cluster_alone(runs, name):
    assert "raised" not in runs("imported", name)
    assert runs("imported", name) == runs("one process", name)


@pytest.mark.parametrize("name", slow_but(list(_STEPS)[:8], _DEFAULT.__contains__))
def test_callbacks_are_called_as_in_one_process(runs, name):
    expected, here = (runs(mode, name)["calls"] for mode in ("one process", "on"))
    assert here == expected
    assert ["on_train_batch_end", _STEPS[name] - 1] in [call[:2] for call in here]


def _main(mode, group):
    import keras
    import tensorflow as tf

    from tests.cluster.keras import fit_case, fit_models

    keras.config.disable_interactive_logging()
    if group == "ResNet":
        # Grappler adds its gradients in an order that depends on the names of operations.
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    strategies = {}
    if mode != "one process":
        import tf_fuse.keras  # noqa: F401  (makes Keras run steps on workers, if there are any)
    if mode in ("on", "off"):
        job = coordinator.Job("off", 1, 2)
        tf.config.optimizer.set_experimental_options({"tf_fuse": mode == "on"})
        partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(512, max_shards=2)
        divides = tf.distribute.ParameterServerStrategy(
            job.cluster.resolver(), variable_partitioner=partitioner
        )
        strategies = dict.fromkeys(_STEPS, job.strategy) | {"partitioned": divides}

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

    def made(name):
        keras.backend.clear_session()
        keras.utils.set_random_seed(3)
        with strategies.get(name, tf.distribute.get_strategy()).scope():
            return fit_models.MODELS[name]()

    def variables(model):
        """The bits of all of them in turn, as those of a table's parts lie."""
        every = [*model.variables, *model.optimizer.variables]
        parts = coordinator.exact([keras.ops.convert_to_numpy(one) for one in every])
        return "".join(bits for _, _, bits in parts)

    def run(name):
        calls = Calls()
        case = made(name)
        model = case.model
        model.steps_per_execution = _STEPS[name]
        given = case.given(is_training=False)
        history = model.fit(
            **case.given(is_training=True),
            epochs=_EPOCHS,
            verbose=0,
            callbacks=[calls],
            validation_data=(given["x"], given["y"]) if "y" in given else given["x"],
        )
        trained = variables(model)
        evaluated = model.evaluate(**given, verbose=0, return_dict=True)
        inputs = {key: given[key] for key in ("x", "batch_size") if key in given}
        predicted = model.predict(**inputs, verbose=0)
        return {
            "history": coordinator.exact(history.history),
            "trained": trained,
            "evaluated": coordinator.exact(evaluated),
            "predicted": coordinator.exact(predicted),
            "variables": variables(model),
            "calls": calls.made,
            "parts": [len(getattr(one.value, "variables", [one])) for one in model.weights],
        }

    def loop(name):
        case = made(name)
        one = tf.distribute.coordinator.ClusterCoordinator(strategies[name])
        history = fit_case.train(case, one, _EPOCHS)
        return {"history": coordinator.exact(history), "variables": variables(case.model)}

    names = [name for name in _STEPS if _group(name) == group]
    cases = {name: functools.partial(run, name) for name in names}
    if strategies:
        cases |= {_LOOP(name): functools.partial(loop, name) for name in names}
    coordinator.finish(cases, _slow(mode, group))


if __name__ == "__main__":
    _main(*sys.argv[1:])
