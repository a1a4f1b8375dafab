# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run TensorFlow's collectives among devices of several processes.

Keys are assigned in the order of the calls, which all processes must share. TensorFlow numbers the
members of a group by itself; this module asks for the numbers once, when it creates a group.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.dtensor.python import config
from tensorflow.python.eager import context

from tf_fuse.layout.execution.devices import Devices
from tf_fuse.layout.types.errors import LayoutError

# Far from the keys of tf.distribute and DTensor, which count from small numbers.
_FIRST_GROUP: Final = 0x2A000000
_FIRST_INSTANCE: Final = 0x2B000000
# All processes make the same calls, so they reach a meeting at about the same time.
MEETING_LIMIT_S = 600
# Calls that all processes make: the same number at the same place. The count starts again, so
# that meetings reuse names: the coordination service keeps each name while it lives.
_calls = {"so far": 0}
_CALLS: Final = 8
# How often a meeting that fails at once is tried again; each process can make one fail.
_TRIALS: Final = 100
_group_keys = itertools.count(_FIRST_GROUP)
_instance_keys = itertools.count(_FIRST_INSTANCE)

_MERGES: Final = {"max": "Max", "min": "Min", "prod": "Mul", "sum": "Add"}
# Types that gathers and all-to-alls take; others travel as bits or as wider numbers.
_CARRIED: Final = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_BITS: Final = {
    tf.bfloat16: tf.float16,
    tf.complex64: tf.float32,
    tf.complex128: tf.float64,
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
}


class ProcessCollectives:
    """Collectives in groups of a mesh's devices, over axes that reach other processes."""

    def __init__(self, devices: Devices):
        """Assign keys to every set of axes, and ask TensorFlow for the members' numbers.

        All processes of the mesh must call this at once.

        Raises:
          LayoutError: one has not come in time.
        """
        self._devices = devices
        self.meet(f"run plans on mesh {str(devices.mesh)!r}")
        axes = [axis for axis, size in devices.mesh.dims if size > 1]
        self._keys: dict[tuple[int, ...], int] = {}
        self._ask: Any = None
        for count in range(1, len(axes) + 1):
            for some in itertools.combinations(axes, count):
                for group in devices.mesh.groups(some):
                    self._keys.setdefault(tuple(sorted(group)), next(_group_keys))
        # Orders the collectives of a device, in all processes alike.
        self._tokens: dict[int, Any] = {}
        for device, name in devices.names.items():
            with tf.init_scope(), tf.device(name):
                self._tokens[device] = tf.Variable(0.0, trainable=False, name="layout_token")
        self._orders = {group: self._order(group) for group in self._keys}

    def begin_call(self) -> None:
        """Count a call that all processes make in the same order."""
        if self._all_meet:
            _calls["so far"] = (_calls["so far"] + 1) % _CALLS

    @property
    def _all_meet(self) -> bool:
        """Whether all processes that have a coordination service have devices of the mesh."""
        processes = self._devices.mesh.size // len(self._devices.names)
        return bool(context.context().coordination_service) and config.num_clients() == processes

    def meet(self, to_do: str) -> None:
        """Wait, for a limited time, until all processes are at the same place.

        A collective waits forever, and after one was given up none can run any more. Here no
        collective has begun yet. It waits only if the processes have a coordination service, and
        all of them have devices of the mesh.

        Args:
          to_do: what it is for; nobody meets those who come for something else.

        Raises:
          LayoutError: one has not come in time.
        """
        if not self._all_meet:
            return
        place = f"tf_fuse/layout/{_calls['so far']}/{to_do}"
        end = time.monotonic() + MEETING_LIMIT_S
        for trial in itertools.count(1):
            left_ms = round((end - time.monotonic()) * 1000)
            try:
                context.context().wait_at_barrier(place, max(1, left_ms))
                return
            except tf.errors.OpError as error:
                # If an earlier meeting here timed out, the service reports that once all
                # have come, and then forgets it.
                again = isinstance(error, tf.errors.DeadlineExceededError | tf.errors.InternalError)
                if not again or trial == _TRIALS or time.monotonic() >= end:
                    raise LayoutError(
                        f"to {to_do} takes all {config.num_clients()} processes, and they did not "
                        f"all do it within {MEETING_LIMIT_S} s ({error.message}); do it in all of "
                        "them, as with a ModelCheckpoint in each, and in the same order"
                    ) from error

    def check_same(self, text: str) -> None:
        """Check that all processes have the same text.

        Raises:
          LayoutError: they have not.
        """
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        if set(self.numbers(number)) != {number}:
            raise LayoutError(
                "the processes run different plans; save the plan in one of them, and load it in "
                "the others"
            )

    def numbers(self, number: int) -> list[int]:
        """Return the numbers that the processes of all devices give, in the devices' order."""
        group = tuple(range(self._devices.mesh.size))
        if self._ask is None:

            @tf.function
            def ask(mine: Any) -> list[Any]:
                held = dict.fromkeys(self._devices.local, mine)
                return self.all_gather(group, held)[self._devices.first]

            self._ask = ask
        return [int(one) for one in self._ask(tf.constant(number, tf.int64))]

    def of_first(self, value: Any) -> Any:
        """Return, in all processes, the bits of the value that the first device's process has."""
        group = tuple(range(self._devices.mesh.size))

        @tf.function
        def add(one: Any) -> Any:
            bits, back = _as_integers(one)
            held = {}
            for device, name in self._devices.names.items():
                with tf.device(name):
                    held[device] = bits if device == 0 else tf.zeros_like(bits)
            return back(self.all_reduce(group, held, "sum")[self._devices.first])

        return add(value)

    def all_reduce(
        self, group: Sequence[int], held: Mapping[int, Any], reduction: str
    ) -> dict[int, Any]:
        """Return the sum, or another reduction, of what the members hold."""
        instance = next(_instance_keys)
        found = {}
        for device, one in held.items():
            with tf.device(self._devices.names[device]):
                carried, back = _wide(one)
                made = tf.raw_ops.CollectiveReduceV2(
                    input=carried,
                    merge_op=_MERGES[reduction],
                    final_op="Id",
                    communication_hint="ring",
                    **self._where(group, device, instance),
                )
                found[device] = _shaped(back(made), one.shape)
        return found

    def all_gather(self, group: Sequence[int], held: Mapping[int, Any]) -> dict[int, list[Any]]:
        """Return the tensors of all members, in the group's order."""
        instance = next(_instance_keys)
        found = {}
        for device, one in held.items():
            with tf.device(self._devices.names[device]):
                carried, back = _carried(tf.expand_dims(one, 0))
                made = tf.raw_ops.CollectiveGatherV2(
                    input=carried, **self._where(group, device, instance)
                )
                shape = [len(group), *carried.shape.as_list()[1:]]
                rows = back(_shaped(made, shape))
                found[device] = self._in_order(group, rows)
        return found

    def all_to_all(
        self, group: Sequence[int], held: Mapping[int, Sequence[Any]]
    ) -> dict[int, list[Any]]:
        """Return, for each device, the tensors that the members send it, in the group's order."""
        instance = next(_instance_keys)
        orders = self._orders[tuple(sorted(group))]
        found = {}
        for device, blocks in held.items():
            with tf.device(self._devices.names[device]):
                ranked = [blocks[list(group).index(member)] for member in orders]
                carried, back = _carried(tf.stack(ranked))
                made = tf.raw_ops.CollectiveAllToAllV2(
                    input=carried, **self._where(group, device, instance)
                )
                found[device] = self._in_order(group, back(_shaped(made, carried.shape)))
        return found

    def _in_order(self, group: Sequence[int], rows: Any) -> list[Any]:
        """Sort rows from the members' numbers into the group's order."""
        orders = self._orders[tuple(sorted(group))]
        parts = tf.unstack(rows)
        return [parts[orders.index(member)] for member in group]

    def _where(self, group: Sequence[int], device: int, instance: int) -> dict[str, Any]:
        return {
            "group_size": len(group),
            "group_key": self._keys[tuple(sorted(group))],
            "instance_key": instance,
            "ordering_token": [self._tokens[device].handle],
        }

    def _order(self, group: tuple[int, ...]) -> list[int]:
        """Return the members of a group by the numbers that TensorFlow gave them."""
        instance = next(_instance_keys)
        mine = [one for one in group if one in self._devices.names]
        if len(mine) in (0, len(group)):
            return list(group)

        @tf.function
        def ask() -> list[Any]:
            found = []
            for device in mine:
                with tf.device(self._devices.names[device]):
                    found.append(
                        tf.raw_ops.CollectiveGatherV2(
                            input=tf.constant([device]), **self._where(group, device, instance)
                        )
                    )
            return found

        answers = [one.numpy().tolist() for one in ask()]
        if any(sorted(one) != list(group) or one != answers[0] for one in answers):
            raise LayoutError(
                f"the processes do not agree on the devices of a group: expected {list(group)}, "
                f"got {answers}; give all of them the same mesh"
            )
        return [int(one) for one in answers[0]]


def _shaped(tensor: Any, shape: Any) -> Any:
    tensor.set_shape(shape)
    return tensor


def _wide(tensor: Any) -> tuple[Any, Any]:
    """Return a tensor of a type that can be reduced, and the way back."""
    kind = tensor.dtype
    if kind in _CARRIED or kind == tf.bfloat16:
        return tensor, lambda one: one
    if kind.is_complex or kind in (tf.uint32, tf.uint64):
        raise LayoutError(
            f"TensorFlow has no all-reduce of {kind.name} between processes; use a plan in which "
            "it is not partial, or another type"
        )
    return tf.cast(tensor, tf.int32), lambda one: tf.cast(one, kind)


def _carried(tensor: Any) -> tuple[Any, Any]:
    """Return a tensor of a type that collectives carry, with the same bits, and the way back."""
    kind = tensor.dtype
    if kind in _CARRIED:
        return tensor, lambda one: one
    if kind in _BITS:
        return tf.bitcast(tensor, _BITS[kind]), lambda one: tf.bitcast(one, kind)
    # Numbers of one or two bytes: several in one of four, where they fill it.
    row = math.prod(tensor.shape.as_list()[1:])
    narrow = tf.cast(tensor, tf.uint8) if kind == tf.bool else tensor
    fits = 4 // narrow.dtype.size
    if row % fits:
        return tf.cast(tensor, tf.int32), lambda one: tf.cast(one, kind)
    shape = tensor.shape.as_list()
    packed = tf.bitcast(tf.reshape(narrow, [shape[0], row // fits, fits]), tf.int32)

    def back(one: Any) -> Any:
        return tf.cast(tf.reshape(tf.bitcast(one, narrow.dtype), shape_of(one)), kind)

    def shape_of(one: Any) -> list[int]:
        return [one.shape[0], *shape[1:]]

    return packed, back


def _as_integers(tensor: Any) -> tuple[Any, Any]:
    """Return the bits of a tensor as integers that can be added up, and the way back."""
    kind = tensor.dtype
    if kind == tf.bool:
        return tf.cast(tensor, tf.int32), lambda one: tf.cast(one, kind)
    if kind.size >= 4:
        return tf.bitcast(tensor, tf.int32), lambda one: tf.bitcast(one, kind)
    narrow = tf.uint8 if kind.size == 1 else tf.uint16
    return (
        tf.cast(tf.bitcast(tensor, narrow), tf.int32),
        lambda one: tf.bitcast(tf.cast(one, narrow), kind),
    )
