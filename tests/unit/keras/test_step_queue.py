# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Calls of `fit`: results that come while their workers run the next ones, and errors."""

import collections
import os
import threading
import types

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("keras")

from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import executor

from tf_fuse._tensorflow.variables import coordinator, coordinator_results
from tf_fuse.keras import step_queue


class _Worker:
    """Stands for TensorFlow's worker: what a call returned is on it.

    Attributes:
      alive: whether results can be fetched from it.
    """

    device = "/job:worker/replica:0/task:1/device:CPU:0"

    def __init__(self):
        self.alive = True
        self.error = tf.errors.UnavailableError(None, None, "it is gone")

    def run(self, calls):
        """Run the next call of a queue, as a thread of TensorFlow's coordinator does."""
        closure = calls.get(timeout=10.0)
        assert closure is not None, "no call waits"
        result = closure._output_remote_value_ref()
        result._set_values([self])
        result.get()
        calls.mark_finished()

    def numpy(self):
        if not self.alive:
            raise self.error
        return np.array([7], np.uint8)


class _Fetcher:
    """Stands for the thread that fetches: does it when the test says so."""

    def __init__(self):
        self.waiting = []

    def add(self, result):
        self.waiting.append(result)

    def fetch(self):
        self.waiting.pop(0).bring()


@pytest.fixture
def calls(monkeypatch):
    """The queue of a `ClusterCoordinator`, a worker, and what fetches from it."""
    fetcher = _Fetcher()
    monkeypatch.setattr(coordinator_results, "_fetcher", lambda worker: fetcher)
    found = cluster_coordinator._CoordinatedClosureQueue()
    yield found, _Worker(), fetcher
    found.stop()


def _scheduled(found):
    stub = types.SimpleNamespace(_cluster=types.SimpleNamespace(closure_queue=found))
    concrete = tf.function(lambda: [tf.zeros([1], tf.uint8)]).get_concrete_function()
    scheduler = coordinator.Scheduler(stub, concrete, as_arrays=True, late=True)
    return step_queue.Call(scheduler.schedule(()))


def test_a_call_has_not_ended_before_its_result_is_here(calls):
    found, worker, fetcher = calls
    call = _scheduled(found)
    worker.run(found)
    assert not call.is_done() and not found.done()
    fetcher.fetch()
    assert call.is_done() and found.done()
    assert [one.tolist() for one in call.fetch()] == [[7]]
    assert call.worker() == 1


def test_a_worker_runs_its_next_call_before_the_result_of_the_one_before_is_here(calls):
    found, worker, fetcher = calls
    first, second = _scheduled(found), _scheduled(found)
    worker.run(found)
    worker.run(found)
    fetcher.fetch()
    assert first.is_done() and not second.is_done() and not found.done()
    fetcher.fetch()
    assert second.is_done() and found.done()


def test_a_call_waits_while_one_runs_and_the_result_of_another_comes(calls):
    found, worker, _ = calls
    queue = object.__new__(step_queue.StepQueue)
    queue._in_flight, queue.workers = 1, 1
    begun = [_scheduled(found) for _ in range(queue.most())]
    worker.run(found)  # its result comes
    running = found.get(timeout=10.0)
    assert [running is not None, any(one.is_done() for one in begun)] == [True, False]
    assert found.get(timeout=0.1) is not None, "no call waits"


def test_a_call_whose_result_is_lost_with_its_worker_runs_again(calls):
    found, worker, fetcher = calls
    call = _scheduled(found)
    worker.run(found)
    worker.alive = False
    fetcher.fetch()
    assert not call.is_done() and not found.done()
    worker.alive = True
    worker.run(found)
    fetcher.fetch()
    assert call.fetch()[0].tolist() == [7] and found.done()


def test_another_error_of_a_fetch_is_that_of_the_call(calls):
    found, worker, fetcher = calls
    call = _scheduled(found)
    worker.run(found)
    worker.alive, worker.error = False, tf.errors.ResourceExhaustedError(None, None, "no memory")
    fetcher.fetch()
    assert call.is_done()
    with pytest.raises(tf.errors.ResourceExhaustedError):
        call.fetch()
    with pytest.raises(tf.errors.ResourceExhaustedError):
        found.done()


def test_a_result_that_is_lost_after_an_error_is_given_up(calls):
    """TensorFlow cancels all calls after an error: none runs again."""
    found, worker, fetcher = calls
    call, failing = _scheduled(found), _scheduled(found)
    worker.run(found)
    found.get()
    found.mark_failed(tf.errors.InvalidArgumentError(None, None, "of the step"))
    worker.alive = False
    fetcher.fetch()
    assert call.is_done() and not failing.is_done()
    with pytest.raises(tf.errors.CancelledError):
        call.fetch()
    with pytest.raises(tf.errors.InvalidArgumentError):
        found.done()


@pytest.mark.parametrize(
    ("kind", "text", "is_lost"),
    [
        (tf.errors.UnavailableError, "socket closed", True),
        (tf.errors.AbortedError, "restarted", True),
        (tf.errors.CancelledError, "cancelled", True),
        (tf.errors.InvalidArgumentError, "Unable to find a context_id", True),
        (tf.errors.InvalidArgumentError, "the relevant tensor remote_handle", True),
        (tf.errors.InvalidArgumentError, "another shape", False),
        (tf.errors.ResourceExhaustedError, "no memory", False),
    ],
)
def test_errors_that_say_that_a_worker_is_gone(kind, text, is_lost):
    assert coordinator_results._is_lost(kind(None, None, text)) == is_lost


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
    monkeypatch.setattr(coordinator_results._of_thread, "executor", _Executor(cause), raising=False)
    error = kind(None, None, "RecvFromRemoteAsync is cancelled.")
    with pytest.raises(tf.errors.OpError) as raised, coordinator_results._fetching():
        raise error
    assert raised.value is (cause if kind is tf.errors.CancelledError else error)
    coordinator_results._of_thread.executor.wait()
