# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Barriers at which all processes of a mesh wait for each other."""

from __future__ import annotations

from types import SimpleNamespace

from tf_fuse.layout.execution.communication import barriers
from tf_fuse.layout.execution.devices import Devices
from tf_fuse.layout.types.mesh import Mesh


def test_calls_of_some_processes_do_not_count_where_all_wait(monkeypatch):
    """Two of three processes have a mesh of their own; then they read one that all of them have."""
    reached: list[str] = []
    service = SimpleNamespace(
        coordination_service=True, wait_at_barrier=lambda name, limit: reached.append(name)
    )
    monkeypatch.setattr(barriers.context, "context", lambda: service)

    def begun(size: int) -> barriers.Barriers:
        return barriers.Barriers(Devices(Mesh({"x": size}), {0: "CPU:0"}, processes=3))

    whole, some = begun(3), begun(2)
    for calls_of_some in (0, 2):
        monkeypatch.setattr(barriers, "_calls", {"so far": 0})
        whole.begin_call()
        for _ in range(calls_of_some):
            some.begin_call()
            some.wait("read")
        whole.wait("read")
    assert reached == ["tf_fuse/layout/1/read"] * 2
