# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`fit` of Keras 3 in several processes; cases of ranks."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import itertools
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from tests.cluster.keras import fit_callbacks, interrupted_saves

ROWS, BATCH = 19, 8
_ALIGNMENT = 64


def inputs() -> tuple[np.ndarray, np.ndarray]:
    """Returns rows and labels; the last batch is smaller than the others."""
    x = np.random.default_rng(7).normal(size=[ROWS, 8]).astype(np.float32)
    return _aligned(x), _aligned(x[:, :2] + x[:, 2:4])


def _aligned(array: np.ndarray) -> np.ndarray:
    """Copies an array to an address whose memory TensorFlow takes for a tensor without a copy."""
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


class KerasFitCases:
    """Cases of `collectives.cases.Member`."""

    rank: int
    ranks: int

    def keras_fit(
        self,
        optimizer: str = "Adam",
        sharded: bool = False,
        how: str = "arrays",
        steps: int = 1,
        epochs: int = 2,
        eagerly: bool = False,
        grappler: bool = True,
        rows: int = ROWS,
        folder: str = "",
        saves: tuple[str, ...] = (),
        dies: int = -1,
        point: str = "",
    ) -> dict[str, Any]:
        """Trains a model.

        Args:
          optimizer: name of the class.
          sharded: whether updates are, however small.
          how: "arrays", or "loop" for a custom loop over the same batches; "generator", "endless
            generator", "dataset" (of a generator) or "PyDataset" for data that `fit` gets in that
            form.
          steps: `steps_per_execution`.
          epochs: of training.
          eagerly: whether the model is compiled with `run_eagerly`.
          grappler: whether TensorFlow makes one operation of several.
          rows: of the data.
          folder: of files.
          saves: "backup", "backup of each step", "checkpoint", and "alone" if the chief alone has
            these callbacks.
          dies: the epoch in which this process ends with a step under way; none if -1.
          point: of its second backup, at which this process ends; none if empty.

        Returns:
          Digests of the weights and of the optimizer's variables, the history, what callbacks got,
          what `evaluate` returned, and how many updates are sharded.
        """
        keras = self._keras(sharded)
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not grappler})
        strategy = self._strategy
        before = _sharded_steps()
        with strategy.scope():
            layers = [keras.layers.Dense(n, "tanh") for n in (5, 3)]
            model = keras.Sequential([*layers, keras.layers.Dense(2)])
            model.compile(
                getattr(keras.optimizers, optimizer)(0.05),
                "mse",
                metrics=["mae"],
                steps_per_execution=steps,
                run_eagerly=eagerly,
            )
        x, y = (one[:rows] for one in inputs())
        reported: dict[str, Any] = {}
        if how == "loop":
            with strategy.scope():
                model.build([None, 8])
                model.optimizer.build(model.trainable_variables)
            _train(strategy, model, x, y, epochs)
        else:
            notes = fit_callbacks.notes(keras, dies)
            callbacks = [notes]
            if point:
                interrupted_saves.interrupt(point, 2)
            if "alone" not in saves or self.rank == 0:
                callbacks += fit_callbacks.savers(keras, folder, saves)
            data = _data(keras, how, x, y)
            history = model.fit(
                **data,
                epochs=epochs,
                callbacks=callbacks,
                validation_data=(x, y),
                batch_size=BATCH if how == "arrays" else None,
                validation_batch_size=BATCH,
                shuffle=False,
                verbose=0,
            )
            reported = {
                "history": history.history,
                "batches": notes.batches,
                "epochs": notes.epochs,
                "evaluated": model.evaluate(x, y, BATCH, verbose=0, return_dict=True),
                "predicted": model.predict(x, BATCH, verbose=0)[:, 0].tolist(),
                "of one row": model.evaluate(x[:1], y[:1], verbose=0, return_dict=True),
                "one by one": model(x).numpy()[:, 0].tolist(),
            }
        weights, state = model.trainable_variables, model.optimizer.variables
        return reported | {
            "weights": [_digest(variable) for variable in weights],
            "optimizer": [_digest(variable) for variable in state],
            "sharded": _sharded_steps() > before,
        }

    def _row_notes(self, keras: Any) -> Any:
        """Make a model that notes the rows of each step, without weights; it predicts them."""

        class Model(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.seen: list[list[int]] = []

            def call(self, x: Any) -> Any:
                return tf.identity(x)

            def train_step(self, data: Any) -> dict[str, Any]:
                x, _, weight = keras.utils.unpack_x_y_sample_weight(data)
                assert weight is None
                rows = x.to_tensor()[:, 0] if isinstance(x, tf.RaggedTensor) else x
                tf.py_function(lambda one: self.seen.append(one.numpy().tolist()), [rows], [])
                return {"rows": tf.cast(tf.size(rows), tf.float32)}

        with self._strategy.scope():
            model = Model()
            model.compile()
        return model

    def rows_seen(self, policy: str, folder: str, batch: int = 4) -> dict[str, Any]:
        """Says which rows this process trains on, by batch, and what `predict` returns.

        Args:
          policy: of `AutoShardPolicy`.
          folder: of files that each have a number in every line; empty for a dataset of numbers.
          batch: of all processes together.
        """
        model = self._row_notes(self._keras(False))
        if folder:
            files = tf.data.Dataset.from_tensor_slices(sorted(map(str, Path(folder).iterdir())))
            lines = files.interleave(tf.data.TextLineDataset, cycle_length=1)
            numbers = lines.map(lambda line: tf.strings.to_number(line, tf.int32))
        else:
            numbers = tf.data.Dataset.range(10).map(lambda x: tf.cast(x, tf.int32))
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = getattr(
            tf.data.experimental.AutoShardPolicy, policy
        )
        dataset = numbers.batch(batch).with_options(options)
        history = model.fit(dataset, verbose=0)
        return {
            "seen": [list(rows) for rows in model.seen],  # Keras tracks its own kind of list.
            "rows": history.history["rows"],
            "predicted": model.predict(dataset, verbose=0).tolist(),
        }

    def rows_of_generator(self) -> list[Any]:
        """Says which rows this process trains on that a generator yields.

        The rows are ragged, so that their shapes are not known, and without weights: None.
        """
        model = self._row_notes(self._keras(False))
        batches = (
            (tf.ragged.constant([[i + j] * (j + 1) for j in range(4)]), np.zeros(4, np.int32), None)
            for i in range(0, 12, 4)
        )
        model.fit(batches, verbose=0)
        return [list(rows) for rows in model.seen]

    def keras_mistakes(self) -> dict[str, Any]:
        """Returns the warnings and errors of programs whose data processes would share wrongly."""
        keras = self._keras(False)
        tf.random.set_seed(None)
        with self._strategy.scope():
            model = keras.Sequential([keras.layers.Dense(2)], name="one")
            model.compile("sgd", "mse", jit_compile=True)
        x, y = inputs()
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
        whole = tf.data.Options()
        whole.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        local = keras.Sequential([keras.layers.Dense(2)], name="two")
        local.compile("sgd", "mse")
        with _logged() as logged:
            model.fit(x, y, verbose=0)
            local.fit(x, y, verbose=0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(dataset, epochs=2, steps_per_epoch=5, shuffle=False, verbose=0)
        errors = []
        for data in (
            self._strategy.experimental_distribute_dataset(dataset),
            dataset.with_options(whole),
            tf.data.Dataset.from_tensor_slices((x[:, 0], y[:, 0])),
            dataset.map(lambda x, y: (x, y, tf.constant(2.0))),
            lambda context: dataset,
        ):
            try:
                model.fit(data, verbose=0)
            except ValueError as error:
                errors.append(str(error))
        tf.config.run_functions_eagerly(True)
        try:
            model.predict(x, verbose=0)
        except ValueError as error:
            errors.append(str(error))
        tf.config.run_functions_eagerly(False)
        too_short = [str(one.message) for one in caught if one.category is UserWarning]
        return {"warnings": logged, "errors": errors, "too short": too_short}

    def keras_untried(self, version: str) -> dict[str, Any]:
        """Returns what is logged if Keras says that it is of a version, and the history."""
        keras = self._keras(False)
        with self._strategy.scope():
            model = keras.Sequential([keras.layers.Dense(2)])
            model.compile("sgd", "mse")
        with mock.patch.object(keras, "__version__", version), _logged() as logged:
            history = model.fit(*inputs(), BATCH, epochs=2, shuffle=False, verbose=0).history
            model.evaluate(*inputs(), verbose=0)
        return {"warnings": logged, "history": history}

    def keras_mistakes_of_scope(self) -> dict[str, Any]:
        """Returns the errors of programs that make parts of a model outside of the scope."""
        keras = self._keras(False)
        scope = self._strategy.scope

        def made() -> Any:
            return keras.Sequential([keras.Input([8]), keras.layers.Dense(2, name="last")])

        def compiled_in_scope() -> None:
            model = made()
            with scope():
                model.compile("adam", "mse")

        def optimizer_outside() -> None:
            optimizer = keras.optimizers.Adam(name="adam")
            with scope():
                made().compile(optimizer, "mse")

        def called_outside() -> None:
            with scope():
                model = keras.Sequential([keras.layers.Dense(2, name="last")], name="unbuilt")
                model.compile("adam", "mse")
            model(inputs()[0])
            model.fit(*inputs(), verbose=0)

        def compiled_outside() -> None:
            with scope():
                model = made()
            model.compile("adam", "mse", metrics=["mae"])
            model.fit(*inputs(), verbose=0)

        errors = {}
        for run in (compiled_in_scope, optimizer_outside, called_outside, compiled_outside):
            errors[run.__name__] = ""
            try:
                run()
            except ValueError as error:
                errors[run.__name__] = str(error)
        return errors

    def _keras(self, sharded: bool) -> Any:
        import keras

        importlib.import_module("tf_fuse.keras")
        tf.config.optimizer.set_experimental_options(
            {"shard_weight_update": sharded, "shard_weight_update_always": sharded}
        )
        known = getattr(self, "_strategy", None)
        self._strategy = known or tf.distribute.MultiWorkerMirroredStrategy()
        keras.backend.clear_session()
        keras.utils.set_random_seed(3)
        return keras


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    """Notes the warnings of tf_fuse."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tf_fuse").addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger("tf_fuse").removeHandler(handler)


def _sharded_steps() -> int:
    gc.collect()
    functions = importlib.import_module("tf_fuse").weight_update_report()["functions"]
    return sum(one["steps"] for one in functions if one["sharded"])


def _train(strategy: Any, model: Any, x: Any, y: Any, epochs: int) -> None:
    """A custom loop: the same batches and losses as `fit`."""
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    options = tf.data.Options()
    policies = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = policies.DATA
    distributed = strategy.experimental_distribute_dataset(dataset.with_options(options))
    variables = model.trainable_variables

    def replica(batch: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(batch[0], training=True) - batch[1]) ** 2)
            loss = loss * (1.0 / strategy.num_replicas_in_sync)
        gradients = tape.gradient(loss, variables)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    step = tf.function(lambda batch: strategy.run(replica, args=(batch,)))
    for _ in range(epochs):
        for batch in distributed:
            step(batch)


def _data(keras: Any, how: str, x: Any, y: Any) -> dict[str, Any]:
    if how == "arrays":
        return {"x": x, "y": y}
    batches = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, ROWS, BATCH)]
    if how == "generator":
        return {"x": (batch for batch in batches)}
    if how == "endless generator":
        endless = (batch for batch in itertools.cycle(batches))
        return {"x": endless, "steps_per_epoch": len(batches)}
    if how == "dataset":
        specs = tuple(tf.TensorSpec([None, one.shape[1]], one.dtype) for one in (x, y))
        return {"x": tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=specs)}

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return len(batches)

        def __getitem__(self, index: int) -> Any:
            return batches[index]

    return {"x": Batches()}


def _digest(variable: Any) -> str:
    return hashlib.sha256(np.asarray(variable.numpy()).tobytes()).hexdigest()
