# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write the steps of relayout plans into a graph.

A step works on the slices of a group's devices. A `Communicator` carries what they send.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_fuse.layout.execution.communication.communicator import Communicator, PerDevice
from tf_fuse.layout.execution.communication.slices import cut
from tf_fuse.layout.relayout import steps as kinds
from tf_fuse.layout.relayout.redistribution import (
    RelayoutPlan,
    RelayoutStep,
    block_of,
    sources_of,
)


class Relayouts:
    """The relayouts of a program; steps that two of them begin with alike are done once."""

    def __init__(self, communicator: Communicator):
        """Take the devices' communicator."""
        self._communicator = communicator
        self._known: dict[tuple[str, tuple[RelayoutStep, ...]], PerDevice] = {}

    def run(self, tensor: str, plan: RelayoutPlan | None, held: PerDevice) -> PerDevice:
        """Return what each device holds after a plan.

        Args:
          tensor: the name of what is relayouted.
          plan: None for nothing to do.
          held: what this process's devices hold before it.
        """
        if plan is None:
            return held
        done = 0
        while done < len(plan.steps):
            some = _at_once(plan.steps[done:])
            done += len(some)
            key = tensor, plan.steps[:done]
            if key not in self._known:
                before = _reshaped(self._communicator, held, some[0].before.slice_shape)
                self._known[key] = _run(self._communicator, some, before)
            held = self._known[key]
        return _reshaped(self._communicator, held, plan.target.slice_shape)


def relayout(communicator: Communicator, plan: RelayoutPlan | None, held: PerDevice) -> PerDevice:
    """Run one plan alone, as `Relayouts.run` does."""
    return Relayouts(communicator).run("", plan, held)


def _reshaped(communicator: Communicator, held: PerDevice, shape: Sequence[int]) -> PerDevice:
    return communicator.each(
        held, lambda _, one: one if one.shape.as_list() == list(shape) else tf.reshape(one, shape)
    )


def _at_once(steps: Sequence[RelayoutStep]) -> Sequence[RelayoutStep]:
    """Return the first steps that one operation per device does: slices of slices."""
    return list(itertools.takewhile(lambda one: one.kind == kinds.SLICE, steps)) or steps[:1]


def _run(communicator: Communicator, steps: Sequence[RelayoutStep], held: PerDevice) -> PerDevice:
    step = steps[0]
    if step.kind == kinds.SLICE:
        return communicator.each(held, lambda device, one: _part(communicator, steps, device, one))
    if step.kind == kinds.ALL_REDUCE:
        return communicator.all_reduce(held, step.axes, "sum")
    if step.kind == kinds.ALL_GATHER:
        return communicator.all_gather(held, step.axes, step.sources[0])
    if step.kind == kinds.REDUCE_SCATTER:
        return communicator.reduce_scatter(held, step.axes, step.targets[0])
    if step.kind == kinds.PERMUTE:
        return communicator.permute(held, step.axes, sources_of(step))
    if step.kind == kinds.ALL_TO_ALL:
        taken = communicator.exchange(
            communicator.each(held, lambda _, one: _blocks(step, one)), step.axes
        )
        return communicator.each(taken, lambda _, one: _assembled(step, one))
    return communicator.each(held, lambda device, one: _local(communicator, step, device, one))


def _local(communicator: Communicator, step: RelayoutStep, device: int, tensor: Any) -> Any:
    """Return the steps in which nothing is sent."""
    at = communicator.place(device, step.axes)
    count = communicator.members(step.axes)
    if step.kind == kinds.MASK:
        return tensor if at == 0 else tf.zeros_like(tensor)
    assert step.kind == kinds.PAD, step.kind
    # No Pad: TensorFlow 2.21 makes one operation of it and a convolution after it on CPU, also
    # where it pads the filter, and then aborts the process.
    zeros = [tf.zeros_like(tensor)] * (count - 1)
    return tf.concat([*zeros[:at], tensor, *zeros[at:]], step.sources[0])


def _part(
    communicator: Communicator, steps: Sequence[RelayoutStep], device: int, tensor: Any
) -> Any:
    """Return the part of a tensor that several slices leave."""
    shape = tensor.shape.as_list()
    begin = [0] * len(shape)
    for step in steps:
        dimension = step.targets[0]
        shape[dimension] //= communicator.members(step.axes)
        begin[dimension] += communicator.place(device, step.axes) * shape[dimension]
    return cut(tensor, begin, shape)


def _members(step: RelayoutStep) -> list[tuple[int, ...]]:
    sizes = [step.before.mesh.size_of(axis) for axis in step.axes]
    members: list[tuple[int, ...]] = [()]
    for size in sizes:
        members = [(*one, i) for one in members for i in range(size)]
    return members


def _blocks(step: RelayoutStep, tensor: Any) -> list[Any]:
    """Return the block of a tensor for each member of a group."""
    found = []
    for receiver in _members(step):
        take = block_of(step, receiver, step.targets, step.after, tensor.shape.as_list())
        sizes = [one.stop - one.start for one in take]
        found.append(cut(tensor, [one.start for one in take], sizes))
    return found


def _assembled(step: RelayoutStep, blocks: Sequence[Any]) -> Any:
    """Return the tensor of the blocks that a device got, by their places along the dimensions."""
    dimensions = sorted(set(step.sources))
    shape = step.after.slice_shape
    placed: Mapping[tuple[int, ...], Any] = {}
    for sender, block in zip(_members(step), blocks, strict=True):
        put = block_of(step, sender, step.sources, step.before, shape)
        placed = {**placed, tuple(put[i].start for i in dimensions): block}
    while dimensions:
        last = dimensions.pop()
        rows: dict[tuple[int, ...], list[Any]] = {}
        for key in sorted(placed):
            rows.setdefault(key[:-1], []).append(placed[key])
        placed = {key: tf.concat(mine, last) for key, mine in rows.items()}
    return placed[()]
