# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a call of `ClusterCoordinator` without comparing its arguments with the function's again.

TensorFlow maps structures of arguments five times, binds them to the function's parameters, and
takes the tensors out of the worker's iterators. For a small step that takes longer than to start
it, and the worker waits meanwhile.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from tf_fuse._tensorflow import feature_names
from tf_fuse._tensorflow.members import Member, Stored, Takes

_PACKAGE = "tensorflow.python.distribute.coordinator"
_CLOSURE = f"{_PACKAGE}.cluster_coordinator:Closure"
_WORKER = f"{_PACKAGE}.cluster_coordinator:Worker"
_RESULT = f"{_PACKAGE}.values:RemoteValueImpl"
_CONCRETE = "tensorflow.python.eager.polymorphic_function.concrete_function:ConcreteFunction"
_FEATURES = (feature_names.SCHEDULE,)
_PER_WORKER = Member(
    f"{_PACKAGE}.values",
    "PerWorkerValues",
    Takes("values"),
    "is an argument",
    _FEATURES,
)
_EXECUTE = Member(_CLOSURE, "execute_on", Takes("self", "worker"), "runs a call", _FEATURES)
_EXECUTOR_SCOPE = Member(
    "tensorflow.python.eager.context", "executor_scope", Takes("e"), "runs a call", _FEATURES
)
_DISPATCH = Member(
    f"{_PACKAGE}.coordinator_context",
    "with_dispatch_context",
    Takes("worker_obj"),
    "runs a call",
    _FEATURES,
)
_TIMER = Member(
    f"{_PACKAGE}.metric_utils",
    "monitored_timer",
    Takes("metric_name", "state_tracker"),
    "runs a call",
    _FEATURES,
)
_CANCELS = Member(
    "tensorflow.python.eager.cancellation",
    "CancellationManagerContext",
    Takes("cancellation_manager"),
    "runs a call",
    _FEATURES,
)
MEMBERS = (
    _PER_WORKER,
    _EXECUTE,
    _EXECUTOR_SCOPE,
    _DISPATCH,
    _TIMER,
    _CANCELS,
    *(
        Member(_WORKER, name, Stored(), "runs a call", _FEATURES)
        for name in ("worker_index", "device_name", "executor")
    ),
    Member(
        f"{_PACKAGE}.values:PerWorkerValues",
        "_values",
        Stored(),
        "is an argument",
        _FEATURES,
    ),
    Member(_RESULT, "_get_error", Takes("self"), "is an argument", _FEATURES),
    Member(_RESULT, "_get_values", Takes("self"), "is an argument", _FEATURES),
    Member(_RESULT, "_set_values", Takes("self", "tensors"), "runs a call", _FEATURES),
    Member(
        _CONCRETE,
        "_call_flat",
        Takes("self", "tensor_inputs", "captured_inputs"),
        "runs a call",
        _FEATURES,
    ),
)
# Of an iterator on a worker: by function, the tensors that it takes out of that.
_INPUTS = "_tf_fuse_inputs"


def per_worker_values() -> type[Any]:
    """Return the class of arguments that differ by worker."""
    kind: type[Any] = _PER_WORKER.resolve().PerWorkerValues
    return kind


@functools.cache
def class_of() -> type[Any]:
    """Return the class of calls that know their concrete function and `_manager`."""
    import tensorflow as tf

    base = _EXECUTE.resolve()
    executor_scope = _EXECUTOR_SCOPE.resolve().executor_scope
    dispatch = _DISPATCH.resolve().with_dispatch_context
    timer = _TIMER.resolve().monitored_timer
    cancels = _CANCELS.resolve().CancellationManagerContext

    class Closure(base):  # type: ignore[misc, valid-type]
        """A call of a concrete function with iterators of workers, and with literals."""

        def execute_on(self, worker: Any) -> None:
            concrete = self._concrete_function
            values = _values_on(worker, self._args)
            inputs = None if values is None else _inputs_of(concrete, values)
            if inputs is None:
                super().execute_on(worker)  # which compares, or raises
                if values is not None:
                    _note(concrete, values)
                return
            with (
                tf.device(worker.device_name),
                executor_scope(worker.executor),
                dispatch(worker),
                timer("closure_execution"),
                cancels(self._manager),
            ):
                outputs = concrete._call_flat(inputs, concrete.captured_inputs)
            self.maybe_call_with_output_remote_value(lambda result: result._set_values(outputs))

    return Closure


def _values_on(worker: Any, args: tuple[Any, ...]) -> list[Any] | None:
    """Return a worker's arguments; None if it has not all of them."""
    kind = per_worker_values()
    values = []
    for one in args:
        if isinstance(one, kind):
            remote = one._values[worker.worker_index]
            if remote._get_error() is not None:
                return None
            values.append(remote._get_values())
        else:
            values.append(one)
    return values


def _inputs_of(concrete: Any, values: list[Any]) -> list[Any] | None:
    """Return the inputs of a function that were noted; None if they were not."""
    for value in values:
        noted = getattr(value, _INPUTS, None)
        if noted is not None:
            inputs: list[Any] | None = noted.get(concrete)
            return inputs
    return None


def _note(concrete: Any, values: list[Any]) -> None:
    """Keep the inputs that a call of a function took out of its arguments with these.

    They must be those of one argument: TensorFlow orders those of several by the parameters' names.
    """
    import tensorflow as tf

    kind = concrete.function_type
    if kind is None or len(values) != len(kind.parameters):
        return
    found = [
        (value, parameter.type_constraint)
        for value, parameter in zip(values, kind.parameters.values(), strict=True)
        if isinstance(value, tf.__internal__.CompositeTensor)
    ]
    if len(found) != 1:
        return
    ((value, constraint),) = found
    inputs = list(constraint.to_tensors(value))
    if len(inputs) != len(kind.flat_inputs):
        return
    if not hasattr(value, _INPUTS):
        setattr(value, _INPUTS, weakref.WeakKeyDictionary())
    getattr(value, _INPUTS)[concrete] = inputs
