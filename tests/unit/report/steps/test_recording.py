# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is recorded of a task: times of its operations, which something else may collect, too."""

import ctypes
import itertools
import os
import threading
import time
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import tf_fuse  # noqa: F401  (its part of the profiler)
from tf_fuse.report.steps import ask_profiler, plane, recording

_TASK = "/job:worker/replica:0/task:0"
_LACKS_PLUGIN = "worker:0 was not recorded: tf_fuse is missing there, or is older than here"


@pytest.fixture(scope="module")
def server():
    """A task in this process: its address."""
    server = tf.distribute.Server.create_local_server()  # It has a profiler.
    return server.target.removeprefix("grpc://")


class _Listener:
    """The flag by which TensorFlow's thread pools know that somebody collects closures."""

    def __init__(self):
        path = Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
        self._library = ctypes.CDLL(str(path))

    def is_active(self):
        return bool(self._call("IsEnabled", ctypes.c_bool))

    def activate(self):
        self._call("Activate", None)

    def deactivate(self):
        self._call("Deactivate", None)

    def _call(self, name, result):
        function = self._library[f"_ZN3tsl8profiler19threadpool_listener{len(name)}{name}Ev"]
        function.restype = result
        return function()


class _Operation:
    """An operation that notes when it runs, one call after the other, on another thread."""

    def __init__(self):
        self.ran = []
        self.has_run = threading.Event()
        self._ended = threading.Event()

    def __enter__(self):
        def note():
            begin = time.time_ns()
            self.ran.append((begin, time.time_ns()))
            self.has_run.set()
            return 0.0

        @tf.function
        def step():
            return tf.numpy_function(note, [], tf.float64)

        def run():
            while not self._ended.is_set():
                step()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()


def _record(address, seconds=0.3):
    notes = []
    profiles = recording.profiles_of({_TASK: address}, seconds, notes)
    return profiles.get(_TASK), [one.text for one in notes]


def _busy_while_running(address):
    """Return the times of a recording during which an operation ran, and when that was."""
    for seconds in (0.3, 3.0, 30.0):  # A busy machine may run none of them meanwhile.
        with _Operation() as operation:
            profile, notes = _record(address, seconds)
        assert notes == []
        busy = plane.busy_times(profile)
        inside = [one for one in operation.ran if busy and one[0] > busy[0][0]]
        inside = [one for one in inside if one[1] < busy[-1][1]]
        # The first and the last one may have been under way at the begin and the end.
        if len(inside) > 2:
            return profile, busy, inside[1:-1]
    raise AssertionError(f"no operation was recorded: {operation.ran[:3]}, {busy[:3]}")


def test_times_of_operations_and_nothing_else_is_recorded(server):
    profile, busy, ran = _busy_while_running(server)
    for begin, end in ran:
        assert any(start <= begin and end <= stop for start, stop in busy), (begin, end)
    assert all(start <= stop for start, stop in busy)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(busy))
    # Each operation of TensorFlow's own would be an event.
    assert {one.name for one in profile.planes if one.lines} == {plane.PLANE}


def test_nothing_is_collected_when_off(server):
    _busy_while_running(server)
    assert not _Listener().is_active()
    with _Operation() as operation:
        operation.has_run.wait()
    began = time.time_ns()
    profile, notes = _record(server)
    assert notes == []
    assert [one for one in plane.busy_times(profile) if one[0] < began] == []


def test_another_collector_is_neither_lost_nor_replaced(server):
    listener = _Listener()
    listener.activate()
    try:
        with _Operation():
            profile, notes = _record(server)
        assert listener.is_active()
    finally:
        listener.deactivate()
    assert notes == [
        "worker:0 has no times of its operations: something else collects what its threads run"
    ]
    assert plane.busy_times(profile) == []
    _busy_while_running(server)


def test_profiles_of_tensorflow_are_as_before(server, tmp_path):
    """They have the closures of thread pools, which TensorFlow's collector writes."""
    _busy_while_running(server)
    tf.profiler.experimental.start(str(tmp_path))
    with _Operation() as operation:
        profile, notes = _record(server)
        operation.has_run.wait()
    tf.profiler.experimental.stop()
    # Only one can be made at a time.
    assert profile is None
    (text,) = notes
    assert text.startswith("worker:0 was not recorded: INTERNAL: "), text
    (path,) = tmp_path.rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    names = {one.name for own in space.planes for one in own.event_metadata.values()}
    assert any(name.startswith("ThreadpoolListener") for name in names)
    assert plane.PLANE not in {one.name for one in space.planes}
    _busy_while_running(server)


def test_a_task_without_this_plugin_is_named(server, monkeypatch):
    # As a task whose version of the plugin, or lack of one, knows no such option.
    monkeypatch.setattr(ask_profiler, "_OPTION", "tf_fuse_record_ms_of_another_version")
    _, notes = _record(server)
    assert notes == [_LACKS_PLUGIN]
    timeline, more = recording.record_timeline(0.3, {_TASK: server})
    assert [one.text for one in more] == [
        _LACKS_PLUGIN,
        "no fused receive was recorded: did steps run meanwhile?",
    ]
    assert [(one.task, one.busy) for one in timeline.lanes] == [(_TASK, ())]


def test_a_profile_that_the_task_wrote_into_a_file(server, tmp_path, monkeypatch):
    """TensorFlow 2.20 returns none, and writes it where the request says."""
    without = ask_profiler._request(0.1, tmp_path).replace(b"\x48\x01", b"")
    assert len(without) == len(ask_profiler._request(0.1, tmp_path)) - 2
    monkeypatch.setattr(ask_profiler, "_request", lambda *_: without)
    own = ask_profiler.Recording(server, 0.1, tmp_path)
    assert list(plane.missing(own.profile())) == []
    elsewhere = ask_profiler.Recording(server, 0.1, tmp_path / "elsewhere")
    with pytest.raises(ask_profiler.ProfilerError, match=r"tasks with TensorFlow 2\.20 have to"):
        elsewhere.profile()


def test_a_task_that_is_not_there_is_named():
    profile, notes = _record("127.0.0.1:1")
    assert profile is None
    (text,) = notes
    assert text.startswith("worker:0 was not recorded: UNAVAILABLE: "), text
