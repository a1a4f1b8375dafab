# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Schedule the next call of a function without finding out again what is known of it.

`ClusterCoordinator.schedule` enters the strategy's scope, in which TensorFlow may trace; compares
the types of all arguments and captures; and describes the function's results. That takes longer
than all else that a coordinator computes for a small step, and gives the same each time.
"""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_FIRST_USE, ON_OBJECTS, Member, Stored, Takes
from tf_fuse._tensorflow.variables import coordinator_closure, coordinator_results

_COORDINATOR = "tensorflow.python.distribute.coordinator.cluster_coordinator"
_CLASS = f"{_COORDINATOR}:ClusterCoordinator"
_CLOSURE = f"{_COORDINATOR}:Closure"
_QUEUE = f"{_COORDINATOR}:_CoordinatedClosureQueue"
_FUNCTION = "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function"
_FEATURES = (feature_names.SCHEDULE,)
_SCHEDULE = Member(
    _CLASS,
    "schedule",
    Takes("self", "fn", "args", "kwargs"),
    "The next call of a function is a copy of the one before.",
    _FEATURES,
    AT_FIRST_USE,
)
_PUT = Member(
    _QUEUE,
    "put",
    Takes("self", "closure", "tag"),
    "The call that is copied passes here.",
    _FEATURES,
    ON_OBJECTS,
)
_MANAGER = Member(
    "tensorflow.python.eager.cancellation:CancellationManager",
    "get_cancelable_function",
    Takes("self", "concrete_function"),
    "cancels a call",
    _FEATURES,
)
MEMBERS = (
    _SCHEDULE,
    _PUT,
    _MANAGER,
    Member(_CLASS, "_cluster", Stored(), "schedules calls", _FEATURES),
    Member(f"{_COORDINATOR}:Cluster", "closure_queue", Stored(), "holds the calls", _FEATURES),
    Member(_QUEUE, "_cancellation_mgr", Stored(), "is another one after an error", _FEATURES),
    Member(_FUNCTION, "_function_captures", Stored(), "names captures that may change", _FEATURES),
    *(
        Member(_CLOSURE, name, Stored(), why, _FEATURES)
        for name, why in (
            ("_args", "may hold a dataset, which the copy does not keep"),
            ("_concrete_function", "is the function, which the copy does not keep"),
            ("_function", "holds the function, too"),
            ("_output_remote_value_ref", "is None until the call has a result"),
        )
    ),
    Member(
        _CLOSURE,
        "build_output_remote_value",
        Takes("self"),
        "makes the result of a call",
        _FEATURES,
    ),
)
_LITERALS = (type(None), bool, int, float, str)  # Of a class derived from one, equal may differ.


@dataclass(frozen=True)
class _Call:
    """A call of a `tf.function`, and what its concrete function depends on.

    It keeps neither that nor arguments alive.

    Attributes:
      closure: TensorFlow's, without what is kept weakly.
      concrete: the concrete function.
      args: of the call.
      traces: of the function.
      device: of the thread.
    """

    closure: Any
    concrete: weakref.ref[Any]
    args: tuple[Any, ...]
    traces: int
    device: str

    def again(self, manager: Any, fn: Any, args: tuple[Any, ...], device: str) -> Any:
        """Return another call if it runs the same concrete function, else None."""
        concrete = self.concrete()
        if (
            concrete is None
            or fn.experimental_get_tracing_count() != self.traces
            or device != self.device
            or len(args) != len(self.args)
            or any(_weak(new) != old for new, old in zip(args, self.args, strict=True))
        ):
            return None
        closure = copy.copy(self.closure)
        closure._args = args
        closure._concrete_function = concrete
        closure._function = manager.get_cancelable_function(concrete)
        closure._manager = manager
        return closure


class _Thread(threading.local):
    """The call that this thread has put into a queue, if it wants to know."""

    notes = False
    closure: Any = None


_thread = _Thread()
# By coordinator and function.
_calls: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, _Call]] = (
    weakref.WeakKeyDictionary()
)


def extend(is_on: Callable[[Any], bool], is_late: Callable[[Any], bool]) -> None:
    """Extend `ClusterCoordinator.schedule`, once per process.

    Args:
      is_on: returns whether a context schedules so.
      is_late: returns whether a context fetches what a call returned while its worker runs the
        next.
    """
    from tensorflow.python.eager import context as context_module

    if monkey_patch.is_replaced(_SCHEDULE):
        return
    stock = _SCHEDULE.resolve().schedule

    @functools.wraps(stock)
    def schedule(self: Any, fn: Any, args: Any = None, kwargs: Any = None) -> Any:
        context = context_module.context()
        if kwargs or not is_on(context) or not _is_plain(self, fn, args, context):
            return stock(self, fn, args=args, kwargs=kwargs)
        given = tuple(args or ())
        queue, device = self._cluster.closure_queue, context.device_name
        known = _calls.setdefault(self, weakref.WeakKeyDictionary())
        call = known.get(fn)
        closure = call and call.again(queue._cancellation_mgr, fn, given, device)
        if closure is not None:
            result = _result(closure, queue, is_late(context))
            queue.put(closure)
            return result
        _watch(queue)
        before = _thread.notes  # of a function that is being traced, and schedules this one
        _thread.notes = True
        try:
            result = stock(self, fn, args=args, kwargs=kwargs)
            if not fn._function_captures.by_ref_external:
                known[fn] = _noted(_thread.closure, fn, given, device)
        finally:
            _thread.notes, _thread.closure = before, None
        return result

    monkey_patch.replace(_SCHEDULE, schedule)


def _result(closure: Any, queue: Any, is_late: bool) -> Any:
    """Return the result that a call will have."""
    if not is_late:
        return closure.build_output_remote_value()
    kind = coordinator_results.class_of(as_arrays=False, late=True)
    return coordinator_results.result_of(closure, queue, kind)


def _is_plain(coordinator: Any, fn: Any, args: Any, context: Any) -> bool:
    """Return whether what is looked at decides which concrete function runs."""
    import tensorflow as tf

    if not hasattr(fn, "_function_captures") or not context.executing_eagerly():
        return False
    if type(args) not in (tuple, list, type(None)):  # TensorFlow says what is wrong.
        return False
    if tf.distribute.has_strategy() and not (
        tf.distribute.get_strategy() is coordinator.strategy
        and tf.distribute.in_cross_replica_context()
    ):
        return False
    kind = coordinator_closure.per_worker_values()
    return all(type(one) in _LITERALS or isinstance(one, kind) for one in args or ())


def _weak(argument: Any) -> Any:
    """Return what equals that of the same object, or of an equal literal of the same type."""
    if type(argument) in _LITERALS:
        return type(argument), repr(argument)
    return weakref.ref(argument)


def _noted(closure: Any, fn: Any, args: tuple[Any, ...], device: str) -> _Call:
    """Return what to keep of a call that was scheduled."""
    template = copy.copy(closure)
    template.__class__ = coordinator_closure.class_of()
    template._args = template._concrete_function = template._function = None
    template._output_remote_value_ref = None
    return _Call(
        template,
        weakref.ref(closure._concrete_function),
        tuple(map(_weak, args)),
        fn.experimental_get_tracing_count(),
        device,
    )


def _watch(queue: Any) -> None:
    """Note the calls that a thread puts into a queue."""
    if hasattr(queue.put, "tf_fuse_notes"):
        return
    stock = queue.put

    @functools.wraps(stock)
    def put(closure: Any, tag: Any = None) -> None:
        stock(closure, tag)
        if _thread.notes:
            _thread.closure = closure

    put.tf_fuse_notes = True  # type: ignore[attr-defined]
    queue.put = put
