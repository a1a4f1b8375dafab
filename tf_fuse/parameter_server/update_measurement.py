# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measure in a short run what an update takes on a parameter server.

Updates run as in the program: by its optimizer, and as one operation or as TensorFlow's own ones,
by its options. Other work on the machine can only make them longer, so each time is the best of
several, and the steps that are compared run in turn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tf_fuse._tensorflow.variables.parameter_server_strategy import server_count, worker_count
from tf_fuse.parameter_server import arguments, interception
from tf_fuse.parameter_server.costs import Costs

# Elements of a large variable: more than a processor's caches have, with its slots.
_ELEMENTS = 4 << 20
# Elements of a small variable, and small variables per step. (Those of one element share
# operations.)
_FEW = 64
_MANY = 32
_TRIES = 5
# Most tries, where other work on the machine makes a small step seem longer than a larger one.
_MOST_TRIES = 100


def measure_costs(strategy: Any, optimizer: Callable[[], Any], server: int = 0) -> Costs:
    """Measure what updates take on one of a strategy's servers: some seconds.

        costs = tf_fuse.parameter_server.measure_costs(strategy, keras.optimizers.Adam)
        tf_fuse.parameter_server.set_costs(strategy, costs)

    Call it outside of the strategy's scope. It creates variables of 16 MiB on the server, and
    deletes them before it returns.

    Args:
      strategy: a `tf.distribute.ParameterServerStrategy`.
      optimizer: makes an optimizer of Keras 3 or tf_keras: its class, or a function.
      server: number of the server.

    Returns:
      `Costs` with `update_s_per_byte`, `update_s`, `slots` and the strategy's number of workers;
      `origin` says where they come from.

    Raises:
      TypeError: an argument is of another type.
      ValueError: there is no such server, or the program is in the scope of a strategy.
      RuntimeError: a large update never took longer than a small one: other work on the machine
        hides what they take.
    """
    import tensorflow as tf

    arguments.function(optimizer, "makes an optimizer")
    extended = interception.extended_of(strategy)
    server = arguments.whole("server", server, 0)
    if server >= server_count(extended):
        raise ValueError(f"there is no server {server}: the cluster has {server_count(extended)}")
    if tf.distribute.has_strategy():
        raise ValueError("call measure_costs outside of the scope of a strategy")
    device = f"/job:ps/replica:0/task:{server}/device:CPU:0"
    one, many, large = (
        _Updates(optimizer, device, shapes)
        for shapes in ([[_FEW]], [[_FEW]] * _MANY, [[_ELEMENTS]])
    )
    least, most, largest = fastest([one.seconds, many.seconds, large.seconds])
    found = of_times(least, most, largest, large.slots)
    is_fused = interception.fuses_updates()
    how = "updates that are one operation each" if is_fused else "updates as TensorFlow runs them"
    return replace(
        found,
        workers=max(1, worker_count(extended)),
        is_fused=is_fused,
        origin=f"measured on {device.partition('/device:')[0]}, of {how}",
    )


def fastest(steps: Sequence[Callable[[], float]]) -> list[float]:
    """Return the fewest seconds of each of three steps, which run in turn.

    Args:
      steps: a step of one small update, of many of them and of a large one; each returns its
        seconds.

    Raises:
      RuntimeError: the large update never took longer than the small one.
    """
    found = [math.inf] * len(steps)
    for tried in range(_MOST_TRIES):
        if tried >= _TRIES and found[2] > found[0]:
            return found
        found = [min(least, step()) for least, step in zip(found, steps, strict=True)]
    raise RuntimeError(
        f"an update of {4 * _ELEMENTS >> 20} MiB took {found[2]:.3g} s and one of {4 * _FEW} bytes"
        f" {found[0]:.3g} s, the fastest of {_MOST_TRIES}: measure when less runs on the machine"
    )


def of_times(one: float, many: float, large: float, slots: float) -> Costs:
    """Return the costs that follow from the times of steps.

    Args:
      one: of a step that updates one small variable.
      many: of one that updates `_MANY` of them.
      large: of one that updates one of `_ELEMENTS` elements of four bytes.
      slots: variables of its size beside it.
    """
    least = max(0.0, many - one) / (_MANY - 1)
    per_byte = max(0.0, large - one) / (4 * _ELEMENTS * (1 + slots))
    # (Rounded, for people.)
    return Costs(
        slots=round(slots),
        update_s_per_byte=float(f"{per_byte:.3g}"),
        update_s=float(f"{least:.3g}"),
    )


class _Updates:
    """A step that updates variables.

    Attributes:
      slots: bytes of the optimizer's variables over those of the variables.
    """

    def __init__(self, make: Callable[[], Any], device: str, shapes: Sequence[list[int]]):
        """Make the variables, their gradients, and the optimizer's."""
        import tensorflow as tf

        with tf.device(device):
            variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
            gradients = [tf.Variable(tf.ones(shape), trainable=False) for shape in shapes]
            optimizer = make()
            optimizer.build(variables)
            done = tf.Variable(0, trainable=False)
        state = optimizer.variables
        state = list(state() if callable(state) else state)
        size = sum(variable.shape.num_elements() for variable in variables)
        more = sum(tf.TensorShape(one.shape).num_elements() for one in state)
        self.slots = more / size

        @tf.function(autograph=False)
        def step() -> Any:
            with tf.device(device):
                pairs = [(one.read_value(), v) for one, v in zip(gradients, variables, strict=True)]
                optimizer.apply_gradients(pairs)
                return done.assign_add(1)

        self._step = step
        step().numpy()  # (The first one is traced and made into an operation.)

    def seconds(self) -> float:
        """Return the seconds of a step."""
        start = time.perf_counter()
        self._step().numpy()
        return time.perf_counter() - start
