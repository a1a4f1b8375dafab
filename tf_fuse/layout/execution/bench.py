# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs what `tf_fuse.layout.measurement` measures as plans are run by `tf_fuse.layout.execute`.

    rates = measurement.measure(mesh, Bench(mesh)).rates
    plan = layout.plan(step, mesh, args, rates=rates)

In several processes each makes a bench and measures; all get the same rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_fuse.layout.execution.communicator import Communicator, Held
from tf_fuse.layout.execution.devices import devices_of
from tf_fuse.layout.execution.relayouts import relayout
from tf_fuse.layout.execution.rings import Rings
from tf_fuse.layout.measured_operations import absolutes, powers, small
from tf_fuse.layout.measurement import Relayouted
from tf_fuse.layout.mesh import Mesh
from tf_fuse.layout.redistribution import RelayoutPlan, plan_relayout
from tf_fuse.layout.tensor_layout import TensorLayout


class Bench:
    """The devices of a mesh, to be measured."""

    def __init__(self, mesh: Mesh, devices: Any = None):
        """Takes the devices.

        Args:
          mesh: that is measured.
          devices: as of `tf_fuse.layout.execute`.
        """
        self._devices = devices_of(mesh, devices)
        rings = Rings(self._devices) if self._devices.distributed else None
        self._communicator = Communicator(self._devices, rings)

    def relayout(self, source: TensorLayout, target: TensorLayout, count: int) -> Relayouted:
        """Relayouts of a float32 tensor between two layouts, there and back."""
        plans = _plans(source, target)
        run = self._run(lambda held: self._to_and_fro(plans, held, count), source.slice_shape)
        return Relayouted(plans, run, len(plans) == 1)

    def product(self, rows: int, count: int) -> Callable[[], None]:
        """Products of two square matrices, on each device its own."""
        return self._alone(lambda one: powers(one, count), (rows, rows))

    def vectors(self, elements: int, count: int) -> Callable[[], None]:
        """Absolute values of a vector, on each device its own."""
        return self._alone(lambda one: absolutes(one, count), (elements,))

    def chain(self, elements: int, count: int) -> Callable[[], None]:
        """Operations on a small vector, on each device its own; some have two readers."""
        return self._alone(lambda one: small(one, count), (elements,))

    def both(self, rows: int, source: TensorLayout, count: int) -> Callable[[], None]:
        """Products of matrices, and beside them a tensor that is made whole, each time anew."""
        plans = _plans(source, TensorLayout(source.mesh, source.shape))
        elements = math.prod(source.slice_shape)

        def beside(held: Held) -> Held:
            matrices = self._communicator.each(
                held, lambda _, one: tf.reshape(one[: rows * rows], (rows, rows))
            )
            terms: Held = self._communicator.each(
                held, lambda _, one: tf.reshape(one[:elements], source.slice_shape)
            )
            terms = self._to_and_fro(plans, terms, count)
            made = self._communicator.each(matrices, lambda _, one: powers(one, count))
            return {device: made[device][0, :1] + one[:1] for device, one in terms.items()}

        return self._run(beside, (max(elements, rows * rows),))

    def _to_and_fro(self, plans: Sequence[RelayoutPlan], held: Held, count: int) -> Held:
        for _ in range(count):
            if len(plans) == 1:
                held = self._communicator.each(held, lambda _, one: absolutes(one, 1))
            for plan in plans:
                held = relayout(self._communicator, plan, held)
        return held

    def agreed(self, seconds: Sequence[float]) -> list[float]:
        """For each time the longest of all processes' ones: the same in each of them."""
        if not self._devices.distributed:
            return list(seconds)
        axes = [axis for axis, size in self._devices.mesh.dims if size > 1]

        def gathered(mine: Any) -> Any:
            held = dict.fromkeys(self._devices.local, mine)
            return self._communicator.all_gather(held, axes)[self._devices.first]

        every = tf.function(gathered)(tf.constant(list(seconds), tf.float64))
        return [float(max(column)) for column in zip(*(one.numpy() for one in every), strict=True)]

    def _alone(self, what: Callable[[Any], Any], shape: Sequence[int]) -> Callable[[], None]:
        return self._run(lambda held: self._communicator.each(held, lambda _, x: what(x)), shape)

    def _run(self, what: Callable[[Held], Held], shape: Sequence[int]) -> Callable[[], None]:
        """A call that waits until what it makes is on all devices; an element of each is read."""
        pieces = {}
        for device, name in self._devices.names.items():
            with tf.device(name):
                pieces[device] = tf.Variable(tf.fill(shape, 0.5), trainable=False)

        def body() -> list[Any]:
            held = self._communicator.each(pieces, lambda _, one: one.read_value())
            made = self._communicator.each(what(held), lambda _, one: tf.reshape(one, [-1])[:1])
            return list(made.values())

        function = tf.function(body)

        def run() -> None:
            for one in function():
                one.numpy()

        return run


def _plans(source: TensorLayout, target: TensorLayout) -> tuple[RelayoutPlan, ...]:
    """There and back. What is added up is a term again: TensorFlow adds no zeros that it knows.

    It is made anew then, so that its memory is the device's own and may take the sum, as in a step.
    """
    there = plan_relayout(source, target)
    terms = source.partial and not target.partial and source.slice_shape == target.slice_shape
    return (there,) if terms else (there, plan_relayout(target, source))
