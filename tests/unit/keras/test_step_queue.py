# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What calls of `fit` returned comes from their workers together."""

import collections
import os
import threading
import types

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("keras")

from tensorflow.python.eager import executor

from tf_fuse._tensorflow.variables import coordinator
from tf_fuse.keras import step_queue
from tf_fuse.keras.packing import Packing


class _Result:
    """The result of a call that has ended on a worker."""

    def __init__(self, values, worker):
        self._values = [types.SimpleNamespace(device=f"/job:worker/task:{worker}", array=values[0])]
        self._status_available_event = types.SimpleNamespace(is_set=lambda: True)
        self._has_fetched_to_local, self._error = True, None
        self._arrays = values

    def get(self):
        return self._arrays


def _calls(workers, known_steps):
    found = []
    for number, worker in enumerate(workers):
        packing = Packing()
        packed = packing.pack({"number": tf.constant(float(number))}, steps=2)
        arrays = [one.numpy() for one in packed]
        found.append(step_queue.Call(_Result(arrays, worker), packing, known_steps))
    return found


def _numbers(calls, arrays):
    return [float(call.packing.array(one, 0)) for call, one in zip(calls, arrays, strict=True)]


def test_each_worker_is_asked_once(monkeypatch):
    asked = []

    def arrays_of(results):
        asked.append(len(results))
        return [one._values[0].array for one in results]

    monkeypatch.setattr(coordinator, "arrays_of", arrays_of)
    calls = _calls([1, 0, 1, 1, 0], known_steps=2)
    assert _numbers(calls, step_queue.fetch_together(calls)) == [0, 1, 2, 3, 4]
    assert asked == [3, 2]
    assert [one.steps() for one in calls] == [2] * 5


def test_results_that_are_here_need_no_message(monkeypatch):
    monkeypatch.delattr(coordinator, "arrays_of")
    calls = _calls([0, 1], known_steps=None)
    assert _numbers(calls, step_queue.fetch_together(calls)) == [0, 1]


def test_what_a_lost_worker_returned_is_nothing_and_named(monkeypatch, caplog):
    def arrays_of(results):
        if "task:1" in results[0]._values[0].device:
            raise tf.errors.UnavailableError(None, None, "it is gone")
        return [one._values[0].array for one in results]

    monkeypatch.setattr(coordinator, "arrays_of", arrays_of)
    calls = _calls([0, 1, 1, 0], known_steps=2)
    arrays = step_queue.fetch_together(calls)
    assert _numbers(calls, arrays) == [0, 0, 0, 3]
    ran = [call.packing.steps(one) for call, one in zip(calls, arrays, strict=True)]
    assert ran == [2, 0, 0, 2]
    assert [record.getMessage() for record in caplog.records] == [
        "the logs lack the metrics of 4 steps that worker 1 ran before it was lost: it is gone"
    ]


def test_other_errors_are_raised(monkeypatch):
    def arrays_of(results):
        raise tf.errors.ResourceExhaustedError(None, None, "no memory")

    monkeypatch.setattr(coordinator, "arrays_of", arrays_of)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        step_queue.fetch_together(_calls([0], known_steps=2))


def test_what_has_come_is_not_fetched_again(monkeypatch):
    calls = _calls([0, 1], known_steps=2)
    calls[0].arrays = calls[0].fetch()
    asked = []

    def arrays_of(results):
        asked.extend(results)
        return [one._values[0].array for one in results]

    monkeypatch.setattr(coordinator, "arrays_of", arrays_of)
    assert _numbers(calls, step_queue.fetch_together(calls)) == [0, 1]
    assert asked == [calls[1]._result]


@pytest.mark.parametrize(
    ("structure", "may_stay"),
    [
        ({"additions": [[tf.constant(1.0)]], "logs": {"loss": None}}, True),
        ({"additions": [], "logs": {"loss": None}}, True),
        ({"additions": [[tf.constant(1.0)]], "logs": {"own": tf.constant(1.0)}}, False),
        ({"additions": [[tf.constant("text")]], "logs": {"loss": None}}, False),
        ({"additions": [[tf.zeros([1 << 14])]], "logs": {"loss": None}}, False),
    ],
)
def test_only_small_sums_may_stay(structure, may_stay):
    packing = Packing()
    packing.pack(structure)
    assert packing.has_only_sums() == may_stay


def test_results_of_one_worker_are_one_array():
    results = [
        types.SimpleNamespace(_values=[tf.constant(values, tf.uint8)])
        for values in ([1, 2, 3], [4], [5, 6])
    ]
    found = coordinator.arrays_of(results)
    assert [one.tolist() for one in found] == [[1, 2, 3], [4], [5, 6]]
    assert all(isinstance(one, np.ndarray) for one in found)


class _Coordinator:
    """Raises the error of the call that failed first, and forgets it, as TensorFlow's does."""

    def __init__(self, *errors):
        self._errors = list(errors)

    def join(self):
        if self._errors:
            raise self._errors.pop(0)


@pytest.mark.parametrize("is_known", [True, False])
def test_the_error_of_the_call_that_failed_first_is_raised(is_known):
    """After it, TensorFlow cancels all other calls, and waits for no lost worker."""
    queue = object.__new__(step_queue.StepQueue)
    queue._lock, queue._begun = threading.Lock(), collections.deque(["a call"])
    first = tf.errors.InvalidArgumentError(None, None, "the first")
    later = tf.errors.UnavailableError(None, None, "a lost worker")
    queue.coordinator = _Coordinator(*[first] * is_known)
    with pytest.raises(tf.errors.OpError) as raised, queue.giving_up_after_errors():
        raise later
    assert raised.value is (first if is_known else later)
    assert not queue._begun


class _Executor:
    """Waits for what has failed with an error, until that is cleared."""

    def __init__(self, error):
        self._real, self._error = executor.new_executor(enable_async=False), error
        self.handle = self._real.handle

    def wait(self):
        if self._error is not None:
            raise self._error

    def clear_error(self):
        self._error = None


@pytest.mark.parametrize("kind", [tf.errors.CancelledError, tf.errors.UnavailableError])
def test_a_fetch_that_a_lost_worker_cancels_has_the_error_of_the_worker(kind, monkeypatch):
    cause = tf.errors.UnavailableError(None, None, "Broken pipe: /job:worker/task:0")
    monkeypatch.setattr(coordinator._of_thread, "executor", _Executor(cause), raising=False)
    error = kind(None, None, "RecvFromRemoteAsync is cancelled.")
    with pytest.raises(tf.errors.OpError) as raised, coordinator._fetching():
        raise error
    assert raised.value is (cause if kind is tf.errors.CancelledError else error)
    coordinator._of_thread.executor.wait()
