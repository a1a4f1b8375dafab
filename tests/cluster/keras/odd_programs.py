# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Small programs that use more of Keras than `fit` alone; only coordinators of tests import this.

Each makes its models in a scope, and returns what must be equal wherever steps run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.cluster.keras.fit_case import ROWS, floats, ids

_X = floats(ROWS, 6)
_Y = _X.sum(1)
_CLASSES = ids(4, ROWS)
_WEIGHTS = {0: 1.0, 1: 2.0, 2: 0.5, 3: 0.0}

Scope = Callable[[], Any]


class _Do(keras.callbacks.Callback):
    """Calls a function with the model at the end of one batch of each epoch."""

    def __init__(self, action: Callable[[Any], Any], batch: int = 2):
        super().__init__()
        self._action, self._batch = action, batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self._batch:
            self._action(self.model)


def _mlp(scope: Scope, optimizer: Callable[[], Any] = lambda: "adam") -> Any:
    with scope():
        stack = [layers.Dense(5, "relu"), layers.Dropout(0.3), layers.Dense(1)]
        model = keras.Sequential([keras.Input([6]), *stack])
        model.compile(optimizer(), "mse", metrics=["mae"])
    return model


def _fit(model: Any, *callbacks: Any, epochs: int = 3, **more: Any) -> dict[str, Any]:
    given = {"x": _X, "y": _Y, "batch_size": 8, "shuffle": False} | more
    return dict(model.fit(**given, epochs=epochs, verbose=0, callbacks=list(callbacks)).history)


def _values(model: Any) -> list[Any]:
    every = [*model.variables, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(one) for one in every]


def several_outputs(scope: Scope) -> Any:
    """Layers used twice, losses with weights, metrics and weights of rows for each output."""
    with scope():
        a, b = keras.Input([6], name="a"), keras.Input([6], name="b")
        shared = layers.Dense(4, "tanh")
        joined = layers.Concatenate()([shared(a), shared(b)])
        outputs = {
            "number": layers.Dense(1, name="number")(joined),
            "kind": layers.Dense(4, "softmax", name="kind")(joined),
        }
        model = keras.Model({"a": a, "b": b}, outputs)
        model.compile(
            "adam",
            {"number": "mse", "kind": "sparse_categorical_crossentropy"},
            loss_weights={"number": 0.3, "kind": 1.7},
            metrics={"number": ["mae"], "kind": ["accuracy"]},
            weighted_metrics={"number": ["mse"], "kind": ["accuracy"]},
        )
    x, y = {"a": _X, "b": _X[::-1]}, {"number": _Y, "kind": _CLASSES}
    weights = {"number": np.abs(_X[:, 0]), "kind": np.abs(_X[:, 1])}
    history = _fit(model, x=x, y=y, sample_weight=weights, validation_data=(x, y, weights))
    return [history, _values(model), model.predict(x, 7, verbose=0)]


def metrics_with_state(scope: Scope) -> Any:
    """Matrices and thresholds, of training and of a part of the rows."""
    kinds = keras.metrics
    with scope():
        model = keras.Sequential([keras.Input([6]), layers.Dense(4, "softmax")])
        model.compile(
            "adam",
            "categorical_crossentropy",
            metrics=[
                kinds.AUC(multi_label=True, num_labels=4),
                kinds.F1Score(),
                kinds.OneHotMeanIoU(4),
                kinds.Precision(top_k=2),
                kinds.SensitivityAtSpecificity(0.5),
            ],
        )
    y = keras.utils.to_categorical(_CLASSES, 4)
    return [_fit(model, y=y, validation_split=0.25, validation_freq=2), _values(model)]


def losses_of_layers(scope: Scope) -> Any:
    """A layer with a loss, a metric and a count of its own."""

    class Layer(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.mean = layers.Dense(4), keras.metrics.Mean(name="mean")

        def build(self, shape: Any) -> None:
            self.dense.build(shape)
            self.count = self.add_weight(shape=[], initializer="zeros", trainable=False)

        def call(self, x: Any) -> Any:
            hidden = self.dense(x)
            self.count.assign_add(1.0)
            self.add_loss(0.1 * keras.ops.mean(hidden * hidden))
            self.mean.update_state(hidden)
            return hidden + 0.01 * self.count

    with scope():
        x = keras.Input([6])
        model = keras.Model(x, layers.Dense(1)(Layer()(x)))
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True), "mse")
    return [_fit(model), _values(model)]


def state_of_layers(scope: Scope) -> Any:
    """LSTM layers that keep their state from batch to batch; a callback resets it."""
    with scope():
        lstm = layers.LSTM(4, stateful=True)
        model = keras.Sequential([keras.Input(batch_shape=[4, 3, 2]), lstm, layers.Dense(1)])
        model.compile("adam", "mse")
    reset = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: lstm.reset_state())
    return [_fit(model, reset, x=_X.reshape(ROWS, 3, 2), batch_size=4), _values(model)]


def reset_metrics(scope: Scope) -> Any:
    """Metrics that a callback resets within an epoch."""
    model = _mlp(scope)
    return [_fit(model, _Do(lambda model: model.reset_metrics())), _values(model)]


def evaluation_in_epoch(scope: Scope) -> Any:
    """A callback evaluates and predicts within an epoch."""
    model, found = _mlp(scope), []

    def note(model: Any) -> None:
        found.append(model.evaluate(_X[:9], _Y[:9], verbose=0, return_dict=True))
        found.append(model.predict(_X[:9], verbose=0))

    return [_fit(model, _Do(note)), _values(model), found]


def stops(scope: Scope) -> Any:
    """A callback stops training within an epoch; another `fit` goes on, which begins later."""
    model = _mlp(scope)
    first = _fit(model, _Do(lambda model: setattr(model, "stop_training", True)))
    return [first, _fit(model, epochs=4, initial_epoch=2), _values(model)]


def compiled_again(scope: Scope) -> Any:
    """A model is compiled again, with another optimizer and loss, and one layer stops training."""
    model = _mlp(scope)
    first = _fit(model)
    model.layers[0].trainable = False
    model.compile("adamax", "mae", metrics=["mse"])
    return [first, _fit(model, batch_size=5), _values(model)]


def averages(scope: Scope) -> Any:
    """Averages of the weights, which a callback puts in their place for each evaluation."""
    model = _mlp(scope, lambda: keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.5))
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    return [_fit(model, swap, validation_data=(_X, _Y)), _values(model)]


def weights_of_classes(scope: Scope) -> Any:
    """`class_weight` with two datasets: the coordinator reads one, workers read the other."""
    with scope():
        model = keras.Sequential([keras.Input([6]), layers.Dense(4, "softmax")])
        loss = "sparse_categorical_crossentropy"
        model.compile("adam", loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
    dataset = tf.data.Dataset.from_tensor_slices((_X, _CLASSES)).batch(7)
    options = tf.data.Options()
    policies = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = policies.DATA
    more = {"y": None, "batch_size": None, "class_weight": _WEIGHTS}
    found = [_fit(model, x=one, **more) for one in (dataset, dataset.with_options(options))]
    return [*found, _values(model)]


def backup_of_repeated_data(scope: Scope) -> Any:
    """Training ends before its third epoch, and begins again from the backup."""

    class Interrupted(Exception):
        pass

    def interrupt(epoch: int, logs: Any) -> None:
        if epoch == 2:
            raise Interrupted

    dataset = tf.data.Dataset.from_tensor_slices((_X, _Y)).batch(4).repeat()
    more = {"x": dataset, "y": None, "batch_size": None, "steps_per_epoch": 7, "epochs": 4}
    with tempfile.TemporaryDirectory() as folder:
        backup = keras.callbacks.BackupAndRestore(folder)
        try:
            _fit(
                _mlp(scope),
                backup,
                keras.callbacks.LambdaCallback(on_epoch_begin=interrupt),
                **more,
            )
        except Interrupted:
            model = _mlp(scope)
            return [_fit(model, backup, **more), _values(model)]
    return None


PROGRAMS: Sequence[Callable[[Scope], Any]] = (
    several_outputs,
    metrics_with_state,
    losses_of_layers,
    state_of_layers,
    reset_metrics,
    evaluation_in_epoch,
    stops,
    compiled_again,
    averages,
    weights_of_classes,
    backup_of_repeated_data,
)
