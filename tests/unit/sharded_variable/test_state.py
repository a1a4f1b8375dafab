# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who may use variables that are in shards, and by which names."""

import gc
import os
import threading
import types
import weakref

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tf_fuse.sharded_variable import handle_access
from tf_fuse.sharded_variable import state as state_module
from tf_fuse.sharded_variable.local_shards import TYPE_NAME
from tf_fuse.sharded_variable.peers import Peers
from tf_fuse.sharded_variable.shard_group import scope_of
from tf_fuse.sharded_variable.state import ShardGroups
from tf_fuse.sharded_variable.unshard import UnshardCounts


def test_who_is_in_a_step_does_not_wait_for_itself():
    state = ShardGroups(None)
    with (
        state._alone([1, 2]),
        pytest.raises(tf.errors.FailedPreconditionError, match="in the middle of a step"),
        state._alone([2, 3]),
    ):
        pass
    with state._alone([2, 3]):
        pass


def test_another_thread_waits():
    state, order = ShardGroups(None), []

    def other():
        with state._alone([2, 3]):
            order.append("other")

    with state._alone([1, 2]):
        thread = threading.Thread(target=other)
        thread.start()
        order.append("this")
    thread.join(60)
    assert order == ["this", "other"]


def test_a_step_asks_each_shard_group_once_for_its_handles():
    """Or a step of some hundred weights would spend its time on that."""
    asked = []

    class Group:
        def handles(self):
            asked.append(self)
            return handles

    handles = [object() for _ in range(100)]
    groups = Group(), Group()
    state = ShardGroups(None)
    state._sharded = {id(handle): groups[i % 2] for i, handle in enumerate(handles)}
    ids = {id(handle) for handle in handles}
    assert state._together({id(handles[0]), 5}) == ids | {5}
    del asked[:]
    assert state._together(ids) == ids
    assert sorted(map(id, asked)) == sorted(map(id, groups))


def test_strategies_that_share_a_device_share_no_names():
    devices = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3)]
    scopes = {scope_of(0, devices[:2]), scope_of(0, devices), scope_of(0, devices[1::-1])}
    assert len(scopes) == 3
    assert scope_of(0, devices) != scope_of(1, devices)
    assert scope_of(0, devices) == scope_of(0, list(devices))


class _Bundle:
    """Variables whose values go into the shards, and come back, without other replicas."""

    def __init__(self, number, held, handles, reader):
        self.number, self.held, self.key = number, held, number
        self._handles = [handle for one in handles.values() for handle in one]
        self.version, self.is_sharded, self.joins = 0, False, UnshardCounts()
        self._values = []

    def handles(self):
        return self._handles

    def bytes_of_others(self):
        return 0

    def shard(self):
        self._values = [_read(handle) for handle in self._handles]

    def begin(self):
        pass

    def ended(self):
        from tf_fuse import _native

        self.version += 1
        self._values = [value + 1 for value in self._values]
        self.is_sharded = True
        for handle in self._handles:
            _native.load().tf_fuse_close_variable(handle, type_name=TYPE_NAME)

    def join(self):
        from tf_fuse import _native

        for handle, value in zip(self._handles, self._values, strict=True):
            _native.load().tf_fuse_open_variable(handle, value)
        self.is_sharded = False


def _read(handle):
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)


@pytest.fixture
def parted(monkeypatch):
    """A state, a shard group, and two variables of it; this thread has made a step."""
    monkeypatch.setattr(state_module, "ShardGroup", _Bundle)
    monkeypatch.setattr(state_module, "key_of", lambda held, handles: 0)
    handle_access.watch_handles()
    device = "/job:localhost/replica:0/task:0/device:CPU:0"
    state = ShardGroups(types.SimpleNamespace(peers=Peers((device,), (0,), "")))
    variables = [tf.Variable([1.0, 2.0]), tf.Variable([5.0])]
    shard_group = state.shard_group([], {0: [variable.handle for variable in variables]})
    with state.step(shard_group):
        pass
    yield state, shard_group, variables
    for variable in variables:
        state._gone(shard_group, id(variable.__dict__["_handle"]))


class _OwnNothing(_Bundle):
    """It knows handles as long as the program has them, and counts what is done to it."""

    def __init__(self, number, held, handles, reader):
        super().__init__(number, held, handles, reader)
        self._refs = [weakref.ref(handle) for handle in self._handles]
        self._handles, self.destroyed = [], 0

    def handles(self):
        return [handle for ref in self._refs if (handle := ref()) is not None]

    def counts(self):
        return {"steps": 3}

    def destroy(self):
        self.destroyed += 1


def test_variables_that_go_at_once_end_their_bundle_once(monkeypatch):
    monkeypatch.setattr(state_module, "ShardGroup", _OwnNothing)
    monkeypatch.setattr(state_module, "key_of", lambda held, handles: 0)
    device = "/job:localhost/replica:0/task:0/device:CPU:0"
    state = ShardGroups(types.SimpleNamespace(peers=Peers((device,), (0,), "")))

    class Handle:
        pass

    handles = [Handle(), Handle()]
    for handle in handles:
        handle.others = handles  # A cycle: the collector takes all at once.
    shard_group = state.shard_group([], {0: handles})
    del handle, handles
    gc.collect()
    assert shard_group.handles() == []
    state._bury()
    assert shard_group.destroyed == 1 and state.shard_groups() == []
    assert state.counts() == {"steps": 3}


def _in_thread(work):
    """Runs it in another thread; its result, or error."""
    results = []

    def run():
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return results[0]


def _steps(state, shard_group, order):
    """A thread that makes a step; returns when it waits for it, or has made it."""

    def step():
        with state.step(shard_group):
            order.append("step")

    thread = threading.Thread(target=step)
    thread.start()
    while thread.is_alive() and not state._wanted:
        thread.join(0.001)
    return thread


def test_the_thread_that_steps_gets_no_copy(parted):
    _, shard_group, (variable, _) = parted
    assert variable.handle is shard_group.handles()[0]
    assert variable.numpy().tolist() == [2.0, 3.0]


def test_a_step_waits_for_another_threads_operation(parted):
    state, shard_group, variables = parted

    def read():
        order = []
        handle = variables[0].handle
        thread = _steps(state, shard_group, order)
        # Who has an access gets another one: the step waits for both.
        order.append((_read(handle).numpy().tolist(), variables[1].numpy().tolist()))
        del handle
        thread.join(60)
        return order, variables[0].numpy().tolist()

    assert _in_thread(read) == ([([2.0, 3.0], [6.0]), "step"], [3.0, 4.0])


def test_a_step_waits_for_another_threads_assignment(parted):
    state, shard_group, (variable, _) = parted

    def assign():
        handle = variable.handle
        thread = _steps(state, shard_group, [])
        tf.raw_ops.AssignVariableOp(resource=handle, value=[10.0, 20.0])
        del handle
        thread.join(60)

    _in_thread(assign)
    assert variable.numpy().tolist() == [11.0, 21.0]


def test_a_step_waits_for_another_threads_function(parted):
    state, shard_group, variables = parted

    def call():
        order = []
        handles = [variable.__dict__["_handle"] for variable in variables]
        with handle_access.using(handles, "", lambda: True):
            thread = _steps(state, shard_group, order)
            order.append([_read(handle).numpy().tolist() for handle in handles])
        thread.join(60)
        return order

    assert _in_thread(call) == [[[2.0, 3.0], [6.0]], "step"]


def test_a_step_does_not_wait_for_a_function_that_waits_for_others(parted):
    state, shard_group, variables = parted

    def call():
        order = []
        with handle_access.using([variables[0].__dict__["_handle"]], "", lambda: False):
            _steps(state, shard_group, order).join(60)
            order.append("function")
        return order

    assert _in_thread(call) == ["step", "function"]


def test_a_step_does_not_wait_for_a_handle_that_is_kept(parted, monkeypatch, caplog):
    state, shard_group, (variable, _) = parted
    monkeypatch.setattr(state_module, "_LONGEST_ACCESS_S", 0.0)

    def keep():
        handle = variable.handle
        _steps(state, shard_group, []).join(60)
        with pytest.raises(
            tf.errors.FailedPreconditionError, match=r"shard_weight_update.* shards"
        ):
            _read(handle)
        return variable.numpy().tolist(), _read(variable.handle).numpy().tolist()

    with caplog.at_level("WARNING", "tf_fuse"):
        assert _in_thread(keep) == ([3.0, 4.0], [3.0, 4.0])
    assert "for another thread that uses a variable of the optimizer" in caplog.text


def test_a_copy_is_known_as_the_handle(parted):
    _, shard_group, (variable, _) = parted

    def kept():
        handle = variable.handle
        assert handle is not shard_group.handles()[0]
        return handle_access.originals([handle, 3])

    original, three = _in_thread(kept)
    assert (original is shard_group.handles()[0], three) == (True, 3)


def test_a_tape_gets_the_handle_that_it_knows(parted):
    _, _, (variable, _) = parted

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(variable)
            total = tf.reduce_sum(variable * variable)
        return tape.gradient(total, variable).numpy().tolist()

    assert _in_thread(gradient) == [4.0, 6.0]
