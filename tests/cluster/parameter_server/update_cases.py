# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training steps on parameter servers whose updates are compared with stock ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

ROWS, WIDTH, BATCH = 40, 32, 8
# Some rows more than once.
IDS = ([1, 3, 3, 7, 1, 0, 39, 5], [2, 2, 2, 2, 1, 0, 39, 5])

_BOTH = (
    ("Adadelta", {}),
    ("Adagrad", {}),
    ("Adam", {}),
    ("AdamW", {}),
    ("Adamax", {}),
    ("Ftrl", {}),
    ("Lion", {}),
    ("Nadam", {}),
    ("RMSprop", {}),
    ("SGD", {}),
)
_OPTIONS = (
    ("SGD", "momentum", {"momentum": 0.9}),
    ("SGD", "nesterov", {"momentum": 0.9, "nesterov": True}),
    ("Adam", "amsgrad", {"amsgrad": True}),
    ("RMSprop", "centered", {"centered": True, "momentum": 0.9}),
)


def makers() -> dict[str, Callable[[], Any]]:
    """Optimizers by name."""
    import tf_keras

    found = {}
    for name, module in (("keras", tf.keras.optimizers), ("tf_keras", tf_keras.optimizers)):
        for cls, args in _BOTH:
            found[f"{name} {cls}"] = _maker(module, cls, args)
        for cls, option, args in _OPTIONS:
            found[f"{name} {cls} {option}"] = _maker(module, cls, args)
    for option in ("clipnorm", "global_clipnorm"):
        found[f"keras SGD {option}"] = _maker(
            tf.keras.optimizers, "SGD", {option: 0.5, "momentum": 0.9}
        )
    for cls in ("Adagrad", "Ftrl", "RMSprop"):
        found[f"keras {cls} clipnorm"] = _maker(tf.keras.optimizers, cls, {"clipnorm": 0.5})
    legacy = tf_keras.optimizers.legacy
    found["tf_keras.legacy Adam"] = _maker(legacy, "Adam", {})
    found["tf.compat.v1.train Adam"] = _maker(tf.compat.v1.train, "AdamOptimizer", {})
    return found


def _maker(module: Any, cls: str, args: dict[str, Any]) -> Callable[[], Any]:
    return lambda: getattr(module, cls)(0.01, **args)


def variables_of(optimizer: Any) -> list[Any]:
    """The state of an optimizer."""
    found = optimizer.variables
    return list(found() if callable(found) else found)


class Model:
    """Two layers after a table, whose rows a step uses in part, and an optimizer.

    Attributes:
      weights: the table last.
      optimizer: with its state made.
      step: a `tf.function` of the rows' numbers.
    """

    def __init__(
        self,
        strategy: Any,
        make: Callable[[], Any],
        *,
        sparse: bool = True,
        nested: bool = False,
        returns: bool = True,
        times: int = 1,
    ):
        """Makes everything anew, with the same numbers each time."""
        rng = np.random.default_rng(7)

        def numbers(*shape: int) -> Any:
            return rng.standard_normal(shape).astype("float32")

        with strategy.scope():
            shapes = ([WIDTH, 16], [16], [16, 1], [1], [ROWS, WIDTH])
            # (Biases begin as zeros: a last bit of an update is not lost in a large weight.)
            values = [numbers(*s) if len(s) > 1 else np.zeros(s, "float32") for s in shapes]
            self.weights = [tf.Variable(value) for value in values]
            self.optimizer = make()
            if hasattr(self.optimizer, "build"):
                self.optimizer.build(self.weights)
        x = tf.constant(numbers(BATCH, WIDTH))
        first, bias, second, last, table = self.weights

        def replica(ids: Any) -> Any:
            with tf.GradientTape() as tape:
                rows = tf.gather(table, ids) if sparse else table[:BATCH] * 1.5
                hidden = tf.tanh(tf.matmul(x + rows, first) + bias)
                loss = tf.reduce_mean((tf.matmul(hidden, second) + last - 1.0) ** 2)
            gradients = tape.gradient(loss, self.weights)
            self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))
            return loss

        body = tf.function(replica) if nested else replica

        @tf.function(autograph=False)
        def step(ids: Any) -> Any:
            for _ in range(times):
                loss = strategy.run(body, args=(ids,))
            return loss if returns else None

        self.step = step

    def values(self) -> list[Any]:
        """Of all variables."""
        state = [*self.weights, *variables_of(self.optimizer)]
        return [tf.convert_to_tensor(variable).numpy() for variable in state]


def trained(job: Any, make: Callable[[], Any], steps: int = 3, **options: Any) -> list[Any]:
    """The losses of some steps, one after the other, and all variables behind them."""
    model = Model(job.strategy, make, **options)
    losses = [job.call(model.step, (tf.constant(IDS[i % 2]),)) for i in range(steps)]
    return [np.asarray(loss) for loss in losses if loss is not None] + model.values()


def ulps(ours: list[Any], stock: list[Any]) -> int:
    """By how many units in the last place two lists of values differ at most."""
    most = 0
    for one, other in zip(ours, stock, strict=True):
        if one.dtype == np.float32:
            a, b = (_ordered(value) for value in (one, other))
            most = max(most, int(np.max(np.abs(a - b), initial=0)))
        elif one.tobytes() != other.tobytes():
            raise AssertionError(f"{one} is not {other}")
    return most


def _ordered(value: Any) -> Any:
    """Whole numbers whose difference is how many numbers are in between."""
    bits = np.ascontiguousarray(value).reshape(-1).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


# --- Many workers -----------------------------------------------------------------------------


class Counted:
    """A variable to whose momentum each update adds -1, and then the momentum to it.

    So after k updates, and at any time in between if updates are whole, the momentum is -k and the
    variable is -k (k + 1) / 2, in all elements: small whole numbers, without rounding.
    """

    def __init__(self, strategy: Any, elements: int, sparse: bool = False):
        """Makes it, with the optimizer of Keras 3; or that of tf_keras, which scatters."""
        import tf_keras

        module = tf_keras if sparse else tf.keras
        rows = max(elements // 64, 1)
        with strategy.scope():
            self.weight = tf.Variable(tf.zeros([rows, 64]))
            self.optimizer = module.optimizers.SGD(1.0, momentum=1.0)
            self.optimizer.build([self.weight])
        self.momentum = next(
            v for v in variables_of(self.optimizer) if v.shape == self.weight.shape
        )

        @tf.function(autograph=False)
        def step() -> None:
            def replica() -> None:
                gradient: Any = tf.ones([rows, 64])
                if sparse:
                    gradient = tf.IndexedSlices(gradient, tf.range(rows), tf.constant([rows, 64]))
                self.optimizer.apply_gradients([(gradient, self.weight)])

            strategy.run(replica)

        self.step = step

    def values(self) -> tuple[Any, Any]:
        """Of the momentum and the variable, each read by itself."""
        return tuple(tf.convert_to_tensor(v).numpy() for v in (self.momentum, self.weight))

    def snapshot(self) -> tuple[Any, Any]:
        """Of both at one moment."""
        from tf_fuse import _native
        from tf_fuse.v1 import update_pb2

        size = self.weight.shape.num_elements()
        program = update_pb2.UpdateProgram(size=size, variable_types=[1, 1], results=[0, 1])
        for index in range(2):
            program.steps.add(op="ReadVariableOp", variable=index, type=1)
        handles = [_handle(self.momentum), _handle(self.weight)]
        with tf.device(handles[0].device):
            return tuple(
                value.numpy()
                for value in _native.load().tf_fuse_elementwise_update(
                    variables=handles, inputs=[], begun=[], Tout=[tf.float32] * 2,
                    shapes=[[size]] * 2, program=program.SerializeToString(),
                )
            )  # fmt: skip


def _handle(variable: Any) -> Any:
    value = getattr(variable, "value", None)
    return variable.handle if not hasattr(value, "handle") else value.handle


def whole_updates(momentum: Any, weight: Any) -> int | None:
    """How many updates two values are behind; None if they are not behind whole ones."""
    k = -float(momentum.flat[0])
    is_whole = (momentum == -k).all() and (weight == -k * (k + 1) / 2).all()
    return int(k) if is_whole else None
