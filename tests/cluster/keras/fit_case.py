# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A model of the tests of `fit`, with its data: for `fit`, and for a custom loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

ROWS, BATCH = 40, 8


def floats(*shape: int) -> np.ndarray:
    """Return normally distributed numbers, always the same for a shape."""
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def ids(most: int, *shape: int) -> np.ndarray:
    """Return whole numbers from 0 to below `most`, always the same for a shape."""
    return np.random.default_rng(7).integers(0, most, shape)


@dataclasses.dataclass
class Case:
    """A compiled model and its data.

    Attributes:
      model: compiled.
      x, y, weight: tensors or nested arrays of the same number of rows; None for no weights.
      class_weight: of `fit`.
      feed: how `fit` gets the data: "arrays", "dataset" or "PyDataset".
    """

    model: keras.Model
    x: Any
    y: Any
    weight: Any = None
    class_weight: dict[int, float] | None = None
    feed: str = "arrays"

    def dataset(self) -> tf.data.Dataset:
        """Return batches of what a training step gets."""
        weight = self.weight
        if self.class_weight is not None:
            weight = np.array([self.class_weight[int(one)] for one in self.y])
        parts = (self.x, self.y) if weight is None else (self.x, self.y, weight)
        return tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)

    def given(self, is_training: bool) -> dict[str, Any]:
        """Return arguments of `fit`, or of `evaluate` without weights."""
        given: dict[str, Any] = {}
        if is_training and self.class_weight is not None:
            given["class_weight"] = self.class_weight
        if self.feed == "dataset":
            parts = (self.x, self.y)
            return given | {"x": tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)}
        if is_training and self.feed == "PyDataset":
            return given | {"x": _Batches(self.x, self.y), "shuffle": False}
        given |= {"x": self.x, "y": self.y, "batch_size": BATCH}
        if is_training:
            given |= {"sample_weight": self.weight, "shuffle": False}
        return given


class _Batches(keras.utils.PyDataset):
    def __init__(self, *arrays: Any):
        super().__init__()
        self._arrays = arrays

    def __len__(self) -> int:
        return -(-len(self._arrays[0]) // BATCH)

    def __getitem__(self, index: int) -> Any:
        return tuple(one[index * BATCH : (index + 1) * BATCH] for one in self._arrays)


def train(case: Case, coordinator: Any, epochs: int) -> dict[str, list[float]]:
    """Train a model by a custom loop on one worker, without Keras's loops.

    Returns:
      The loss and the metrics at the end of each epoch, by name.
    """
    model, strategy = case.model, coordinator.strategy
    has_own_step = type(model).train_step is not keras.Model.train_step
    dataset = case.dataset()
    steps = int(dataset.cardinality())
    iterator = iter(coordinator.create_per_worker_dataset(dataset.repeat()))
    with strategy.scope():
        loss_metric = keras.metrics.Mean()

    def replica(batch: Any) -> None:
        if has_own_step:
            model.train_step(batch)
            return
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = model.compute_loss(x, y, outputs, weight, training=True)
            scaled = model.optimizer.scale_loss(loss)
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(scaled, variables), variables)
        loss_metric.update_state(loss, tf.shape(tf.nest.flatten(x)[0])[0])
        model.compute_metrics(x, y, outputs, weight)

    @tf.function
    def step(iterator: Any) -> None:
        strategy.run(replica, args=(next(iterator),))

    history: dict[str, list[float]] = {}
    for _ in range(epochs):
        loss_metric.reset_state()
        model.reset_metrics()
        for _ in range(steps):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        found = dict(model.get_metrics_result())
        if not has_own_step:
            found["loss"] = loss_metric.result()
        for name, value in found.items():
            history.setdefault(name, []).append(float(value))
    model.optimizer.finalize_variable_values(model.trainable_variables)
    return history


Make = Callable[[], Case]
