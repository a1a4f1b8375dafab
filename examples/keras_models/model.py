# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The workloads `keras_dense`, `keras_wide_deep` and `keras_dlrm`: Keras models and optimizers.

What their optimizer makes of a gradient runs on the server that has the variable, as many small
operations: 28 with Adam. Labels come of a model that is drawn once, so the losses can fall.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from examples import workload

# How many independent numbers the inputs and labels of `dense` are made of.
_DIRECTIONS = 16
KINDS = ("dense", "dlrm", "wide_deep")
_Inputs = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class KerasModel:
    """A Keras model, trained with a Keras optimizer.

    Attributes:
      kind: one of KINDS.
      batch: examples per step.
      optimizer: a class of keras.optimizers, as its string names it ("adam").
      learning_rate: of it.
      layers: hidden layers of `dense`.
      width: of the hidden layers.
      tables: embedding tables of the others.
      rows: of each table.
      dim: columns of each table.
      numeric: numeric features of the others.
      seed: of weights, inputs and labels.
      servers: if tf_fuse plans the places of variables and which are in pieces, over how many.
    """

    kind: str = "dense"
    batch: int = 64
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    layers: int = 12
    width: int = 512
    tables: int = 16
    rows: int = 2000
    dim: int = 16
    numeric: int = 13
    seed: int = 1
    servers: int = 0

    @property
    def name(self) -> str:
        """How the command line calls it."""
        return f"keras_{self.kind}"

    def partitioner(self) -> Callable[..., Any] | None:
        """Without `servers` variables stay whole."""
        if not self.servers:
            return None
        import tf_fuse

        return tf_fuse.parameter_server.CostPartitioner(self.servers)

    def build(self) -> KerasProgram:
        """Make the model and its optimizer, in the scope of the strategy if there is one.

        Raises:
          ValueError: no such kind of model.
        """
        return KerasProgram(self)


class KerasProgram:
    """A model, its optimizer, and a step of both."""

    def __init__(self, config: KerasModel):
        """Make all variables, the optimizer's too, from the seed."""
        self._config = config
        builders = {"dense": _dense, "dlrm": _dlrm, "wide_deep": _wide_deep}
        if config.kind not in builders:
            raise ValueError(f"no kind of model {config.kind!r}; there are {sorted(builders)}")
        self._strategy = tf.distribute.get_strategy()
        keras.utils.set_random_seed(config.seed)
        build, pieces = _called, _whole
        if config.servers:
            import tf_fuse

            build, pieces = tf_fuse.parameter_server.build, tf_fuse.parameter_server.pieces

        def make() -> tuple[Any, Any, Any]:
            model = builders[config.kind](config)
            weights = pieces(model.trainable_variables)
            optimizer = keras.optimizers.get(config.optimizer)
            optimizer.learning_rate = config.learning_rate
            optimizer.build(weights)
            return model, optimizer, weights

        self._model, self._optimizer, self._weights = build(make)

    def variables(self) -> dict[str, tf.Variable]:
        """Path to variable, the optimizer's state included."""
        of_model = {f"model/{v.path}": v.value for v in self._model.variables}
        of_optimizer = {f"optimizer/{v.path}": v.value for v in self._optimizer.variables}
        return dict(sorted((of_model | of_optimizer).items()))

    def dataset(self, worker: tf.Tensor | int, workers: int) -> tf.data.Dataset:
        """Elements are seeds, int64 of [2]; the inputs are drawn from them inside the step."""
        del workers  # each draws its own
        return workload.seeds(self._config.seed, worker)

    def step(self, element: tf.Tensor) -> tf.Tensor:
        """One step on inputs drawn from the seed `element` (int64 of [2]); the loss before it."""
        return self._strategy.run(self._replica_step, args=(element,))

    def _replica_step(self, seed: tf.Tensor) -> tf.Tensor:
        inputs, labels = _drawn(self._config, seed)
        with tf.GradientTape() as tape:
            outputs = self._model(inputs, training=True)
            loss = _loss(self._config, labels, outputs)
        weights = self._weights
        self._optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss


def _called(function: Callable[[], Any]) -> Any:
    return function()


def _whole(variables: Any) -> Any:
    """Return Keras's variables unchanged."""
    return variables


def _loss(c: KerasModel, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    if c.kind == "dense":
        return tf.reduce_mean(tf.math.squared_difference(outputs, labels))
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=outputs))


def _drawn(c: KerasModel, seed: tf.Tensor) -> tuple[Any, tf.Tensor]:
    """Return the model's inputs, and labels [batch, 1]."""
    if c.kind == "dense":
        # (Few directions, so that several workers that do not wait for each other learn it.)
        hidden = tf.random.stateless_uniform([c.batch, _DIRECTIONS], seed, -1.0, 1.0)
        scale = (3.0 / _DIRECTIONS) ** 0.5
        spread = workload.initial_values("spread", (_DIRECTIONS, c.width), scale, c.seed)
        teacher = workload.initial_values("teacher", (_DIRECTIONS, 1), scale, c.seed)
        return tf.matmul(hidden, spread), tf.tanh(3.0 * tf.matmul(hidden, teacher))
    numeric = tf.random.stateless_uniform([c.batch, c.numeric], seed, -1.0, 1.0)
    ids = tf.random.stateless_uniform([c.batch, c.tables], seed + 1, maxval=c.rows, dtype=tf.int32)
    teacher = workload.initial_values("teacher", (c.numeric, 1), 4.0, c.seed)
    logits = tf.matmul(numeric, teacher) + tf.reduce_sum(
        tf.cast(ids % 2, tf.float32) - 0.5, axis=1, keepdims=True
    )
    return [numeric, ids], tf.cast(logits > 0.0, tf.float32)


def _dense(c: KerasModel) -> keras.Model:
    x = inputs = keras.Input([c.width])
    for _ in range(c.layers):
        x = keras.layers.Dense(c.width, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def _features(c: KerasModel) -> tuple[Any, Any, list[Any]]:
    """Return inputs of numbers and rows, and each feature's embedding [batch, dim]."""
    numeric, ids = keras.Input([c.numeric]), keras.Input([c.tables], dtype="int32")
    rows = [
        keras.layers.Embedding(c.rows, c.dim, name=f"table_{i:02d}")(ids[:, i])
        for i in range(c.tables)
    ]
    return numeric, ids, rows


def _wide_deep(c: KerasModel) -> keras.Model:
    """Return a linear model and a deep one, added up (Cheng et al., 2016)."""
    numeric, ids, rows = _features(c)
    wide = [
        keras.layers.Embedding(c.rows, 1, name=f"wide_{i:02d}")(ids[:, i]) for i in range(c.tables)
    ]
    x = keras.layers.Concatenate()([numeric, *rows])
    for width in (c.width, c.width // 2):
        x = keras.layers.Dense(width, activation="relu")(x)
    return keras.Model([numeric, ids], keras.layers.Add()([*wide, keras.layers.Dense(1)(x)]))


def _dlrm(c: KerasModel) -> keras.Model:
    """Embeddings and a vector of the numbers, multiplied by each other (Naumov et al., 2019)."""
    numeric, ids, rows = _features(c)
    bottom = keras.layers.Dense(c.width // 2, activation="relu")(numeric)
    bottom = keras.layers.Dense(c.dim, activation="relu")(bottom)
    vectors = keras.ops.stack([bottom, *rows], axis=1)
    products = keras.ops.matmul(vectors, keras.ops.transpose(vectors, (0, 2, 1)))
    pairs = keras.layers.Flatten()(products)
    x = keras.layers.Concatenate()([bottom, pairs])
    for width in (c.width, c.width // 2):
        x = keras.layers.Dense(width, activation="relu")(x)
    return keras.Model([numeric, ids], keras.layers.Dense(1)(x))
