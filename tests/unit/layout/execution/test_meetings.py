# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Calls where all processes of a mesh meet."""

from __future__ import annotations

from types import SimpleNamespace

from tf_fuse.layout.execution.communication import meetings
from tf_fuse.layout.execution.devices import Devices
from tf_fuse.layout.types.mesh import Mesh


def test_calls_of_some_processes_do_not_count_where_all_meet(monkeypatch):
    """Two of three processes have a mesh of their own; then they read one that all of them have."""
    met: list[str] = []
    service = SimpleNamespace(
        coordination_service=True, wait_at_barrier=lambda name, limit: met.append(name)
    )
    monkeypatch.setattr(meetings.context, "context", lambda: service)

    def begun(size: int) -> meetings.Meetings:
        return meetings.Meetings(Devices(Mesh({"x": size}), {0: "CPU:0"}, processes=3))

    whole, some = begun(3), begun(2)
    for calls_of_some in (0, 2):
        monkeypatch.setattr(meetings, "_calls", {"so far": 0})
        whole.begin_call()
        for _ in range(calls_of_some):
            some.begin_call()
            some.meet("read")
        whole.meet("read")
    assert met == ["tf_fuse/layout/1/read"] * 2
