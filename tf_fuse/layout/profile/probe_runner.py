# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run the measured operations and relayouts as `tf_fuse.layout.execute` runs plans.

    rates = measurement.measure(mesh, ExecutionBench(mesh)).rates
    plan = layout.plan(step, mesh, args, rates=rates)

In several processes, each creates a bench and measures; all get the same rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_fuse.layout.execution.communication.communicator import Communicator, PerDevice
from tf_fuse.layout.execution.communication.process_collectives import ProcessCollectives
from tf_fuse.layout.execution.communication.relayouts import relayout
from tf_fuse.layout.execution.devices import devices_of
from tf_fuse.layout.profile.measure_rates import Relayouted
from tf_fuse.layout.profile.probe_operations import (
    contractions,
    leaky_relus,
    powers,
    sigmoids,
    small,
)
from tf_fuse.layout.relayout.redistribution import RelayoutPlan, plan_relayout
from tf_fuse.layout.types.mesh import Mesh
from tf_fuse.layout.types.tensor_layout import TensorLayout


class ExecutionBench:
    """The devices of a mesh, to be measured."""

    def __init__(self, mesh: Mesh, devices: Any = None):
        """Take the devices.

        Args:
          mesh: that is measured.
          devices: as of `tf_fuse.layout.execute`.
        """
        self._devices = devices_of(mesh, devices)
        rings = ProcessCollectives(self._devices) if self._devices.distributed else None
        self._communicator = Communicator(self._devices, rings)

    def relayout(self, source: TensorLayout, target: TensorLayout, count: int) -> Relayouted:
        """Return relayouts of a float32 tensor between two layouts, there and back."""
        plans = _plans(source, target)
        run = self._run(lambda held: self._to_and_fro(plans, held, count), source.slice_shape)
        return Relayouted(plans, run, len(plans) == 1)

    def product(self, rows: int, count: int) -> Callable[[], None]:
        """Return products of two square matrices, each device with its own."""
        return self._compute(lambda one: powers(one, count), (rows, rows))

    def vectors(self, elements: int, count: int, alone: bool = False) -> Callable[[], None]:
        """Return leaky ReLUs of a vector, each device with its own, or on the first one."""
        return self._compute(lambda one: leaky_relus(one, count), (elements,), alone)

    def functions(self, elements: int, count: int, alone: bool = False) -> Callable[[], None]:
        """Return sigmoids of a vector, each behind a leaky ReLU, likewise."""
        return self._compute(lambda one: sigmoids(one, count), (elements,), alone)

    def chain(self, elements: int, count: int, alone: bool = False) -> Callable[[], None]:
        """Return operations on a small vector, likewise; some have two readers."""
        return self._compute(lambda one: small(one, count), (elements,), alone)

    def contraction(
        self,
        kind: str,
        text: str,
        shapes: Sequence[Sequence[int]],
        count: int,
        alone: bool = False,
    ) -> Callable[[], None]:
        """Return contractions of two tensors, each of tensors of its own."""
        # Equal ones would be computed once.
        return self._compute(lambda pairs: contractions(kind, text, pairs), [shapes] * count, alone)

    def both(self, rows: int, source: TensorLayout, count: int) -> Callable[[], None]:
        """Return products of matrices beside an all-reduce or all-gather of a tensor."""
        plans = _plans(source, TensorLayout(source.mesh, source.shape))
        elements = math.prod(source.slice_shape)

        def beside(held: PerDevice) -> PerDevice:
            matrices = self._communicator.each(
                held, lambda _, one: tf.reshape(one[: rows * rows], (rows, rows))
            )
            terms: PerDevice = self._communicator.each(
                held, lambda _, one: tf.reshape(one[:elements], source.slice_shape)
            )
            terms = self._to_and_fro(plans, terms, count)
            made = self._communicator.each(matrices, lambda _, one: powers(one, count))
            return {device: made[device][0, :1] + one[:1] for device, one in terms.items()}

        return self._run(beside, (max(elements, rows * rows),))

    def _to_and_fro(self, plans: Sequence[RelayoutPlan], held: PerDevice, count: int) -> PerDevice:
        for _ in range(count):
            if len(plans) == 1:
                held = self._communicator.each(held, lambda _, one: leaky_relus(one, 1))
            for plan in plans:
                held = relayout(self._communicator, plan, held)
        return held

    def agreed(self, seconds: Sequence[float]) -> list[float]:
        """Return, for each time, the longest of all processes: the same in each of them."""
        if not self._devices.distributed:
            return list(seconds)
        axes = [axis for axis, size in self._devices.mesh.dims if size > 1]

        def gathered(mine: Any) -> Any:
            held = dict.fromkeys(self._devices.local, mine)
            return self._communicator.all_gather(held, axes, 0)[self._devices.first]

        every = tf.function(gathered, autograph=False)(tf.constant([list(seconds)], tf.float64))
        return [float(one) for one in tf.reduce_max(every, 0).numpy()]

    def _compute(
        self, what: Callable[[Any], Any], shapes: Any, alone: bool = False
    ) -> Callable[[], None]:
        # The mesh's first device may be another process's.
        devices = [one for one in self._devices.local if one == 0 or not alone]
        each = self._communicator.each
        return self._run(lambda held: each(held, lambda _, x: what(x)), shapes, devices)

    def _run(
        self,
        what: Callable[[PerDevice], PerDevice],
        shapes: Any,
        devices: Sequence[int] | None = None,
    ) -> Callable[[], None]:
        """Return a call that reads an element of each result, so that it waits for all devices.

        Args:
          what: makes a tensor of each device's tensors.
          shapes: of a device's tensors: a shape, or lists of them.
          devices: that do it; all of this process by default.
        """
        pieces = {}
        for device in self._devices.local if devices is None else devices:
            with tf.device(self._devices.names[device]):
                pieces[device] = _variables(shapes)

        def body() -> list[Any]:
            held = self._communicator.each(
                pieces, lambda _, some: tf.nest.map_structure(lambda one: one.read_value(), some)
            )
            made = self._communicator.each(what(held), lambda _, one: tf.reshape(one, [-1])[:1])
            return list(made.values())

        function = tf.function(body, autograph=False)

        def run() -> None:
            for one in function():
                one.numpy()

        return run


def _variables(shapes: Any) -> Any:
    """Return a variable for a shape, or lists of variables for lists of shapes."""
    if all(isinstance(size, int) for size in shapes):
        return tf.Variable(tf.fill(shapes, 0.5), trainable=False)
    return [_variables(one) for one in shapes]


def _plans(source: TensorLayout, target: TensorLayout) -> tuple[RelayoutPlan, ...]:
    """Return plans there and back. TensorFlow adds no zeros that it knows, so sums need terms.

    It is made anew then, so that its memory is the device's own and may take the sum, as in a step.
    """
    there = plan_relayout(source, target)
    terms = source.partial and not target.partial and source.slice_shape == target.slice_shape
    return (there,) if terms else (there, plan_relayout(target, source))
