# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train one model with stock updates and with those of tf_fuse.

It is traced once, and its variables are reset in between: the options act when a function is
called, and tests that trace it for each show that the traces are equal.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.all_passes import update_value_models as models

_SHOWN = 20  # differences of a model


def compared(
    make: Callable[[], models.Training],
    call: Callable[[Any, Any, Any], Any],
    switch: Callable[[bool], None],
) -> dict[str, Any]:
    """Train a model for forty steps with stock updates, and again with those of tf_fuse.

    Args:
      make: makes the model.
      call: calls its step with inputs and targets, and returns the loss.
      switch: switches tf_fuse's updates off and on.

    Returns:
      How many losses differ from each other; whether all have the same bits in both trainings;
      the shapes of vectors whose elements mostly ended as they began (a few may, such as slots that
      hold a last gradient of 0); by how much variables differ, and which of them do.
    """
    # (Slots that the step gets as handles are not among the variables of its graph.)
    with made_variables() as variables:
        training = make()
        training.step.get_concrete_function(*models.numbers(0))
    traces = training.step.experimental_get_tracing_count()
    begun = [tf.convert_to_tensor(variable) for variable in variables]
    runs = []
    for on in (False, True):
        switch(on)
        for variable, value in zip(variables, begun, strict=True):
            variable.assign(value)
        losses = [np.asarray(call(training.step, *models.numbers(i))) for i in range(models.STEPS)]
        runs.append((losses, _values(variables)))
    assert training.step.experimental_get_tracing_count() == traces
    (stock_losses, stock), (our_losses, ours) = runs
    pairs = [*zip(ours, stock, strict=True)]
    return {
        "losses": len({loss.tobytes() for loss in stock_losses}),
        "same_losses": [*map(bytes, our_losses)] == [*map(bytes, stock_losses)],
        "still": [
            a.shape
            for a, b in zip(ours, _numpy(begun), strict=True)
            if a.ndim == 1 and (a == b).mean() > 0.5
        ],
        "largest": max(float(np.max(np.abs(a.astype(float) - b))) for a, b in pairs),
        "apart": max(apart(a, b) for a, b in pairs),
        "differ": [
            (i, a.shape, apart(a, b))
            for i, (a, b) in enumerate(pairs)
            if a.tobytes() != b.tobytes()
        ][:_SHOWN],
    }


@contextlib.contextmanager
def made_variables() -> Iterator[list[Any]]:
    """Lists the variables that are made in it, one for each of a strategy's replicas here."""
    made: list[Any] = []

    def creator(make: Callable[..., Any], **args: Any) -> Any:
        made.append(make(**args))
        return made[-1]

    with tf.variable_creator_scope(creator):
        yield made


def apart(one: Any, other: Any) -> float:
    """How far two arrays are apart, relative to the largest element."""
    if one.dtype != np.float32:
        return 0.0
    largest = max(float(np.max(np.abs(other))), np.finfo(np.float32).tiny)
    return float(np.max(np.abs(one.astype(np.float64) - other))) / largest


def _values(variables: Sequence[Any]) -> list[Any]:
    return _numpy([tf.convert_to_tensor(variable) for variable in variables])


def _numpy(tensors: Sequence[Any]) -> list[Any]:
    """The values of tensors, which come from each device together."""
    found: dict[int, Any] = {}
    of_device = defaultdict(list)
    for i, tensor in enumerate(tensors):
        if tensor.shape.rank == 1 and tensor.dtype == tf.float32:
            of_device[tensor.device].append(i)
        else:
            found[i] = tensor.numpy()
    for device, indices in of_device.items():
        with tf.device(device):
            joined = tf.concat([tensors[i] for i in indices], axis=0)
        ends = np.cumsum([tensors[i].shape[0] for i in indices])
        found |= dict(zip(indices, np.split(joined.numpy(), ends[:-1]), strict=True))
    return [found[i] for i in range(len(tensors))]
