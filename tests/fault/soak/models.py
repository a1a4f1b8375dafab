# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The models of a soak test, in a cluster or in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MODELS = 4  # steps in flight at once
REPEATING = 2  # of them can be repeated
_TABLES, _ROWS, _WIDTH, _BATCH = 6, 16, 4, 8
_RATE = 0.05


def _initial(model: int) -> list[Any]:
    """The values that a model's variables begin with: its tables, then its weights."""
    import numpy as np

    random = np.random.default_rng(model)
    shapes = [(_ROWS, _WIDTH)] * _TABLES + [(_TABLES * _WIDTH, 1)]
    return [random.uniform(-0.1, 0.1, shape).astype(np.float32) for shape in shapes]


class Model:
    """Variables in two copies, and a step from each copy to the other."""

    def __init__(self, values: list[Any]):
        """Creates the variables; in a strategy's scope they lie on its servers."""
        import tensorflow as tf

        self.copies = [[tf.Variable(value) for value in values] for _ in range(2)]
        self.steps = [tf.function(self._step(source)) for source in range(2)]

    def variables(self, number: int) -> list[Any]:
        """The variables whose values count before the round of that number."""
        return self.copies[number % 2]

    def restore(self, values: Sequence[Any]) -> None:
        """Sets the variables, whatever the number of the next round."""
        for copy in self.copies:
            _assign(copy, values)

    def _step(self, source: int) -> Any:
        import tensorflow as tf

        def step(number: Any) -> Any:
            """Takes the number of the round, an int32 scalar; returns the loss."""
            with tf.GradientTape() as tape:
                values = [v.read_value() for v in self.copies[source]]
                tape.watch(values)
                loss = _loss(values, number)
            for variable, value, gradient in zip(
                self.copies[1 - source], values, tape.gradient(loss, values), strict=True
            ):
                variable.assign(value - _RATE * tf.convert_to_tensor(gradient))
            return loss

        return step


class TrainedModel:
    """Variables that each step updates in place, by Keras's Adam."""

    def __init__(self, values: list[Any]):
        """Creates the variables and the optimizer's; in a strategy's scope they lie on servers."""
        import keras
        import tensorflow as tf

        weights = [tf.Variable(value) for value in values]
        adam = keras.optimizers.Adam(_RATE)
        adam.build(weights)
        self._all = [*weights, *(variable.value for variable in adam.variables)]

        strategy = tf.distribute.get_strategy()

        def replica(number: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = _loss(weights, number)
            adam.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return loss

        @tf.function
        def step(number: Any) -> Any:
            """Takes the number of the round, an int32 scalar; returns the loss."""
            return strategy.run(replica, args=(number,))

        self.steps = [step] * 2

    def variables(self, number: int) -> list[Any]:
        """The variables and the optimizer's."""
        del number
        return self._all

    def restore(self, values: Sequence[Any]) -> None:
        """Sets the variables and the optimizer's."""
        _assign(self._all, values)


def _loss(values: Sequence[Any], number: Any) -> Any:
    """The loss of tables and weights in the round of a number."""
    import tensorflow as tf

    rows = tf.range(_BATCH)
    *tables, weights = values
    looked_up = [
        tf.gather(table, (rows * (i + 3) + number * (i + 1)) % _ROWS)
        for i, table in enumerate(tables)
    ]
    output = tf.matmul(tf.concat(looked_up, axis=1), weights)
    target = tf.cast((rows + number) % 5, tf.float32)[:, None] * 0.25
    return tf.reduce_mean(tf.square(output - target))


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def reference_losses(rounds: int) -> list[list[str]]:
    """The losses of a run without faults and without a cluster: per round, per model."""
    import tensorflow as tf

    models = [Model(_initial(i)) for i in range(REPEATING)]
    numbers = tf.range(rounds)
    return [
        [float(m.steps[i % 2](numbers[i])).hex() for m in models]  # one after the other
        for i in range(rounds)
    ]


def made() -> list[Model | TrainedModel]:
    """All models, as a run without faults begins; in a strategy's scope they lie on its servers."""
    classes = [Model] * REPEATING + [TrainedModel] * (MODELS - REPEATING)
    return [cls(_initial(i)) for i, cls in enumerate(classes)]
