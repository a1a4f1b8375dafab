# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs what `tf_fuse.layout.measurement` measures as plans are run by `tf_fuse.layout.execute`.

    rates = measurement.measure(mesh, Bench(mesh)).rates
    plan = layout.plan(step, mesh, args, rates=rates)

In several processes each makes a bench and measures; all get the same rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_fuse.layout.execution.communicator import Communicator, Held
from tf_fuse.layout.execution.devices import devices_of
from tf_fuse.layout.execution.relayouts import relayout
from tf_fuse.layout.execution.rings import Rings
from tf_fuse.layout.measurement import Relayouted
from tf_fuse.layout.mesh import Mesh
from tf_fuse.layout.redistribution import plan_relayout
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

    def relayout(self, source: TensorLayout, target: TensorLayout) -> Relayouted:
        """A relayout of a float32 tensor between two layouts."""
        plan = plan_relayout(source, target)
        run = self._run(lambda held: relayout(self._communicator, plan, held), source.slice_shape)
        return Relayouted(plan.received_bytes_per_device, plan.messages, run)

    def gathers(self, axis: str, count: int, elements: int) -> Callable[[], None]:
        """Gathers along an axis, one after the other, of what each leaves a slice of."""
        mesh = self._devices.mesh
        shape = (mesh.size_of(axis), elements)
        split, whole = TensorLayout(mesh, shape, [[axis], []]), TensorLayout(mesh, shape)
        there, back = plan_relayout(split, whole), plan_relayout(whole, split)

        def chained(held: Held) -> Held:
            for _ in range(count):
                held = relayout(self._communicator, there, held)
                held = relayout(self._communicator, back, held)
            return held

        return self._run(chained, split.slice_shape)

    def product(self, rows: int) -> Callable[[], None]:
        """A product of two square matrices, on each device its own."""
        return self._alone(lambda one: tf.linalg.matmul(one, one), (rows, rows))

    def sums(self, elements: int) -> Callable[[], None]:
        """A sum of two vectors, on each device its own."""
        return self._alone(lambda one: one + one, (elements,))

    def chain(self, operations: int, elements: int) -> Callable[[], None]:
        """Operations on a small vector, one after the other, on each device its own."""

        def chained(one: Any) -> Any:
            for _ in range(operations):
                one = tf.tanh(one)
            return one

        return self._alone(chained, (elements,))

    def nothing(self) -> Callable[[], None]:
        """A call that does nothing."""
        return self._alone(tf.identity, (1,))

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
