# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Errors of calls that are under way together (`steps_in_flight`): TensorFlow counts them once."""

import contextlib
import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tf_fuse.parameter_server import steps_in_flight


class _Worker:
    """A worker whose handler ignores the first errors, as TensorFlow's does with lost servers."""

    device_name = "/job:worker/replica:0/task:0"

    def __init__(self, ignored):
        self.failure_handler = self
        self.left = ignored

    @contextlib.contextmanager
    def wait_on_failure(self, on_failure_fn, on_transient_failure_fn, worker_device_name):
        assert worker_device_name == self.device_name
        try:
            yield
        except tf.errors.UnavailableError as error:
            if "worker" in str(error):
                on_failure_fn(error)
            if not self.left:
                raise
            self.left -= 1
            on_transient_failure_fn()


def _threads(worker, count=3):
    incidents = steps_in_flight._Incidents()
    return [steps_in_flight._Thread(worker, incidents) for _ in range(count)]


def _fail_together(threads, errors):
    """Begin a call on each thread, then let all fail; return what went back to the queue."""
    back, calls = [], []
    for number, thread in enumerate(threads):
        back_one = lambda number=number: back.append(number)  # noqa: E731
        call = thread.wait_on_failure(None, back_one, None, _Worker.device_name)
        call.__enter__()
        calls.append(call)
    for call, error in zip(calls, errors, strict=True):
        if not call.__exit__(type(error), error, None):
            raise error
    return back


def _lost_server():
    return tf.errors.UnavailableError(None, None, "Socket closed, from a server")


def test_one_lost_connection_counts_once():
    worker = _Worker(ignored=2)
    threads = _threads(worker)
    for _ in range(2):
        assert _fail_together(threads, [_lost_server() for _ in threads]) == [0, 1, 2]
    assert worker.left == 0
    with pytest.raises(tf.errors.UnavailableError, match="Socket closed"):
        _fail_together(threads, [_lost_server() for _ in threads])


def test_calls_one_after_the_other_count_each():
    worker = _Worker(ignored=3)
    (thread,) = _threads(worker, 1)
    for left in (2, 1, 0):
        assert _fail_together([thread], [_lost_server()]) == [0]
        assert worker.left == left


def test_another_error_is_not_taken_for_the_one_before():
    threads = _threads(_Worker(ignored=3), 2)
    other = tf.errors.InvalidArgumentError(None, None, "a step's own")
    with pytest.raises(tf.errors.InvalidArgumentError, match="a step's own"):
        _fail_together(threads, [_lost_server(), other])


def test_a_lost_worker_is_noted():
    threads = _threads(_Worker(ignored=0), 2)
    errors = [tf.errors.UnavailableError(None, None, "the worker is gone") for _ in threads]
    assert _fail_together(threads, errors) == []
    assert [thread.lost for thread in threads] == errors
