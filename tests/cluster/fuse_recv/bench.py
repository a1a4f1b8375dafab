# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the cases of `cases.py` stand on: a connected cluster, and where they register."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tests import scripted

Case = Callable[["Bench"], list[Any]]
CASES: dict[str, Case] = {}

# Of cc/base/limits.h, kDefaultMaxPackedTensorBytes.
MAX_PACKED_BYTES = 1 << 20


def case(function: Case) -> Case:
    """Registers a case under its function's name."""
    CASES[function.__name__] = function
    return function


class Bench:
    """A connected cluster, and what its tasks counted during the calls of a case."""

    def __init__(self, workers: int, ps: int, counts: bool, strategy: Any):
        self.workers = [f"worker:{i}" for i in range(workers)]
        self.ps = [f"ps:{i}" for i in range(ps)]
        self.strategy = strategy
        self.counted: list[dict[str, Any]] = []
        self._counts = counts

    def server(self, number: int) -> str:
        """The device of a parameter server; numbers go round."""
        return scripted.device(self.ps[number % len(self.ps)])

    def variable(self, server: int, value: Any, dtype: Any = None) -> tf.Variable:
        with tf.device(self.server(server)):
            return tf.Variable(value, dtype=dtype)

    def call(self, function: Any, *args: Any, on: list[str] | None = None) -> list[Any]:
        """Calls a function on each worker, or on the tasks `on`; returns all its values, flat."""
        values = []
        for task in on or self.workers:
            with self.counting():
                with tf.device(scripted.device(task)):
                    results = tf.nest.flatten(function(*args))
                values += [result.numpy() for result in results if result is not None]
        return values

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Adds what the tasks count meanwhile to `counted`."""
        before = scripted.metrics() if self._counts else {}
        yield
        if self._counts:
            self.counted.append(scripted.difference(before, scripted.metrics()))


def whole_numbers(dtype: str, seed: int, shape: tuple[int, ...] = (3,)) -> tf.Tensor:
    """Whole numbers as a tensor of a type; the same for the same seed."""
    values = np.random.default_rng(seed).integers(0, 100, shape)
    if dtype == "bool":
        return tf.constant(values % 2 == 0)
    return tf.cast(tf.constant(values), dtype)
