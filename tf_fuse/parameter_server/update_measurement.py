# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measure in a short run what an update takes on a parameter server.

Updates run as in the program: by its optimizer, and as one operation or as TensorFlow's own ones,
by its options. Other work on the machine can only make them longer, so each time is the best of
several.
"""

from __future__ import annotations

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
    found = of_times(one.seconds(), many.seconds(), large.seconds(), large.slots)
    is_fused = interception.fuses_updates()
    how = "updates that are one operation each" if is_fused else "updates as TensorFlow runs them"
    return replace(
        found,
        workers=max(1, worker_count(extended)),
        is_fused=is_fused,
        origin=f"measured on {device.partition('/device:')[0]}, of {how}",
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

    def seconds(self) -> float:
        """Return the seconds of the fastest step."""
        self._step().numpy()  # (The first one is traced and made into an operation.)
        tries = []
        for _ in range(_TRIES):
            start = time.perf_counter()
            self._step().numpy()
            tries.append(time.perf_counter() - start)
        return min(tries)
