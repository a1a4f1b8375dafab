# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`fit`, `evaluate` and `predict` of Keras 3 with two workers; errors; a worker that is lost."""

import contextlib
import logging
import re
import sys
import threading
from unittest import mock

import pytest

from tests.fault import coordinator
from tests.slow_cases import slow

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_ROWS, _BATCH, _EPOCHS = 30, 4, 3
_SLOW = ["seen, 1", "predicted, array", "lost worker, 1"]


# (`test_fit_functions` has one call in flight.)
@pytest.fixture(scope="module", params=[slow(1), 3], ids="in_flight={}".format)
def cases(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return coordinator.Cases(__file__, folder, request.param, slow=_SLOW, seconds=400)


@pytest.mark.parametrize("steps", [slow(1), 3])
def test_each_row_trains_once_per_epoch(cases, steps):
    assert cases[f"seen, {steps}"] == [_EPOCHS] * _ROWS


def test_a_generator_trains_on_each_row_once(cases):
    """Also if epochs are parts of it."""
    assert cases["seen, generator"] == [1] * _ROWS
    assert cases["seen, parts"] == [1] * (4 * _BATCH) + [0] * (_ROWS - 4 * _BATCH)


@pytest.mark.parametrize("kind", ["dataset", "generator"])
def test_logs_of_data_of_unknown_length_are_of_all_rows(cases, kind):
    """The steps that run when the data ends count, in each epoch."""
    found = cases[f"unknown length, {kind}"]
    logs = {"ids": float(sum(range(_ROWS))), "loss": sum(range(_ROWS)) / _ROWS}
    assert found["evaluated"] == logs
    for name, value in logs.items():
        assert found["trained"][name] == [value] * len(found["trained"][name])
        assert found["trained"][f"val_{name}"] == found["trained"][name]
    assert len(found["trained"]["ids"]) == {"dataset": _EPOCHS, "generator": 1}[kind]


def test_xla_is_off_with_a_reason(cases):
    assert cases["jit_compile"] == {
        "warnings": [
            "jit_compile is off for row_counter: XLA cannot compile functions that read variables "
            "of other tasks"
        ],
        "seen": [1] * _ROWS,
    }


def test_nothing_is_warned_of(cases):
    assert cases["warnings"] == []


def test_steps_per_epoch_counts_the_steps_of_all_workers(cases):
    """Of a dataset that repeats; what an epoch leaves, the next one takes."""
    assert sum(cases["repeated"]) == 2 * 5 * _BATCH
    assert max(cases["repeated"]) - min(cases["repeated"]) == 1


def test_evaluation_counts_each_row_once(cases):
    """Of many steps of two workers: none is lost between another one's read and assignment."""
    expected = {"loss": sum(range(_ROWS)) / _ROWS, "ids": 10 * sum(range(_ROWS))}
    assert cases["evaluated"] == [expected] * 5


@pytest.mark.parametrize("how", [slow("array"), "dataset", "batch"])
def test_predictions_are_in_order(cases, how):
    assert cases[f"predicted, {how}"] == [2.0 * i for i in range(_ROWS)]


def test_the_logs_of_one_batch_are_its_own(cases):
    assert cases["one batch"] == {"trained": [1.0, 2.0], "tested": [3.0, 4.0]}


def test_metrics_count_each_step_once_if_a_worker_is_lost_with_what_it_returned(cases):
    """Each step adds four rows of ones; the call that was lost has trained, and trains again."""
    lost = cases["lost results"]
    assert lost["killed"] == 1
    assert lost["ids"] == 4 * 60
    under_way = 2 * (cases["in flight"] + 1)
    assert 4 * 60 < lost["trained"] <= 4 * (60 + under_way)


def test_callbacks_read_metrics_within_an_epoch(cases):
    """Not only in the logs: their variables have the sums."""
    found = cases["variables"]
    later = [one for one in found if one["log"] > found[0]["log"]]
    assert later
    assert [one["variable"] for one in later] == [one["log"] for one in later]


def test_a_saved_model_loads_in_one_process(cases):
    assert cases["saved"]["there"] == cases["saved"]["here"] != cases["saved"]["untrained"]


def test_a_model_needs_no_call(cases):
    """As a GAN: its step calls its layers."""
    assert cases["no call"] == [1.0, 0.0625]


def test_a_step_that_fails_ends_fit_and_no_later_one(cases):
    assert cases["failed step"] == {"raised": "InvalidArgumentError", "code": 3, "then": 1}


@pytest.mark.parametrize("steps", [slow(1), 3])
def test_a_lost_worker_costs_its_call(cases, steps):
    """Another worker runs its steps again: each row trains at least once, and counts once."""
    lost = cases[f"lost worker, {steps}"]
    assert lost["ids"] == [float(sum(range(_ROWS)))] * _EPOCHS
    assert min(lost["seen"]) >= _EPOCHS
    assert sum(lost["seen"]) <= _EPOCHS * _ROWS + (cases["in flight"] + 1) * steps * _BATCH
    assert lost["predicted"] == [2.0 * i for i in range(_ROWS)]


def test_uninstalled_it_fails_as_in_keras(cases):
    assert cases["uninstalled"]["raised"] == "ValueError"
    assert "create_per_worker_dataset" in cases["uninstalled"]["text"]


def _main(folder, in_flight):
    import keras
    import numpy as np
    import tensorflow as tf

    import tf_fuse.keras
    from tests.cluster.keras.row_counter import RowCounter
    from tf_fuse._tensorflow.variables import coordinator_results
    from tf_fuse.keras import steps as keras_steps

    tf.config.optimizer.set_experimental_options({"tf_fuse": True, "steps_in_flight": in_flight})
    job = coordinator.Job("off", 2, 1)
    ids = np.arange(_ROWS, dtype=np.int32)

    def model(steps=1, **more):
        with job.strategy.scope():
            one = RowCounter(_ROWS)
            one.compile(steps_per_execution=steps, **more)
        return one

    def dataset(rows=ids):
        return tf.data.Dataset.from_tensor_slices(rows).batch(_BATCH)

    warnings = []

    class Handler(logging.Handler):
        def emit(self, record):
            warnings.append(record.getMessage())

    tf.get_logger().addHandler(Handler(logging.WARNING))
    logging.getLogger("tf_fuse").addHandler(Handler(logging.WARNING))

    def each_once(steps):
        one = model(steps)
        one.fit(dataset(), epochs=_EPOCHS, verbose=0)
        return one.counts()

    def batches():
        return ((ids[i : i + _BATCH],) for i in range(0, _ROWS, _BATCH))

    def generated(**more):
        one = model()
        one.fit(batches(), verbose=0, **more)
        return one.counts()

    def unknown_length(kind):
        one = model()

        def data():
            return dataset().filter(lambda rows: True) if kind == "dataset" else batches()

        epochs = _EPOCHS if kind == "dataset" else 1
        history = one.fit(data(), validation_data=data(), epochs=epochs, verbose=0).history
        return {"trained": history, "evaluated": one.evaluate(data(), verbose=0, return_dict=True)}

    def jit_compiled():
        keras.backend.clear_session()
        one = model(jit_compile=True)
        before = len(warnings)
        one.fit(dataset(), verbose=0)
        said, warnings[before:] = warnings[before:], []
        return {"warnings": said, "seen": one.counts()}

    def repeated():
        one = model()
        one.fit(dataset().unbatch().repeat().batch(_BATCH), epochs=2, steps_per_epoch=5, verbose=0)
        return one.counts()

    def evaluated():
        one = model()
        rows = tf.data.Dataset.from_tensor_slices(np.tile(ids, 10)).batch(1)
        return [one.evaluate(rows, verbose=0, return_dict=True) for _ in range(5)]

    def predicted(how):
        one = model(steps=2)
        if how == "batch":
            return one.predict_on_batch(ids).tolist()
        given = {"x": ids, "batch_size": _BATCH} if how == "array" else {"x": dataset()}
        return one.predict(**given, verbose=0).tolist()

    def one_batch():
        one = model()
        trained = [float(one.train_on_batch(ids[i : i + 4], return_dict=True)["first"])
                   for i in (1, 2)]  # fmt: skip
        tested = []
        for i in (3, 4):
            one.reset_metrics()  # Keras 3.12 does not do it.
            rows = np.array([i], np.int32)
            tested.append(float(one.test_on_batch(rows, return_dict=True)["ids"]))
        return {"trained": trained, "tested": tested}

    endless = dataset(np.ones([_BATCH], np.int32)).repeat()

    class OnlySums(RowCounter):
        """Without the log "first"."""

        def train_step(self, data):
            return {k: v for k, v in super().train_step(data).items() if k != "first"}

    def sums():
        with job.strategy.scope():
            one = OnlySums(_ROWS)
            one.compile()
        return one

    def lost_results():
        """The thread that fetches ends the worker before: the call has ended there."""
        stock, killed = coordinator_results._fetching, []

        @contextlib.contextmanager
        def fetching():
            # By one step in flight, and by several.
            name = threading.current_thread().name
            worker = re.search(r"results-of-.*/task:(\d+)/|calls-of-worker-(\d+)-", name)
            if worker and not killed:
                killed.append(f"worker:{worker[1] or worker[2]}")
                job.cluster.kill(killed[0])
                job.cluster.restart(killed[0])
            with stock():
                yield

        one = sums()
        with mock.patch.object(coordinator_results, "_fetching", fetching):
            history = one.fit(endless, steps_per_epoch=60, verbose=0).history
        return {"ids": history["ids"][0], "trained": sum(one.counts()), "killed": len(killed)}

    def variables():
        """Returns what a metric is in each call of a callback, with the logs."""
        found = []

        class Note(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                found.append({"variable": float(self.model.sum.result()), "log": logs["ids"]})

        with mock.patch.multiple(keras_steps, _LOGS_S=0.0, _VARIABLES_S=0.0):
            sums().fit(endless, steps_per_epoch=40, verbose=0, callbacks=[Note()])
        return found

    def saved():
        path = f"{folder}/model.keras"
        with job.strategy.scope():
            one = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
            one.compile("adam", "mse")
        x = np.arange(12.0, dtype=np.float32).reshape(4, 3)
        untrained = one.predict(x, verbose=0).tolist()
        one.fit(x, x[:, :2], verbose=0)
        one.save(path)
        there = keras.saving.load_model(path)
        assert not isinstance(there.distribute_strategy, tf.distribute.ParameterServerStrategy)
        return {
            "untrained": untrained,
            "there": there.predict(x, verbose=0).tolist(),
            "here": one.predict(x, verbose=0).tolist(),
        }

    class WithoutCall(keras.Model):
        def __init__(self):
            super().__init__()
            dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
            self.layer = keras.Sequential([keras.Input([3]), dense])

        def train_step(self, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.layer(x) - 1.0) ** 2)
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"own": loss}

    def without_call():
        with job.strategy.scope():
            one = WithoutCall()
            one.compile(keras.optimizers.SGD(0.125))
        data = tf.data.Dataset.from_tensors(tf.ones([4, 3]))
        return one.fit(data, epochs=2, verbose=0).history["own"]

    def failed_step():
        one = model()
        error = coordinator.caught(lambda: one.fit(dataset(ids - 5), verbose=0))
        one.seen.assign(tf.zeros([_ROWS]))
        one.fit(dataset(), verbose=0)
        return {"raised": error["raised"], "code": error["code"], "then": max(one.counts())}

    class Lose(keras.callbacks.Callback):
        """Ends a worker in the middle of the first epoch, and starts it again."""

        def on_train_batch_end(self, batch, logs=None):
            if batch >= 3 and self.params is not None:
                self.params = None
                job.cluster.kill("worker:0")
                job.cluster.restart("worker:0")

    def lost_worker(steps):
        one = model(steps)
        history = one.fit(dataset(), epochs=_EPOCHS, verbose=0, callbacks=[Lose()]).history
        return {
            "seen": one.counts(),
            "ids": history["ids"],
            "predicted": one.predict(dataset(), verbose=0).tolist(),
        }

    def uninstalled():
        tf_fuse.uninstall()
        model().fit(dataset(), verbose=0)

    coordinator.finish(
        slow=_SLOW,
        cases={
            "in flight": lambda: in_flight,
            **{f"seen, {steps}": lambda steps=steps: each_once(steps) for steps in (1, 3)},
            "seen, generator": generated,
            "seen, parts": lambda: generated(epochs=2, steps_per_epoch=2),
            **{
                f"unknown length, {kind}": lambda kind=kind: unknown_length(kind)
                for kind in ("dataset", "generator")
            },
            "jit_compile": jit_compiled,
            "repeated": repeated,
            "evaluated": evaluated,
            **{
                f"predicted, {how}": lambda how=how: predicted(how)
                for how in ("array", "dataset", "batch")
            },
            "one batch": one_batch,
            "warnings": lambda: warnings,
            "variables": variables,
            "saved": saved,
            "no call": without_call,
            "failed step": failed_step,
            **{f"lost worker, {steps}": lambda steps=steps: lost_worker(steps) for steps in (1, 3)},
            "lost results": lost_results,
            "uninstalled": uninstalled,
        },
    )


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
