# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ask this process, or every task of the connected cluster, for counters and reports."""

from __future__ import annotations

import concurrent.futures
import ctypes
import itertools
from collections.abc import Mapping
from typing import Any

from tf_fuse import _native

# Of absl::StatusCode.
_OK = 0
_FAILED_PRECONDITION = 9
# Tasks asked at the same time.
_MAX_THREADS = 32
# Of TensorFlow's strategies: a master does not say which tasks it waits for.
_JOBS = ("chief", "worker", "ps", "evaluator")
_NO_OTHER = "/job:tf_fuse_none"


class TaskError(Exception):
    """A task did not answer; the message says why."""


def ask_this_process(question: int) -> bytes:
    """Return this process's answer to a `tf_fuse.v1.Question`.

    Raises:
      MemoryError: there is no memory for the answer.
    """
    library = _native.library()
    library.tf_fuse_answer.restype = ctypes.c_void_p
    library.tf_fuse_answer.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_size_t)]
    size = ctypes.c_size_t()
    return _taken(library, library.tf_fuse_answer(question, ctypes.byref(size)), size)


def own_tasks() -> list[str]:
    """Return the tasks ("/job:ps/replica:0/task:0") whose servers run in this process."""
    from tf_fuse.v1 import fuse_recv_pb2

    return ask_this_process(fuse_recv_pb2.QUESTION_TASKS).decode(errors="replace").split()


def ask_every_task(
    question: int, timeout_s: float, target: str | Mapping[str, str] | None = None
) -> dict[str, bytes | TaskError]:
    """Ask every task of the connected cluster concurrently, or of a session's in turn.

    Args:
      question: a `tf_fuse.v1.Question`.
      timeout_s: seconds to wait for a task's answer. (A process without a server
        of the protocol "grpc+fuse" asks by an operation, which waits as long as it takes.)
      target: of a session, which is made to ask through; or task to its own target, which asks
        each alone; None for the eager context.

    Returns:
      A dict from task ("/job:ps/replica:0/task:0"), in sorted order, to its answer or an error.

    Raises:
      tf.errors.OpError: `target` is one address, and no master there answered in time.
    """
    if isinstance(target, str):
        return _ask_by_session(question, timeout_s, target)
    if target is not None:
        answers = {
            task: _ask_alone(question, timeout_s, own, task) for task, own in sorted(target.items())
        }
        return {
            task: TaskError(f"{target[task]} is another task") if answer is None else answer
            for task, answer in answers.items()
        }
    devices = _devices()
    with concurrent.futures.ThreadPoolExecutor(_MAX_THREADS) as threads:
        asked = {
            task: threads.submit(_ask, task, device, question, timeout_s)
            for task, device in sorted(devices.items())
        }
        return {task: answer.result() for task, answer in asked.items()}


def ask_task(task: str, device: str, question: int, timeout_s: float) -> bytes | TaskError:
    """Ask one task of the connected cluster.

    Args:
      task: "/job:ps/replica:0/task:0".
      device: a CPU of it.
      question: a `tf_fuse.v1.Question`.
      timeout_s: see `ask_every_task`.
    """
    return _ask(task, device, question, timeout_s)


def _ask_by_session(question: int, timeout_s: float, target: str) -> dict[str, bytes | TaskError]:
    import tensorflow as tf

    try:
        return _ask_through(question, timeout_s, target, [])
    except tf.errors.DeadlineExceededError:
        pass
    # A session waits for every task that its filters do not keep out, so one that is silent hides
    # all others.
    answers = _ask_through(question, timeout_s, target, [_NO_OTHER])
    own = [task.split("/")[1].removeprefix("job:") for task in answers]
    for job in dict.fromkeys([*own, *_JOBS]):
        for index in itertools.count():
            task = f"/job:{job}/replica:0/task:{index}"
            if task not in answers:
                answer = _ask_alone(question, timeout_s, target, task)
                if answer is None:
                    break
                answers[task] = answer
    return dict(sorted(answers.items()))


def _ask_alone(question: int, timeout_s: float, target: str, task: str) -> bytes | TaskError | None:
    """Ask one task through a session; None if its cluster has no such task."""
    import tensorflow as tf

    try:
        return _ask_through(question, timeout_s, target, [task]).get(task)
    except tf.errors.OpError as error:
        return TaskError(f"{type(error).__name__}: {error.message}")


def _ask_through(
    question: int, timeout_s: float, target: str, filters: list[str]
) -> dict[str, bytes | TaskError]:
    """Ask through a session, which waits for the tasks that its filters let in.

    Args:
      question: a `tf_fuse.v1.Question`.
      timeout_s: seconds to wait for a session, and then for each answer.
      target: of the session; this task is always in it.
      filters: of devices, at most one; none of them lets in all.

    Raises:
      tf.errors.OpError: no session could be made in time.
    """
    import tensorflow as tf

    ops = _native.load()
    config = tf.compat.v1.ConfigProto(
        operation_timeout_in_ms=round(timeout_s * 1000), device_filters=filters
    )
    answers: dict[str, bytes | TaskError] = {}
    with tf.Graph().as_default(), tf.compat.v1.Session(target, config=config) as session:
        names = [d.name for d in session.list_devices() if d.device_type == "CPU"]
        found = sorted(_first_devices(names).items())
        for task, name in [one for one in found if one[0] in filters] or found:
            try:
                with tf.device(name):
                    answers[task] = session.run(ops.tf_fuse_answer(question=question))
            except tf.errors.OpError as error:
                answers[task] = TaskError(f"{type(error).__name__}: {error.message}")
    return answers


def _devices() -> dict[str, str]:
    """Return the first CPU device of each task."""
    import tensorflow as tf

    return _first_devices([device.name for device in tf.config.list_logical_devices("CPU")])


def _first_devices(names: list[str]) -> dict[str, str]:
    import tensorflow as tf

    devices: dict[str, str] = {}
    for name in names:
        spec = tf.DeviceSpec.from_string(name)
        if spec.job is None:
            task = "/job:localhost/replica:0/task:0"
        else:
            task = f"/job:{spec.job}/replica:{spec.replica or 0}/task:{spec.task or 0}"
        devices.setdefault(task, name)
    return devices


def _ask(task: str, device: str, question: int, timeout_s: float) -> bytes | TaskError:
    library = _native.library()
    library.tf_fuse_ask.restype = ctypes.c_void_p
    library.tf_fuse_ask.argtypes = [
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_size_t),
        ctypes.POINTER(ctypes.c_int),
    ]
    size, code = ctypes.c_size_t(), ctypes.c_int()
    data = library.tf_fuse_ask(
        task.encode(), question, round(timeout_s * 1000), ctypes.byref(size), ctypes.byref(code)
    )
    answer = _taken(library, data, size)
    if code.value == _OK:
        return answer
    if code.value == _FAILED_PRECONDITION:
        return _ask_by_op(device, question)
    return TaskError(answer.decode(errors="replace"))


def _ask_by_op(device: str, question: int) -> bytes | TaskError:
    import tensorflow as tf

    ops = _native.load()
    try:
        with tf.init_scope(), tf.device(device):
            answer: bytes = ops.tf_fuse_answer(question=question).numpy()
            return answer
    except tf.errors.OpError as error:
        return TaskError(f"{type(error).__name__}: {error.message}")


def _taken(library: Any, data: int | None, size: ctypes.c_size_t) -> bytes:
    """Copy the bytes that the library returned, and free the library's memory."""
    if data is None:
        raise MemoryError("no memory for the answer of tf_fuse")
    library.tf_fuse_free.argtypes = [ctypes.c_void_p]
    try:
        return ctypes.string_at(data, size.value)
    finally:
        library.tf_fuse_free(data)
