# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A training step of one replica, as it was measured in one process."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

_WARM_UP, _LEAST, _SECONDS = 2, 3, 1.0
_OPTION = "fuse_weight_update"


@dataclasses.dataclass(frozen=True)
class Part:
    """What a part of a step takes.

    Attributes:
      cpu_s: CPU seconds of all threads.
      threads: cores that it uses on average, where it has as many as the measuring process had.
    """

    cpu_s: float
    threads: float = 1.0


@dataclasses.dataclass(frozen=True)
class ReplicaStep:
    """A step.

    Attributes:
      name: of the model.
      weight_bytes: of all trainable variables, and so of their gradients.
      gradients: how many.
      compute: the loss and its gradients.
      update: of all weights, by the optimizer's own operations.
      fused_update: by one operation for each weight.
    """

    name: str
    weight_bytes: float
    gradients: int
    compute: Part
    update: Part
    fused_update: Part


def measured_step(
    name: str,
    weights: Sequence[Any],
    gradients: Callable[[], Any],
    update: Callable[[Any], Any],
) -> ReplicaStep:
    """Run the parts of a step in this process, about a second each.

    Args:
      name: of the model.
      weights: its trainable variables.
      gradients: computes the gradients of a batch.
      update: updates the weights with them.
    """
    import tensorflow as tf

    def step() -> Any:
        return update(gradients())

    set_options = tf.config.optimizer.set_experimental_options
    before = tf.config.optimizer.get_experimental_options().get(_OPTION, False)
    try:
        # (The option acts when a function is called, on those that were traced before, too.)
        set_options({_OPTION: False})
        compute, whole = (_measure(tf.function(one)) for one in (gradients, step))
        set_options({_OPTION: True})
        fused = _measure(tf.function(step))
    finally:
        set_options({_OPTION: before})
    return ReplicaStep(
        name,
        float(sum(_elements(one) * _width(one) for one in weights)),
        len(weights),
        _part(compute),
        _rest(whole, compute),
        _rest(fused, compute),
    )


def _elements(variable: Any) -> int:
    count = 1
    for size in variable.shape:
        count *= int(size)
    return count


def _width(variable: Any) -> int:
    import tensorflow as tf

    return int(tf.as_dtype(variable.dtype).size)


def _measure(run: Callable[[], Any]) -> tuple[float, float]:
    """Return CPU and wall seconds of a call."""
    for _ in range(_WARM_UP):
        run()
    calls, cpu, begin = 0, time.process_time(), time.perf_counter()
    while calls < _LEAST or time.perf_counter() - begin < _SECONDS:
        run()
        calls += 1
    wall = time.perf_counter() - begin
    return (time.process_time() - cpu) / calls, wall / calls


def _part(seconds: tuple[float, float]) -> Part:
    cpu_s, wall_s = seconds
    return Part(cpu_s, max(1.0, cpu_s / wall_s)) if wall_s > 0 else Part(cpu_s)


def _rest(whole: tuple[float, float], first: tuple[float, float]) -> Part:
    return _part((max(0.0, whole[0] - first[0]), max(0.0, whole[1] - first[1])))
