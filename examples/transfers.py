# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Workloads that are about the transfers alone: nothing to fuse, and large tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from examples import workload

_FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Nothing:
    """One variable: one tensor to the worker, one back, and so nothing to fuse.

    What such a job costs with the option on is what the option costs by itself.

    Attributes:
      batch: examples per step.
      width: the variable is [width, width].
      learning_rate: of SGD.
      seed: of the variable and the inputs.
    """

    batch: int = 64
    width: int = 256
    learning_rate: float = 0.1
    seed: int = 1
    name: str = "nothing"

    def partitioner(self) -> Callable[..., Any] | None:
        """Leave the variable whole."""
        return None

    def build(self) -> NothingProgram:
        """Create the variable."""
        return NothingProgram(self)


class NothingProgram:
    """Program of `Nothing`: a linear layer that learns to return its input."""

    def __init__(self, config: Nothing):
        """Create the variable [width, width]."""
        self._config = c = config
        value = workload.initial_values("weights", (c.width, c.width), 0.05, c.seed)
        self._weights = tf.Variable(value, name="weights")

    def variables(self) -> dict[str, Any]:
        """Name to variable."""
        return {"weights": self._weights}

    def dataset(self, worker: tf.Tensor | int, workers: int) -> tf.data.Dataset:
        """Elements are seeds, int64 of [2]."""
        del workers  # each draws its own
        return workload.seeds(self._config.seed, worker)

    def step(self, element: tf.Tensor) -> tf.Tensor:
        """Make one SGD step; return the mean squared error before it, float32 scalar."""
        c = self._config
        x = tf.random.stateless_uniform([c.batch, c.width], element, minval=-1.0)
        error = tf.matmul(x, self._weights.read_value()) - x
        update = tf.matmul(x, error, transpose_a=True) * (c.learning_rate / c.batch)
        self._weights.assign_sub(update, read_value=False)
        return tf.reduce_mean(tf.square(error))


@dataclasses.dataclass(frozen=True)
class Large:
    """Several equal tensors are read from one server, and hardly looked at.

    Attributes:
      tensors: number of variables.
      tensor_bytes: size of each, a multiple of 4.
      seed: unused; every workload has one.
    """

    tensors: int = 8
    tensor_bytes: int = 1 << 20
    seed: int = 1
    name: str = "large"
    batch: int = 1

    def partitioner(self) -> Callable[..., Any] | None:
        """Variables stay whole."""
        return None

    def build(self) -> LargeProgram:
        """Create the variables."""
        return LargeProgram(self)


class LargeProgram:
    """Program of `Large`."""

    def __init__(self, config: Large):
        """Create float32 variables of [tensor_bytes / 4].

        Raises:
          ValueError: tensor_bytes is not a positive multiple of 4.
        """
        count, rest = divmod(config.tensor_bytes, _FLOAT_BYTES)
        if rest or count < 1:
            raise ValueError(
                f"tensor_bytes must be a positive multiple of 4, got {config.tensor_bytes}"
            )
        self._variables = [
            tf.Variable(tf.fill([count], tf.constant(i + 1.0)), name=f"large_{i:02d}")
            for i in range(config.tensors)
        ]

    def variables(self) -> dict[str, Any]:
        """Name to variable."""
        return {f"large_{i:02d}": v for i, v in enumerate(self._variables)}

    def dataset(self, worker: tf.Tensor | int, workers: int) -> tf.data.Dataset:
        """Elements are step numbers; the step does not use them."""
        del worker, workers
        return tf.data.Dataset.counter()

    def step(self, element: tf.Tensor) -> tf.Tensor:
        """Read all variables; return the sum of their last elements, float32 scalar."""
        del element
        return tf.add_n([variable.read_value()[-1] for variable in self._variables])
