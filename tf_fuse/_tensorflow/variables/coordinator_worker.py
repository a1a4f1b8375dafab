# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend how a thread of `ClusterCoordinator` runs the calls of its worker."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_FIRST_USE, ON_OBJECTS, Member, Stored, Takes

_MODULE = "tensorflow.python.distribute.coordinator.cluster_coordinator"
_WORKER = f"{_MODULE}:Worker"
_QUEUE = f"{_MODULE}:_CoordinatedClosureQueue"
_FEATURES = (feature_names.STEPS_IN_FLIGHT,)
_THREAD = "WorkerClosureProcessingLoop-"  # followed by the number of the worker
_PROCESS_QUEUE = Member(
    _WORKER,
    "_process_queue",
    Takes("self"),
    "A worker runs one call at a time; ours runs several.",
    _FEATURES,
    AT_FIRST_USE,
)
_RESOURCE = Member(
    _MODULE,
    "ResourceClosure",
    Takes("function", "cancellation_mgr", "args", "kwargs"),
    "makes datasets and iterators",
    _FEATURES,
)
_EXECUTOR = Member(
    "tensorflow.python.eager.executor",
    "new_executor",
    Takes("enable_async", "enable_streaming_enqueue", "in_flight_nodes_limit"),
    "runs the calls of one thread",
    (*_FEATURES, feature_names.KERAS_FIT, feature_names.SCHEDULE),
)
_RECOVERY = Member(
    _WORKER,
    "_on_worker_recovery",
    Takes("self"),
    "runs when a lost worker is back",
    _FEATURES,
    ON_OBJECTS,
)
MEMBERS = (
    _PROCESS_QUEUE,
    _RESOURCE,
    _EXECUTOR,
    *(
        Member(_WORKER, name, shape, "runs the calls of a worker", _FEATURES)
        for name, shape in (
            ("_process_closure", Takes("self", "closure")),
            ("_process_resource_closure", Takes("self", "closure")),
            ("_maybe_delay", Takes("self")),
            ("_cluster", Stored()),
            ("_should_worker_thread_run", Stored()),
            ("executor", Stored()),
            ("failure_handler", Stored()),
        )
    ),
    _RECOVERY,
    *(
        Member(_QUEUE, name, Takes(*parameters), "holds the calls", _FEATURES)
        for name, parameters in (
            ("get", ("self", "timeout", "tag")),
            ("put", ("self", "closure", "tag")),
            ("put_back", ("self", "closure")),
        )
    ),
    *(
        Member(f"{_MODULE}:Closure", name, Stored(), "names the function of a call", _FEATURES)
        for name in ("_concrete_function", "_function")
    ),
    Member(f"{_MODULE}:Cluster", "closure_queue", Stored(), "holds the calls", _FEATURES),
    Member(
        f"{_MODULE}:WorkerPreemptionHandler",
        "wait_on_failure",
        Takes(
            "self",
            "on_failure_fn",
            "on_transient_failure_fn",
            "on_recovery_fn",
            "worker_device_name",
        ),
        "decides what an error means",
        _FEATURES,
    ),
)


def extend(run: Callable[[Callable[[], None], Any], None]) -> None:
    """Extend what the thread of a worker does, once per process.

    Args:
      run: gets the stock method, bound, and TensorFlow's worker.
    """
    if monkey_patch.is_replaced(_PROCESS_QUEUE):
        return
    stock = _PROCESS_QUEUE.resolve()._process_queue

    @functools.wraps(stock)
    def process_queue(self: Any) -> None:
        run(functools.partial(stock, self), self)

    monkey_patch.replace(_PROCESS_QUEUE, process_queue)


def when_recovered(worker: Any, call: Callable[[], None]) -> None:
    """Add a call to what TensorFlow does when a lost worker is back, before that."""
    recovered = worker._on_worker_recovery

    def extended() -> None:
        call()
        recovered()

    worker._on_worker_recovery = extended


def is_any_running() -> bool:
    """Return whether there is a `ClusterCoordinator` in this process."""
    return any(thread.name.startswith(_THREAD) for thread in threading.enumerate())


def makes_resource(closure: Any) -> bool:
    """Return whether a call makes a dataset or an iterator of the worker."""
    return isinstance(closure, _RESOURCE.resolve().ResourceClosure)


def function_of(closure: Any) -> Any:
    """Return what a call runs: a concrete function, or a function of Python."""
    function = getattr(closure, "_concrete_function", closure._function)
    return getattr(function, "__func__", function)  # A bound method is a new object each time.


def new_executor() -> Any:
    """Return what runs the calls of one thread, one after the other."""
    return _EXECUTOR.resolve().new_executor(enable_async=False)


def process(worker: Any, closure: Any) -> None:
    """Run a call, and tell the queue how it ended.

    Args:
      worker: TensorFlow's worker, or what stands for it.
      closure: the call.
    """
    _PROCESS_QUEUE.resolve()._process_closure(worker, closure)


def make_resource(worker: Any, closure: Any) -> None:
    """Run a call that makes a dataset or an iterator of the worker."""
    worker._process_resource_closure(closure)


def delay(worker: Any) -> None:
    """Wait before the first call, as TensorFlow lets the threads of some workers do."""
    worker._maybe_delay()


def queue_of(worker: Any) -> Any:
    """Return the queue that has the calls."""
    return worker._cluster.closure_queue


def is_running(worker: Any) -> bool:
    """Return whether the coordinator has not been ended."""
    return bool(worker._should_worker_thread_run)
