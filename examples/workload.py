# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a training job is to the code that runs it: a program, its input and how it is split.

The same workload runs on a cluster and in one process: `build` is called inside the strategy's
scope in the first case and without any strategy in the second, and starts from equal values in
both.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf


class Program(Protocol):
    """Variables, and one training step on them."""

    def dataset(self, worker: tf.Tensor | int, workers: int) -> tf.data.Dataset:
        """Return the endless input of one worker; traced and run on that worker.

        Args:
          worker: the worker's index, int64 scalar.
          workers: number of workers.
        """
        ...

    def step(self, element: Any) -> tf.Tensor:
        """One update from one element of the dataset.

        Returns:
          The mean loss over the batch before the update, float32 scalar.
        """
        ...

    def variables(self) -> dict[str, Any]:
        """Name to variable (or sharded variable), optimizer state included, sorted by name."""
        ...


class Workload(Protocol):
    """A job that can be built.

    Attributes:
      name: how the command line calls it.
      batch: examples per step.
    """

    name: str
    batch: int

    def partitioner(self) -> Callable[..., Any] | None:
        """How variables are split over servers; None keeps each whole."""
        ...

    def build(self) -> Program:
        """Create the variables, in the scope of the strategy if there is one."""
        ...


def initial_values(name: str, shape: tuple[int, ...], scale: float, seed: int) -> np.ndarray:
    """Values a variable starts from: the same in every process and on every placement.

    Args:
      name: the variable's name; chooses the stream.
      shape: of the variable.
      scale: bound of the uniform distribution; 0 gives zeros.
      seed: of the job.

    Returns:
      float32 array of `shape`, uniform in [-scale, scale).
    """
    if scale == 0:
        return np.zeros(shape, np.float32)
    key = (zlib.crc32(name.encode()) << 32) | (seed & 0xFFFFFFFF)
    uniform = np.random.Generator(np.random.Philox(key=key)).random(shape)
    return ((uniform * 2 - 1) * scale).astype(np.float32)


def seeds(seed: int, worker: tf.Tensor | int) -> tf.data.Dataset:
    """Seeds of stateless random ops, without end.

    Args:
      seed: of the job.
      worker: the worker's index, int64 scalar.

    Returns:
      A dataset of int64 [2]: of the job and the worker, and the worker's step.
    """

    def at(step: tf.Tensor) -> tf.Tensor:
        return tf.stack([tf.cast(worker, tf.int64) * 1_000_003 + seed, tf.cast(step, tf.int64)])

    return tf.data.Dataset.counter().map(at)


def snapshot(program: Program) -> dict[str, np.ndarray]:
    """Name to current value of every variable; shards joined along the first axis."""
    values = {}
    for name, variable in program.variables().items():
        shards = getattr(variable, "variables", None)
        values[name] = (
            np.concatenate([shard.numpy() for shard in shards]) if shards else variable.numpy()
        )
    return values


def bytes_by_device(program: Program) -> dict[str, int]:
    """Device to the bytes of the variables on it, optimizer state included."""
    sizes: dict[str, int] = {}
    for variable in program.variables().values():
        for part in getattr(variable, "variables", [variable]):
            elements = part.shape.num_elements()
            sizes[part.device] = sizes.get(part.device, 0) + elements * part.dtype.size
    return dict(sorted(sizes.items()))
