# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who may use variables that are in parts, and by which names."""

import os
import threading

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tf_fuse.shard_update.bundle import scope_of
from tf_fuse.shard_update.state import State


def test_who_is_in_a_step_does_not_wait_for_itself():
    state = State(None)
    with (
        state._alone([1, 2]),
        pytest.raises(tf.errors.FailedPreconditionError, match="in the middle of a step"),
        state._alone([2, 3]),
    ):
        pass
    with state._alone([2, 3]):
        pass


def test_another_thread_waits():
    state, order = State(None), []

    def other():
        with state._alone([2, 3]):
            order.append("other")

    with state._alone([1, 2]):
        thread = threading.Thread(target=other)
        thread.start()
        order.append("this")
    thread.join(60)
    assert order == ["this", "other"]


def test_strategies_that_share_a_device_share_no_names():
    devices = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3)]
    scopes = {scope_of(0, devices[:2]), scope_of(0, devices), scope_of(0, devices[1::-1])}
    assert len(scopes) == 3
    assert scope_of(0, devices) != scope_of(1, devices)
    assert scope_of(0, devices) == scope_of(0, list(devices))
