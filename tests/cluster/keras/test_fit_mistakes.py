# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mistakes in programs that call `fit` under `ParameterServerStrategy`, and the message of each.

The cluster runs stock TensorFlow's protocol `grpc`, with which `fit` works as well.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from unittest import mock

import pytest

from tests.fault import coordinator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_NO_SCOPE = (
    "the model was not made under strategy.scope() of this ParameterServerStrategy: make it, and "
    "compile it, in `with strategy.scope():`"
)
_EAGERLY = (
    "run_eagerly=True does not work under ParameterServerStrategy: workers run tf.functions; "
    "compile the model with run_eagerly=False, and do not call "
    "tf.config.run_functions_eagerly(True)"
)
_UPDATES = (
    "train_step updates variables in a tf.function or a loop of TensorFlow, which no strategy can "
    "trace: leave out @tf.function (fit makes one function of each step), write loops in Python"
)
_REMEDY = (
    "make the model's layers, its optimizer and its metrics, and call it first, in "
    "`with strategy.scope():`"
)
_TEXTS = {
    "compiled in scope, made outside": _NO_SCOPE,
    "fit in scope, made outside": _NO_SCOPE,
    "optimizer made outside": (
        "2 variables are not on parameter servers (adam/iteration, adam/learning_rate): " + _REMEDY
    ),
    "metric made outside": (
        "2 variables are not on parameter servers (mean_absolute_error/total, "
        "mean_absolute_error/count): " + _REMEDY
    ),
    "layers made outside": (
        "4 variables are not on parameter servers (first/kernel, first/bias, second/kernel, "
        "...): " + _REMEDY
    ),
    "called outside": (
        "2 variables are not on parameter servers (unbuilt/dense/kernel, unbuilt/dense/bias): "
        + _REMEDY
    ),
    **dict.fromkeys(("run_eagerly", "run_functions_eagerly"), _EAGERLY),
    "two GPUs": (
        "each worker has 2 GPUs, but fit gives each batch to one device: start one worker for "
        "each GPU, with CUDA_VISIBLE_DEVICES=<its number>"
    ),
    "distributed dataset": (
        "model.fit under ParameterServerStrategy takes a tf.data.Dataset, not one that "
        "strategy.experimental_distribute_dataset has made"
    ),
    "metric in a function": (
        "a tf.function that train_step or test_step calls keeps a tensor of an earlier trace, as "
        "it does if it reads a metric: call result() and update_state() outside of the function, "
        "and give it what they return"
    ),
    **dict.fromkeys(("step in a function", "update in a function", "update in a loop"), _UPDATES),
    "endless dataset": "the dataset is endless: give steps_per_epoch (or steps)",
    "endless dataset, evaluate": "the dataset is endless: give steps_per_epoch (or steps)",
}


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


@pytest.mark.parametrize(("what", "text"), _TEXTS.items())
def test_a_mistake_is_named_with_its_remedy(cases, what, text):
    assert cases[what] == {"raised": "ValueError", "text": text}


def test_a_step_returns_logs(cases):
    assert cases["no logs"] == {
        "raised": "TypeError",
        "text": "train_step or test_step of silent returned None: return a dict of logs, such as "
        "self.get_metrics_result()",
    }


def test_a_model_that_is_compiled_outside_of_the_scope_trains(cases):
    """Keras's own error would be that strategies are mixed."""
    assert cases["compiled outside"] == cases["compiled in scope"]
    assert isinstance(cases["compiled in scope"], float)


def test_data_without_a_batch_ends_an_epoch_as_in_one_process(cases):
    assert cases["no batch"] == {"fit": {}, "evaluate": [], "then": cases["compiled in scope"]}


def test_data_that_is_too_short_is_named_with_its_remedy(cases):
    """As in one process: the epoch ends, and Keras says what to write."""
    here, expected = cases["too short"]["servers"], cases["too short"]["one process"]
    assert here == expected
    for found in here.values():
        assert len(found["losses"]) == 2
        assert len(found["warnings"]) == 3  # two epochs and an evaluation
        assert all(
            "`.repeat()`" in text and "ran out of data" in text for text in found["warnings"]
        )


def test_two_threads_do_not_train_one_model(cases):
    """The thread that trains it does not notice."""
    text = (
        "fit or evaluate of shared runs in another thread: run one after the other, or train a "
        "model of its own in each thread"
    )
    assert cases["threads"] == {"other": ["RuntimeError", text], "own": 2, "then": 2}


def test_a_model_without_scope_trains_with_a_warning(cases):
    assert cases["no scope"] == [
        "local trains in this process alone: to train it on the workers of the "
        "ParameterServerStrategy, make it in `with strategy.scope():`"
    ]


@pytest.mark.parametrize("job", ["worker", "ps"])
def test_the_strategy_is_not_made_by_a_worker(job, isolated_env):
    addresses = {"worker": ["localhost:1"], "ps": ["localhost:2"], "chief": ["localhost:3"]}
    config = {"cluster": addresses, "task": {"type": job, "index": 0}, "rpc_layer": "grpc+fuse"}
    program = (
        "import tensorflow as tf, tf_fuse.keras\n"
        "resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()\n"
        "tf.distribute.ParameterServerStrategy(resolver)\n"
    )
    assert _last_line(program, {**isolated_env, "TF_CONFIG": json.dumps(config)}) == (
        f"ValueError: this process is task 0 of the job {job!r}: it runs "
        "tf.distribute.Server(...).join(), and only the coordinator (job 'chief') makes the "
        "strategy and calls fit"
    )


def test_keras_runs_on_tensorflow(isolated_env):
    # (Without JAX, Keras cannot be imported with this backend.)
    program = "import keras\nkeras.backend.backend = lambda: 'jax'\nimport tf_fuse.keras\n"
    assert _last_line(program, isolated_env) == (
        "RuntimeError: tf_fuse.keras needs Keras on TensorFlow, but its backend is 'jax': set "
        "KERAS_BACKEND=tensorflow"
    )


def _last_line(program, env):
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**env, "PYTHONPATH": os.fspath(coordinator._ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


def _main():
    import keras
    import numpy as np
    import tensorflow as tf

    job = coordinator.Job("off", 1, 1, protocol="grpc")
    import tf_fuse.keras  # noqa: F401  (makes Keras run its steps on workers)

    scope = job.strategy.scope
    x = np.ones([8, 3], np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4)

    def made(**more):
        keras.utils.set_random_seed(1)
        return keras.Sequential([keras.Input([3]), keras.layers.Dense(1)], **more)

    def in_scope(**more):
        with scope():
            model = made()
            model.compile("adam", "mse", **more)
        return model

    def compiled_in_scope():
        model = made()
        with scope():
            model.compile("adam", "mse")

    def fit_in_scope():
        model = made()
        model.compile("adam", "mse")
        with scope():
            model.fit(dataset, verbose=0)

    def optimizer_outside():
        optimizer = keras.optimizers.Adam(name="adam")
        with scope():
            made().compile(optimizer, "mse")

    def metric_outside():
        with scope():
            model = made()
        model.compile("adam", "mse", metrics=[keras.metrics.MeanAbsoluteError()])

    def layers_outside():
        layers = [keras.layers.Dense(2, name="first"), keras.layers.Dense(1, name="second")]
        for layer, size in zip(layers, (3, 2), strict=True):
            layer.build([None, size])
        with scope():
            keras.Sequential([keras.Input([3]), *layers]).compile("adam", "mse")

    def called_outside():
        with scope():
            model = keras.Sequential([keras.layers.Dense(1, name="dense")], name="unbuilt")
            model.compile("adam", "mse")
        model(x)
        model.fit(dataset, verbose=0)

    def no_batch():
        model = in_scope()
        return {
            "fit": model.fit(dataset.take(0), verbose=0).history,
            "evaluate": model.evaluate(dataset.take(0), verbose=0),
            "then": model.fit(dataset, verbose=0).history["loss"][0],
        }

    def too_short(scope):
        """Two batches; of the second dataset, Keras does not know the length."""
        found = {}
        for name, data in {"known": dataset, "unknown": dataset.filter(lambda *_: True)}.items():
            with scope():
                model = made()
                model.compile("sgd", "mse")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                fitted = model.fit(data, epochs=2, steps_per_epoch=5, shuffle=False, verbose=0)
                evaluated = model.evaluate(data, steps=5, verbose=0)
            texts = [str(one.message) for one in caught if one.category is UserWarning]
            losses = fitted.history["loss"]
            found[name] = {"losses": losses, "evaluated": evaluated, "warnings": texts}
        return found

    def run_functions_eagerly():
        model = in_scope()
        tf.config.run_functions_eagerly(True)
        try:
            model.fit(dataset, verbose=0)
        finally:
            tf.config.run_functions_eagerly(False)

    def two_gpus():
        kind = type(job.strategy)
        with mock.patch.object(kind, "num_replicas_in_sync", mock.PropertyMock(return_value=2)):
            in_scope().fit(dataset, verbose=0)

    class Counter(keras.Model):
        """Counts rows; a tf.function of its own reads the count."""

        def __init__(self):
            super().__init__()
            self.rows = keras.metrics.Sum(name="rows")
            self.count = tf.function(lambda: 2.0 * self.rows.result())

        def call(self, x):
            return x

        def train_step(self, data):
            self.rows.update_state(tf.ones([tf.shape(data[0])[0]]))
            return {"twice": self.count()}

    def metric_in_a_function():
        with scope():
            model = Counter()
            model.compile()
        model.fit(dataset, verbose=0)

    class InFunction(keras.Model):
        def __init__(self, **more):
            super().__init__(**more)
            self.layer = keras.layers.Dense(1)

        def call(self, x):
            return self.layer(x)

        @tf.function
        def train_step(self, data):
            return super().train_step(data)

    class Updates(InFunction):
        def __init__(self):
            super().__init__()
            self.update = tf.function(super(InFunction, self).train_step)

        def train_step(self, data):
            return self.update(data)

    class Loops(InFunction):
        def train_step(self, data):
            train = super(InFunction, self).train_step
            tf.while_loop(lambda i: i < 2, lambda i: [train(data) and i + 1], [0])

    class Silent(InFunction):
        def train_step(self, data):
            pass

    def fit_model(make):
        with scope():
            model = make()
            model.compile("adam", "mse")
        model.fit(dataset, verbose=0)

    def compiled(where):
        with scope():
            model = made()
            if where == "in scope":
                model.compile("adam", "mse", metrics=["mae"])
        if where == "outside":
            model.compile("adam", "mse", metrics=["mae"])
        return model.fit(dataset, verbose=0).history["loss"][0]

    def threads():
        """A callback calls fit in another thread, in the middle of an epoch."""
        model, errors = in_scope(), []
        model.name = "shared"

        def fit():
            try:
                model.fit(dataset, verbose=0)
            except Exception as error:
                errors.extend([type(error).__name__, str(error)])

        class Fit(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if batch == 0 and not errors:
                    other = threading.Thread(target=fit)
                    other.start()
                    other.join()

        own = model.fit(dataset, epochs=2, verbose=0, callbacks=[Fit()])
        then = model.fit(dataset, epochs=2, verbose=0)
        return {"other": errors, "own": len(own.epoch), "then": len(then.epoch)}

    def no_scope():
        said = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: said.append(record.getMessage())
        model = made(name="local")
        model.compile("adam", "mse")
        logging.getLogger("tf_fuse").addHandler(handler)
        model.fit(dataset, verbose=0)
        model.evaluate(dataset, verbose=0)
        logging.getLogger("tf_fuse").removeHandler(handler)
        return said

    distributed = job.strategy.experimental_distribute_dataset
    coordinator.finish(
        {
            "compiled in scope, made outside": compiled_in_scope,
            "fit in scope, made outside": fit_in_scope,
            "optimizer made outside": optimizer_outside,
            "metric made outside": metric_outside,
            "layers made outside": layers_outside,
            "called outside": called_outside,
            "no batch": no_batch,
            "too short": lambda: {
                "servers": too_short(scope),
                "one process": too_short(contextlib.nullcontext),
            },
            "run_eagerly": lambda: in_scope(run_eagerly=True).fit(dataset, verbose=0),
            "run_functions_eagerly": run_functions_eagerly,
            "two GPUs": two_gpus,
            "metric in a function": metric_in_a_function,
            "step in a function": lambda: fit_model(InFunction),
            "update in a function": lambda: fit_model(Updates),
            "update in a loop": lambda: fit_model(Loops),
            "no logs": lambda: fit_model(lambda: Silent(name="silent")),
            "distributed dataset": lambda: in_scope().fit(distributed(dataset), verbose=0),
            "endless dataset": lambda: in_scope().fit(dataset.repeat(), verbose=0),
            "endless dataset, evaluate": lambda: in_scope().evaluate(dataset.repeat(), verbose=0),
            "compiled in scope": lambda: compiled("in scope"),
            "compiled outside": lambda: compiled("outside"),
            "threads": threads,
            "no scope": no_scope,
        }
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
