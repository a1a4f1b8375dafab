# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Add to metrics in one operation on their server.

Keras reads a metric's variable, adds to what it read, and assigns the sum. If two workers do so at
a time, what one of them added is lost.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tf_fuse._tensorflow.keras.variable import value_of

_variables: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar(
    "variables", default=frozenset()
)


@contextlib.contextmanager
def atomic_adds(variables: Iterable[Any]) -> Iterator[None]:
    """Make assignments of sums to these variables of Keras additions while a step is traced.

    The function that is traced must assign to each of them once after it has read it.
    """
    token = _variables.set(frozenset(id(one) for one in variables))
    try:
        yield
    finally:
        _variables.reset(token)


def assign(stock: Callable[..., None], self: Any, value: Any) -> None:
    """Extend `Variable._direct_assign`."""
    variable = value_of(self)
    added = _added(value, variable) if id(self) in _variables.get() else None
    if added is None:
        stock(self, value)
    else:
        variable.assign_add(added)


def _added(value: Any, variable: Any) -> Any:
    """Return x if a value was computed as the variable plus x; else None."""
    import tensorflow as tf

    if not tf.is_symbolic_tensor(value) or not hasattr(variable, "handle"):
        return None
    if value.op.type not in ("Add", "AddV2") or value.dtype != variable.dtype:
        return None
    handle = value.graph.capture(variable.handle)
    left, right = value.op.inputs
    for read, added in ((left, right), (right, left)):
        while read.op.type == "Identity":
            read = read.op.inputs[0]
        is_read = read.op.type == "ReadVariableOp" and read.op.inputs[0] is handle
        if is_read and added.shape == variable.shape:
            return added
    return None
