# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Callbacks, files and preprocessing layers with `fit` of Keras 3 on two workers, two servers."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault import coordinator
from tests.slow_cases import slow

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_ROWS, _BATCH = 37, 4
_STEPS = 10
_SLOW = ["outside, function"]


# Programs without the plugin, in the folder of the files.
_ALONE = f"""
import json, sys
import keras, numpy as np, tensorflow as tf
x = np.random.default_rng(7).normal(size=[{_ROWS}, 6]).astype(np.float32)
def made():
    layers = [keras.layers.Dense(4, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input([6]), *layers])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model
def predicted(model):
    return model.predict(x, verbose=0).ravel().tolist()
"""
_READS = """
whole = keras.saving.load_model("sent.keras")
weights = made()
weights.load_weights("sent.weights.h5")
loaded = tf.saved_model.load("sent")
served = loaded.serve(x).numpy().ravel().tolist()
print(json.dumps([predicted(whole), predicted(weights), served]))
"""
_WRITES = f"""
model = made()
model.fit(x, x.sum(1), batch_size={_BATCH}, verbose=0)
model.save("made.keras")
model.save_weights("made.weights.h5")
print(json.dumps(predicted(model)))
"""


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return coordinator.Cases(__file__, tmp_path_factory.mktemp("files"), slow=_SLOW, seconds=500)


def test_logs_are_numbers(cases):
    """In each call of a callback, not remote values."""
    assert cases["logs"] == {
        "on_train_batch_end": ["float"],
        "on_test_batch_end": ["float"],
        "on_epoch_end": ["float"],
    }


def test_callbacks_work(cases):
    found = cases["callbacks"]
    assert found["epochs"] == 4, "EarlyStopping"
    # LearningRateScheduler halves it, ReduceLROnPlateau divides by ten from the third epoch on.
    rates = pytest.approx([5e-3, 2.5e-3, 1.25e-4, 6.25e-6])
    assert found["rates"] == rates
    rows = list(csv.DictReader(io.StringIO(found["csv"])))
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3"]
    assert [float(row["loss"]) for row in rows] == found["losses"]
    assert {"best.weights.h5", "each.keras"} <= set(found["files"])
    assert found["batches"] == list(range(_STEPS)) * 4, "LambdaCallback"


def test_tensorboard_and_the_profiler_work(cases):
    """One of the two files of events is of training, the other one of validation."""
    assert cases["tensorboard"] == {"events": 2, "profiles": 1}


def test_the_progress_bar_moves(cases):
    bar = cases["bar"]
    counts = [int(one) for one in re.findall(rf"(\d+)/{_STEPS}\b", bar)]
    assert counts == [*range(1, _STEPS + 1), _STEPS], "one after each batch, one after the epoch"
    assert "mae: " in bar


def test_a_file_gives_the_same_model_in_one_process(cases):
    found = cases["file"]
    assert found["there"] == found["here"]
    assert found["step"] == _STEPS


def test_an_export_serves(cases):
    """Another program computes the predictions: their last bits may differ."""
    found = cases["export"]
    assert "raised" not in found, found
    assert found["served"] == pytest.approx(found["here"], abs=1e-6)


def test_files_are_read_without_the_plugin(cases):
    found = cases["to another process"]
    assert "raised" not in found, found
    assert found["there"][:2] == [found["here"]] * 2
    assert found["there"][2] == pytest.approx(found["here"], abs=1e-6)  # of an export


def test_files_that_were_made_without_the_plugin_are_read(cases):
    found = cases["from another process"]
    assert "raised" not in found, found
    assert found["here"] == [found["there"]] * 2
    assert found["step"] == 2 * _STEPS


def test_a_file_of_one_process_trains_on(cases):
    assert cases["there and back"] == {"same": True, "step": 2 * _STEPS}


@pytest.mark.parametrize(
    ("where", "data"),
    [("inside", "dataset"), ("inside", "function"), ("outside", "dataset")]
    + [slow("outside", "function")],
)
def test_preprocessing_layers_work(cases, where, data):
    """Adapted ones; losses are those of the weights in the beginning, whoever preprocesses."""
    assert cases[f"{where}, {data}"] == cases["inside, dataset"]
    assert cases[f"{where}, {data}"]["loss"] > 0.0


def test_accumulated_gradients_count_the_steps_of_all_workers(cases):
    """Ten steps, three to an update."""
    assert cases["accumulated"] == {"steps": _STEPS, "updates": _STEPS // 3}


def test_a_metric_that_does_not_add_stays_on_its_server(cases):
    assert cases["largest"] == {"trained": _ROWS - 1.0, "evaluated": _ROWS - 1.0}


def _main(folder):
    import contextlib
    import functools
    from unittest import mock

    import keras
    import numpy as np
    import tensorflow as tf

    job = coordinator.Job("off", 2, 2)
    import tf_fuse.keras  # noqa: F401  (has Keras run its steps on workers)

    tf.config.optimizer.set_experimental_options({"tf_fuse": True})
    folder = Path(folder)
    x = np.random.default_rng(7).normal(size=[_ROWS, 6]).astype(np.float32)
    y = x.sum(1)

    def mlp(**more):
        with job.strategy.scope():
            layers = [keras.layers.Dense(4, "relu"), keras.layers.Dense(1)]
            model = keras.Sequential([keras.Input([6]), *layers])
            model.compile(keras.optimizers.Adam(0.01, **more), "mse", metrics=["mae"])
        return model

    def fit(model, **more):
        return model.fit(x, y, batch_size=_BATCH, verbose=0, **more).history

    def logs():
        kinds = {}

        class Note(keras.callbacks.Callback):
            def __init__(self):
                super().__init__()
                for name in ("on_train_batch_end", "on_test_batch_end", "on_epoch_end"):
                    setattr(self, name, lambda _, logs=None, name=name: self.note(name, logs))

            def note(self, name, logs):
                kinds.setdefault(name, set()).update(type(one).__name__ for one in logs.values())

        fit(mlp(), callbacks=[Note()], validation_data=(x, y))
        return {name: sorted(found) for name, found in kinds.items()}

    def callbacks():
        batches, log = [], folder / "log.csv"
        kinds = keras.callbacks
        history = fit(
            mlp(),
            epochs=6,
            validation_data=(x, y),
            callbacks=[
                kinds.LearningRateScheduler(lambda _, rate: 0.5 * rate),
                kinds.ReduceLROnPlateau("loss", 0.1, patience=1, min_delta=1e9),
                kinds.EarlyStopping("loss", patience=3, min_delta=1e9),
                kinds.ModelCheckpoint(folder / "best.weights.h5", save_best_only=True,
                                      save_weights_only=True),
                kinds.ModelCheckpoint(folder / "each.keras", save_freq=3),
                kinds.CSVLogger(log),
                kinds.TerminateOnNaN(),
                kinds.LambdaCallback(on_train_batch_end=lambda batch, logs: batches.append(batch)),
            ],
        )  # fmt: skip
        return {
            "epochs": len(history["loss"]),
            "losses": history["loss"],
            "rates": [float(rate) for rate in history["learning_rate"]],
            "csv": log.read_text(),
            "files": [one.name for one in folder.iterdir()],
            "batches": batches,
        }

    def tensorboard():
        board = keras.callbacks.TensorBoard(
            folder / "board", update_freq=1, histogram_freq=1, profile_batch=(2, 4)
        )
        fit(mlp(), callbacks=[board], validation_data=(x, y))
        found = [one.name for one in (folder / "board").rglob("*")]
        return {
            "events": sum("tfevents" in name for name in found),
            "profiles": sum(name.endswith(".xplane.pb") for name in found),
        }

    def bar():
        """What Keras prints if it draws after each batch, not only 20 times a second."""
        always = functools.partial(keras.utils.Progbar, interval=0)
        with (
            mock.patch("keras.src.callbacks.progbar_logger.Progbar", always),
            contextlib.redirect_stdout(io.StringIO()) as text,
        ):
            mlp().fit(x, y, batch_size=_BATCH, verbose=1)
        return text.getvalue()

    def predicted(model):
        return model.predict(x, verbose=0).ravel().tolist()

    def file():
        model, path = mlp(), folder / "model.keras"
        fit(model)
        model.save(path)
        there = keras.saving.load_model(path)
        return {
            "here": predicted(model),
            "there": predicted(there),
            "step": int(there.optimizer.iterations.numpy()),
        }

    def export():
        model = mlp()
        fit(model)
        model.export(str(folder / "export"), verbose=False)
        loaded = tf.saved_model.load(str(folder / "export"))
        served = loaded.serve(x)
        return {"here": predicted(model), "served": served.numpy().ravel().tolist()}

    def other_process(program):
        """Run a program without the plugin; its numbers: a list on the last line."""
        done = subprocess.run(
            [sys.executable, "-c", _ALONE + program + "\nassert 'tf_fuse' not in sys.modules\n"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    def to_other_process():
        model = mlp()
        fit(model)
        model.save(folder / "sent.keras")
        model.save_weights(folder / "sent.weights.h5")
        model.export(str(folder / "sent"), verbose=False)
        return {"here": predicted(model), "there": other_process(_READS)}

    def from_other_process():
        there = other_process(_WRITES)
        with job.strategy.scope():
            whole = keras.saving.load_model(folder / "made.keras")
        weights = mlp()
        weights.load_weights(folder / "made.weights.h5")
        here = [predicted(whole), predicted(weights)]
        fit(whole)
        return {"there": there, "here": here, "step": int(whole.optimizer.iterations.numpy())}

    def there_and_back():
        model, path = mlp(), folder / "weights.weights.h5"
        fit(model)
        model.save_weights(path)
        again = mlp()
        with job.strategy.scope():
            again.optimizer.build(again.trainable_variables)
        again.load_weights(path)
        same = predicted(again) == predicted(model)
        fit(again)
        return {"same": same, "step": int(again.optimizer.iterations.numpy())}

    words = np.array([["a", "b"], ["c", "unknown"]] * 20)
    numbers = np.arange(80).reshape(40, 2) % 7

    def preprocessed(where, data):
        keras.utils.set_random_seed(3)
        keras.backend.clear_session()
        is_inside = where == "inside"
        with job.strategy.scope():
            steps = [keras.layers.StringLookup(), keras.layers.IntegerLookup(),
                     keras.layers.Normalization()]  # fmt: skip
            given = [words, numbers, numbers.astype(np.float32)]
            for step, one in zip(steps, given, strict=True):
                step.adapt(one)
            dtypes = ["string" if is_inside else "int64", "int64", "float32"]
            inputs = [keras.Input([2], dtype=dtype) for dtype in dtypes]
            parts = [step(one) for step, one in zip(steps, inputs, strict=True)]
            parts = parts if is_inside else inputs
            rows = [keras.layers.Embedding(10, 3)(one) for one in parts[:2]]
            flat = [keras.layers.Flatten()(one) for one in rows]
            both = keras.layers.Concatenate()([*flat, parts[2]])
            model = keras.Model(inputs, keras.layers.Dense(1)(both))
            model.compile(keras.optimizers.SGD(0.0), "mse")

        def prepare(given, label):
            if not is_inside:
                given = tuple(step(one) for step, one in zip(steps, given, strict=True))
            return given, label

        def dataset(context=None):
            labels = (np.arange(40) % 2).astype(np.float32)
            rows = tf.data.Dataset.from_tensor_slices((tuple(given), labels))
            if context:
                rows = rows.shard(context.num_input_pipelines, context.input_pipeline_id)
            return rows.batch(10).map(prepare)

        model.fit(dataset() if data == "dataset" else dataset, verbose=0)
        return {"loss": round(model.evaluate(dataset(), verbose=0), 5)}

    def accumulated():
        model = mlp(gradient_accumulation_steps=3)
        fit(model)
        steps = model.optimizer.variables[0]
        return {"steps": int(steps.numpy()), "updates": int(model.optimizer.iterations)}

    class Largest(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="largest")
            self.value = self.add_weight(initializer="zeros", shape=[])

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.value.assign(tf.maximum(self.value, tf.reduce_max(y_true)))

        def result(self):
            return self.value

    def largest():
        with job.strategy.scope():
            model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
            model.compile("sgd", "mse", metrics=[Largest()])
        rows = np.arange(_ROWS, dtype=np.float32)[:, None]
        history = model.fit(rows * 0.0, rows, batch_size=_ROWS, verbose=0).history
        evaluated = model.evaluate(rows, rows, batch_size=_ROWS, verbose=0, return_dict=True)
        return {"trained": float(history["largest"][0]), "evaluated": float(evaluated["largest"])}

    coordinator.finish(
        slow=_SLOW,
        cases={
            "logs": logs,
            "callbacks": callbacks,
            "tensorboard": tensorboard,
            "bar": bar,
            "file": file,
            "export": export,
            "to another process": to_other_process,
            "from another process": from_other_process,
            "there and back": there_and_back,
            **{
                f"{where}, {data}": lambda where=where, data=data: preprocessed(where, data)
                for where in ("inside", "outside")
                for data in ("dataset", "function")
            },
            "accumulated": accumulated,
            "largest": largest,
        },
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
