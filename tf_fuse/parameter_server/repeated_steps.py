# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run several steps in one call of a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def repeat(step: Callable[..., Any], n: int) -> Any:
    """Return a `tf.function` that runs a step `n` times, one after the other.

    For `ClusterCoordinator.schedule`: a call costs the coordinator and the worker as much as a step
    of a small model, and this one has `n` steps. The graph holds the step `n` times, as that of
    Keras's `steps_per_execution` does.

        steps = tf_fuse.parameter_server.repeat(step, 8)
        coordinator.schedule(steps, args=(iterator,))

    Args:
      step: a function, or a `tf.function`; gets the arguments of each call, such as the iterator of
        a worker's dataset.
      n: how many steps, 1 or more.

    Returns:
      A function that returns what the steps return, each tensor with a new first dimension of `n`.

    Raises:
      ValueError: `n` is less than 1.
    """
    import tensorflow as tf

    if n < 1:
        raise ValueError(f"repeat runs a step 1 or more times, got n={n!r}")

    def stacked(*each: Any) -> Any:
        return None if each[0] is None else tf.stack(each)

    def repeated(*args: Any, **kwargs: Any) -> Any:
        results = [step(*args, **kwargs) for _ in range(n)]
        return tf.nest.map_structure(stacked, *results)

    # `compress` keeps apart what functions of different names lose by rounding.
    repeated.__name__ = getattr(step, "__name__", repeated.__name__)
    return tf.function(repeated)
