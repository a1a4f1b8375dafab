# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run collectives among devices of several processes: the plugin's, or else TensorFlow's.

Keys are assigned in the order of the calls, which all processes must share: `key` returns the next
one. All groups of a call have one key, since a process does not see the groups of others.
TensorFlow numbers the members of a group by itself; this module asks for the numbers once, when it
creates a group.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tf_fuse import _native
from tf_fuse.layout.execution.communication.barriers import Barriers
from tf_fuse.layout.execution.communication.carried_types import (
    as_integers,
    carried,
    is_summed,
    shaped,
    wide,
)
from tf_fuse.layout.execution.communication.plugin_operations import equal_bounds, flat, surely
from tf_fuse.layout.execution.communication.sums import total
from tf_fuse.layout.execution.devices import Devices
from tf_fuse.layout.relayout import axis_permutations
from tf_fuse.layout.types.errors import LayoutError

# Far from the keys of tf.distribute and DTensor, which count from small numbers.
_FIRST_GROUP: Final = 0x2A000000
_FIRST_INSTANCE: Final = 0x2B000000
_group_keys = itertools.count(_FIRST_GROUP)
_instance_keys = itertools.count(_FIRST_INSTANCE)

# What the plugin's CollectiveReduceV2 exchanges in one round; larger sums take its own operation,
# which need not wait for those before it.
_AT_ONCE_BYTES: Final = 16 << 10
_MERGES: Final = {"max": "Max", "min": "Min", "prod": "Mul", "sum": "Add"}


class ProcessCollectives:
    """Collectives in groups of a mesh's devices, over axes that reach other processes."""

    def __init__(self, devices: Devices):
        """Assign keys to every set of axes, and ask TensorFlow for the members' numbers.

        All processes of the mesh must call this at once.

        Raises:
          LayoutError: one has not come in time.
        """
        self._devices = devices
        self.barriers = Barriers(devices)
        self.barriers.wait(f"run plans on mesh {str(devices.mesh)!r}")
        axes = [axis for axis, size in devices.mesh.dims if size > 1]
        self._keys: dict[tuple[int, ...], int] = {}
        self._ask: Any = None
        for count in range(1, len(axes) + 1):
            for some in itertools.combinations(axes, count):
                for group in devices.mesh.groups(some):
                    self._keys.setdefault(tuple(sorted(group)), next(_group_keys))
        if not devices.plugin:
            sizes = devices.mesh.shape
            for one in axis_permutations.of_sizes(sizes):
                sources = axis_permutations.sources(one, sizes)
                for cycle in axis_permutations.cycles_of(dict(enumerate(sources))):
                    self._keys.setdefault(cycle, next(_group_keys))
        # Orders the collectives of a device, in all processes alike.
        self._tokens: dict[int, Any] = {}
        for device, name in devices.names.items():
            with tf.init_scope(), tf.device(name):
                self._tokens[device] = tf.Variable(0.0, trainable=False, name="layout_token")
        self._orders = {group: self._order(group) for group in self._keys}
        owners = self.numbers(devices.first)
        #: The devices of each process. Their order in the mesh does not say it.
        self.processes = [
            tuple(i for i, one in enumerate(owners) if one == first) for first in sorted({*owners})
        ]

    @property
    def plugin(self) -> bool:
        """Whether the plugin's operations run."""
        return self._devices.plugin

    def add_pairs(self, axes: Sequence[str]) -> None:
        """Assign keys to each two neighbours of each group over some axes; in all processes."""
        for group in self._devices.mesh.groups(axes):
            for pair in map(sorted, itertools.pairwise(group)):
                key = tuple(pair)
                if key not in self._keys:
                    self._keys[key] = next(_group_keys)
                    self._orders[key] = self._order(key)

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

            @tf.function(autograph=False)
            def ask(mine: Any) -> list[Any]:
                held = dict.fromkeys(self._devices.local, tf.expand_dims(mine, 0))
                return tf.unstack(self.all_gather(group, held, 0, self.key())[self._devices.first])

            self._ask = ask
        return [int(one) for one in self._ask(tf.constant(number, tf.int64))]

    def of_first(self, value: Any) -> Any:
        """Return, in all processes, the bits of the value that the first device's process has."""
        group = tuple(range(self._devices.mesh.size))

        @tf.function(autograph=False)
        def add(one: Any) -> Any:
            bits, back = as_integers(one)
            held = {}
            for device, name in self._devices.names.items():
                with tf.device(name):
                    held[device] = bits if device == 0 else tf.zeros_like(bits)
            return back(self.all_reduce(group, held, "sum", self.key())[self._devices.first])

        return add(value)

    def key(self) -> int:
        """Return the key of the next call, the same in all processes."""
        return next(_instance_keys)

    def all_reduce(
        self, group: Sequence[int], held: Mapping[int, Any], reduction: str, instance: int
    ) -> dict[int, Any]:
        """Return the sum, or another reduction, of what the members hold."""
        found = {}
        for device, one in held.items():
            with tf.device(self._devices.names[device]):
                given, back = wide(one)
                large = given.shape.num_elements() * given.dtype.size > _AT_ONCE_BYTES
                if self._devices.plugin and reduction == "sum" and large:
                    made = surely(_native.load().tf_fuse_all_reduce)(
                        inputs=[given], **self.member(group, device, instance)
                    )
                else:
                    made = tf.raw_ops.CollectiveReduceV2(
                        input=given,
                        merge_op=_MERGES[reduction],
                        final_op="Id",
                        communication_hint="ring",
                        **self.where(group, device, instance),
                    )
                found[device] = shaped(back(made), one.shape)
        return found

    def reduce_scatter(
        self, group: Sequence[int], held: Mapping[int, Any], dimension: int, instance: int
    ) -> dict[int, Any]:
        """Return each member's part of the sum, along a dimension, in the group's order."""
        ours = self._devices.plugin and is_summed(next(iter(held.values())).dtype)
        parts = {}
        for device, one in held.items():
            with tf.device(self._devices.names[device]):
                parts[device] = tf.split(one, len(group), dimension)
        if not ours:
            taken = self.all_to_all(group, parts, instance)
            found = {}
            for device, terms in taken.items():
                with tf.device(self._devices.names[device]):
                    found[device] = total(terms)
            return found
        found = {}
        for device, blocks in parts.items():
            with tf.device(self._devices.names[device]):
                ranked = self._by_rank(group, blocks)
                # Along the first dimension the blocks lie one after the other already.
                as_is = dimension == 0 and self.ranked(group) == list(group)
                whole = held[device] if as_is else tf.concat([flat(b) for b in ranked], 0)
                made = surely(_native.load().tf_fuse_reduce_scatter)(
                    inputs=[flat(whole)],
                    bounds=equal_bounds(blocks[0], len(group)),
                    **self.member(group, device, instance),
                )
                found[device] = tf.reshape(made, blocks[0].shape)
        return found

    def all_gather(
        self, group: Sequence[int], held: Mapping[int, Any], dimension: int, instance: int
    ) -> dict[int, Any]:
        """Return the tensors of all members, along a dimension, in the group's order."""
        found = {}
        for device, one in held.items():
            with tf.device(self._devices.names[device]):
                given, back = carried(tf.expand_dims(one, 0))
                shape = [len(group), *given.shape.as_list()[1:]]
                if self._devices.plugin:
                    made = surely(_native.load().tf_fuse_all_gather)(
                        shards=[flat(given)],
                        shapes=[tf.constant(shape, tf.int64)],
                        bounds=equal_bounds(given, len(group)),
                        **self.member(group, device, instance),
                    )
                else:
                    made = tf.raw_ops.CollectiveGatherV2(
                        input=given, **self.where(group, device, instance)
                    )
                rows = back(shaped(made, shape))
                if dimension == 0 and one.shape.rank and self.ranked(group) == list(group):
                    # The rows lie one after the other already.
                    found[device] = tf.reshape(rows, [-1, *one.shape.as_list()[1:]])
                else:
                    found[device] = tf.concat(self._in_order(group, rows), dimension)
        return found

    def permute(
        self,
        group: Sequence[int],
        held: Mapping[int, Any],
        sources: Mapping[int, int],
        instance: int,
    ) -> dict[int, Any]:
        """Return, for each device, what another one holds.

        Args:
          group: that all of them are in.
          held: the tensors of this process's devices, of one shape.
          sources: by member, from whom it receives; each sends to one, perhaps to itself.
          instance: the call's key.
        """
        if not self._devices.plugin:
            return self._permute_by_gathers(held, sources, instance)
        ranked = self.ranked(group)
        sends_to = {source: device for device, source in sources.items()}
        receivers = [ranked.index(sends_to[member]) for member in ranked]
        found = {}
        for device, one in held.items():
            with tf.device(self._devices.names[device]):
                given, back = carried(tf.expand_dims(one, 0))
                made = surely(_native.load().tf_fuse_permute)(
                    inputs=[given],
                    receivers=receivers,
                    rank=ranked.index(device),
                    **self.member(group, device, instance),
                )
                found[device] = back(shaped(made, given.shape))[0]
        return found

    def _permute_by_gathers(
        self, held: Mapping[int, Any], sources: Mapping[int, int], instance: int
    ) -> dict[int, Any]:
        """Permute in each cycle of members; pairs receive no more than what they need."""
        found = {device: held[device] for device in held if sources[device] == device}
        for cycle in axis_permutations.cycles_of(sources):
            own = {device: held[device] for device in cycle if device in held}
            if len(own) == len(cycle):
                found.update((device, held[sources[device]]) for device in cycle)
                continue
            for device, one in own.items():
                with tf.device(self._devices.names[device]):
                    given, back = carried(tf.expand_dims(one, 0))
                    made = tf.raw_ops.CollectiveGatherV2(
                        input=given, **self.where(cycle, device, instance)
                    )
                    rows = back(shaped(made, [len(cycle), *given.shape.as_list()[1:]]))
                    found[device] = rows[self.ranked(cycle).index(sources[device])]
        return found

    def all_to_all(
        self, group: Sequence[int], held: Mapping[int, Sequence[Any]], instance: int
    ) -> dict[int, list[Any]]:
        """Return, for each device, the tensors that the members send it, in the group's order."""
        found = {}
        for device, blocks in held.items():
            with tf.device(self._devices.names[device]):
                given, back = carried(tf.stack(self._by_rank(group, blocks)))
                made = tf.raw_ops.CollectiveAllToAllV2(
                    input=given, **self.where(group, device, instance)
                )
                found[device] = self._in_order(group, back(shaped(made, given.shape)))
        return found

    def _in_order(self, group: Sequence[int], rows: Any) -> list[Any]:
        """Sort rows from the members' numbers into the group's order."""
        ranked = self.ranked(group)
        parts = tf.unstack(rows)
        return [parts[ranked.index(member)] for member in group]

    def _by_rank(self, group: Sequence[int], blocks: Sequence[Any]) -> list[Any]:
        """Sort blocks from the group's order into that of the members' numbers."""
        return [blocks[list(group).index(member)] for member in self.ranked(group)]

    def ranked(self, group: Sequence[int]) -> list[int]:
        """Return the members of a group by their numbers in it."""
        return self._orders[tuple(sorted(group))]

    def member(self, group: Sequence[int], device: int, instance: int) -> dict[str, Any]:
        """Return what the plugin's operations take beside tensors. They need no order."""
        where = self.where(group, device, instance)
        del where["ordering_token"]
        return {**where, "timeout_seconds": 0.0}

    def where(self, group: Sequence[int], device: int, instance: int) -> dict[str, Any]:
        """Return what TensorFlow's collectives take beside tensors."""
        return {
            "group_size": len(group),
            "group_key": self._keys[tuple(sorted(group))],
            "instance_key": instance,
            "ordering_token": [self._tokens[device].handle],
        }

    def _order(self, group: tuple[int, ...]) -> list[int]:
        """Return the members of a group by the numbers that TensorFlow gave them."""
        instance = self.key()
        mine = [one for one in group if one in self._devices.names]
        if len(mine) in (0, len(group)):
            return list(group)

        @tf.function(autograph=False)
        def ask() -> list[Any]:
            found = []
            for device in mine:
                with tf.device(self._devices.names[device]):
                    found.append(
                        tf.raw_ops.CollectiveGatherV2(
                            input=tf.constant([device]), **self.where(group, device, instance)
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
