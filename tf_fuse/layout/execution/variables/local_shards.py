# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Store the local shards of one variable, and read, write and assemble them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from tf_fuse.layout.execution.communication.communicator import Communicator
from tf_fuse.layout.execution.communication.relayouts import relayout
from tf_fuse.layout.execution.variables.made_in_parts import VariableInParts
from tf_fuse.layout.execution.variables.read_write_lock import LOCK
from tf_fuse.layout.relayout.redistribution import plan_relayout
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.tensor_layout import TensorLayout


class VariableShards:
    """The local shards of one variable.

    Attributes:
      name: of the variable.
      layout: of its value.
      variables: of this process's devices, by their numbers.
      in_parts: whether the first value was made in parts.
    """

    def __init__(self, name: str, layout: TensorLayout, communicator: Communicator, value: Any):
        """Cut a value into shards.

        Args:
          name: of the variable.
          layout: of its value.
          communicator: between the devices.
          value: the whole one, where that of the first device's process counts; or a variable in
            parts.
        """
        self.name = name
        self.layout = layout
        self._communicator = communicator
        self._gather: Any = None
        # True between two slices of an assignment, and after an interrupted one.
        self._half_assigned = False
        self.variables: dict[int, Any] = {}
        self.in_parts = isinstance(value, VariableInParts)
        made = self._first_parts(value) if self.in_parts else {}
        if not self.in_parts:
            value = communicator.of_first(value)
        for device, place in communicator.devices.names.items():
            with tf.init_scope(), tf.device(place):
                part = made.pop(device) if self.in_parts else _slice(value, layout, device)
                self.variables[device] = tf.Variable(
                    part, trainable=False, name=f"{short_name(name)}_part"
                )
                del part  # It would be a second copy, once rows of the variable change.

    @property
    def communicator(self) -> Communicator:
        """Between the devices."""
        return self._communicator

    def whole(self) -> Any:
        """Return the value, put together.

        Where the devices of this process hold all slices, as of a variable that is not split, no
        other process is asked. Otherwise all have to ask for it at once.
        """
        if not tf.executing_eagerly():
            return self._gathered()
        if self._is_in_each_process:
            with LOCK.shared():
                self.check_whole()
                held = {device: one.numpy() for device, one in self.variables.items()}
            return _assembled(held, self.layout)
        with LOCK.alone():
            self.check_whole()
            self._communicator.barrier(f"read, save or release variable {self.name!r}")
            if self._gather is None:
                self._gather = tf.function(self._gathered, autograph=False)
            return self._gather()

    def assign(self, value: Any) -> Any:
        """Cut another value; in several processes, each process cuts its own shards.

        Returns:
          In a graph, the operation.
        """
        slices = {device: _slice(value, self.layout, device) for device in self.variables}
        if not tf.executing_eagerly():
            return tf.group(
                [
                    one.assign(slices[device], read_value=False)
                    for device, one in self.variables.items()
                ]
            )
        with LOCK.alone():
            self._half_assigned = True
            for device, one in self.variables.items():
                one.assign(slices[device], read_value=False)
            self._half_assigned = False
        return None

    def check_whole(self) -> None:
        """Check that all slices are of one value.

        Raises:
          LayoutError: they are not.
        """
        if self._half_assigned:
            raise LayoutError(
                f"variable {self.name!r} has been assigned to in some of its slices only: that was "
                "interrupted, or this reads it in the middle; assign to it, or restore it, again"
            )

    def write(self, device: int, shard: Any) -> None:
        """Replace the shard of one local device."""
        self.variables[device].assign(shard, read_value=False)

    def _first_parts(self, value: VariableInParts) -> dict[int, Any]:
        """Return the first parts of this process's devices; each slice is made once, by one device.

        So devices that hold the same slice have the same value, also of random numbers.
        """
        mesh, own = self.layout.mesh, self._communicator
        used = {axis for axes in self.layout.splits for axis in axes}
        over = [axis for axis in mesh.axes if axis not in used]
        made: dict[int, Any] = {}
        failure: Exception | None = None
        try:
            for device, place in own.devices.names.items():
                if own.place(device, over) == 0:
                    with tf.init_scope(), tf.device(place):
                        made[device] = value.part(self.layout, device)
        except Exception as error:
            failure = error
        failed = [i for i, one in enumerate(own.all_processes(int(failure is not None))) if one]
        if failure is not None:
            raise failure
        if failed:
            raise LayoutError(
                f"variable {self.name!r}: process {', '.join(map(str, failed))} failed to make its "
                "part; look at the error there"
            )
        return own.of_group_first(made, over, self.layout.slice_shape, value.dtype)

    @cached_property
    def _is_in_each_process(self) -> bool:
        """Whether the devices of each process hold all slices; all processes say the same."""

        def held(devices: tuple[int, ...]) -> int:
            slices = [self.layout.slice_of(device) for device in devices]
            return len({tuple((one.start, one.stop) for one in each) for each in slices})

        count = math.prod(self.layout.slices)
        return all(held(devices) == count for devices in self._communicator.processes)

    def _gathered(self) -> Any:
        devices = self._communicator.devices
        held = {}
        for device, one in self.variables.items():
            with tf.device(devices.names[device]):
                held[device] = one.read_value()
        target = TensorLayout(self.layout.mesh, self.layout.shape)
        item_bytes = next(iter(self.variables.values())).dtype.size
        plan = plan_relayout(self.layout, target, item_bytes)
        return relayout(self._communicator, plan, held)[devices.first]


def short_name(name: str) -> str:
    """Return a variable's name after the last slash."""
    return name.rsplit("/", 1)[-1].replace(":", "_")


def _slice(value: Any, layout: TensorLayout, device: int) -> Any:
    at = layout.slice_of(device)
    return value[at] if at else value


def _assembled(held: Mapping[int, np.ndarray], layout: TensorLayout) -> np.ndarray:
    found = np.empty(layout.shape, next(iter(held.values())).dtype)
    for device, one in held.items():
        found[layout.slice_of(device)] = one
    return found
