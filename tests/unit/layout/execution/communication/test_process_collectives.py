# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The keys of collectives in all processes of a mesh, read from graphs that nobody runs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import tensorflow as tf

from tf_fuse.layout.execution.communication import process_collectives
from tf_fuse.layout.execution.communication.communicator import Communicator
from tf_fuse.layout.execution.communication.process_collectives import ProcessCollectives
from tf_fuse.layout.execution.devices import Devices
from tf_fuse.layout.execution.variables.local_shards import VariableShards
from tf_fuse.layout.types.mesh import Mesh
from tf_fuse.layout.types.tensor_layout import TensorLayout


@pytest.fixture
def communicator_of(monkeypatch):
    """Makes the communicator of one of several processes, as it begins there."""

    def in_order_of_names(self: Any, group: Any) -> list[int]:
        self.key()
        # TensorFlow sorts members by the names of their tasks.
        return sorted(group, key=str)

    def make(mesh: Mesh, process: int, processes: int, plugin: bool) -> Communicator:
        for counter in ("_group_keys", "_instance_keys"):
            monkeypatch.setattr(process_collectives, counter, itertools.count(1))
        own = mesh.size // processes
        names = {one: "CPU:0" for one in range(process * own, (process + 1) * own)}
        owners = [one // own * own for one in range(mesh.size)]
        monkeypatch.setattr(ProcessCollectives, "numbers", lambda self, number: owners)
        monkeypatch.setattr(ProcessCollectives, "_order", in_order_of_names)
        devices = Devices(mesh, names, processes=processes, plugin=plugin)
        return Communicator(devices, ProcessCollectives(devices))

    return make


def collectives(communicator: Communicator, exchange: Any) -> list[tuple[Any, ...]]:
    """Returns what identifies each collective, in the graph of an exchange."""

    @tf.function
    def traced() -> None:
        held = {one: tf.zeros([48, 48]) for one in communicator.devices.local}
        exchange(communicator, held)

    found = []
    for one in traced.get_concrete_function().graph.get_operations():
        if one.type.startswith(("Collective", "TfFuse>")):
            values = [tf.get_static_value(given) for given in one.inputs]
            keys = [int(given) for given in values if given is not None and given.shape == ()]
            found.append((one.type, *keys))
    return found


def everything(communicator: Communicator, held: Any) -> None:
    for axes in (["y"], ["x"], ["x", "y"]):
        communicator.all_reduce(held, axes, "sum")
        communicator.all_gather(held, axes, 0)
        communicator.reduce_scatter(held, axes, 0)
        members = communicator.members(axes)
        communicator.exchange({one: [t] * members for one, t in held.items()}, axes)


def swapped(communicator: Communicator, held: Any) -> None:
    size = communicator.devices.mesh.size_of("x")
    sources = [one % size * size + one // size for one in range(size * size)]
    communicator.permute(held, ["x", "y"], sources)
    communicator.all_reduce(held, ["x", "y"], "max")


@pytest.mark.parametrize("plugin", [False, True])
@pytest.mark.parametrize(
    ("mesh", "processes", "exchange"),
    [
        # The groups {0, 1, 2} and {3, 4, 5} share a process, which has devices 2 and 3.
        (Mesh({"x": 2, "y": 3}), 3, everything),
        (Mesh({"x": 3, "y": 2}), 2, everything),
        # Some cycles of the permutation lie in one process.
        (Mesh({"x": 4, "y": 4}), 2, swapped),
    ],
)
def test_all_members_of_a_collective_have_its_key(
    mesh, processes, exchange, plugin, communicator_of
):
    """Of each that has members in several processes, as many come as the group has members."""
    came: dict[tuple[Any, ...], int] = {}
    for process in range(processes):
        for one in collectives(communicator_of(mesh, process, processes, plugin), exchange):
            came[one] = came.get(one, 0) + 1
    assert len(came) > 1
    # The first number is the size of the group.
    assert {one: count for one, count in came.items() if count != one[1]} == {}


def test_blocks_for_eleven_processes_are_sorted_by_the_names_of_tasks(communicator_of):
    """Task 10 comes before task 2."""
    communicator = communicator_of(Mesh({"x": 12}), 3, 12, True)

    def scattered(one: Communicator, held: Any) -> None:
        (made,) = one.reduce_scatter(held, ["x"], 0).values()
        assert made.shape == [4, 48]

    ((kind, *_),) = collectives(communicator, scattered)
    assert kind == "TfFuse>ReduceScatter"


@pytest.mark.parametrize(("splits", "here"), [("xy", False), ("x", False), ("y", True)])
def test_all_processes_know_whether_each_has_all_slices(splits, here, communicator_of):
    """Of a mesh whose middle process alone has both halves along x."""
    mesh = Mesh({"x": 2, "y": 3} if splits != "y" else {"x": 3, "y": 2})
    layout = TensorLayout(mesh, [6, 6], [list(splits), []])
    found = []
    for process in range(3):
        shards = VariableShards.__new__(VariableShards)
        shards.layout = layout
        shards._communicator = communicator_of(mesh, process, 3, False)
        shards.variables = dict.fromkeys(shards._communicator.devices.local)
        found.append(shards._is_in_each_process)
    assert found == [here] * 3
