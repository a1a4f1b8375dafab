# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs strategies on numpy arrays, one set per device, and their operations on whole ones.

A kernel computes what a device does with what it holds. It is a generator: where devices exchange
something within the operation, it yields (factor, reduction, array) and gets the reduced array
back. Run with whole arrays it is never asked, but whole operations are written another way, so that
one checks the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence

import numpy as np

from benchmarks.layout import simulation
from tf_fuse.layout import Mesh
from tf_fuse.layout.operators import rule_of
from tf_fuse.layout.strategies.inner_halos import InnerHalo
from tf_fuse.layout.strategies.strategy import SPLIT, Strategy
from tf_fuse.layout.types.operation import Operation

Exchange = Generator[tuple[str, str, np.ndarray], np.ndarray, Sequence[np.ndarray]]
# Of the float64 that cases have.
ITEM_BYTES = 8
REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


class Device:
    """What a kernel knows of its device."""

    def __init__(self, operation: Operation, strategy: Strategy, mesh: Mesh, number: int):
        self.operation = operation
        self.strategy = strategy
        self.number = number
        self.rule = rule_of(operation)
        self._at = dict(zip(mesh.axes, mesh.coordinates(number), strict=True))
        self.mesh = mesh

    def axes(self, factor: str) -> list[str]:
        return [
            axis
            for axis, choice in zip(self.mesh.axes, self.strategy.choices, strict=True)
            if choice.kind == SPLIT and choice.factor == factor
        ]

    def first(self, factor: str, length: int) -> int:
        """The first index of a device's slice of a factor, of some length."""
        number = 0
        for axis in self.axes(factor):
            number = number * self.mesh.size_of(axis) + self._at[axis]
        return number * length

    def size(self, factor: str) -> int:
        return dict(self.rule.sizes)[factor]

    def attribute(self, name, default=None):
        return self.operation.attribute(name, default)


def run(
    operation: Operation, strategy: Strategy, inputs: Sequence[np.ndarray], kernel: Callable
) -> list[np.ndarray]:
    """The outputs, put together from what the devices make of their slices of the inputs.

    Each collective of the kernel has to be one of the strategy's, with its axes and bytes, and the
    other way round.
    """
    mesh = strategy.outputs[0].mesh
    held = [
        simulation.scatter(value, layout, seed=7 + i)
        for i, (value, layout) in enumerate(zip(inputs, strategy.inputs, strict=True))
    ]
    made = in_step(
        operation, strategy, mesh, kernel, [[one[d] for one in held] for d in range(mesh.size)]
    )
    return [
        simulation.assemble([one[i] for one in made], layout)
        for i, layout in enumerate(strategy.outputs)
    ]


def in_step(operation, strategy, mesh, kernel, held, collectives=None) -> list:
    """What the kernel returns on each device."""
    devices = [Device(operation, strategy, mesh, number) for number in range(mesh.size)]
    running = [kernel(device, *mine) for device, mine in zip(devices, held, strict=True)]
    made: list = [None] * mesh.size
    answers: list = [None] * mesh.size
    left = list(strategy.forward if collectives is None else collectives)
    while any(one is None for one in made):
        asked: list = [None] * mesh.size
        for number, generator in enumerate(running):
            if not hasattr(generator, "send"):
                made[number] = generator
                continue
            try:
                asked[number] = generator.send(answers[number])
            except StopIteration as end:
                made[number] = end.value
        if any(one is not None for one in asked):
            answers = _reduce(mesh, devices, asked, left)
    assert not left, f"the strategy has collectives that were not needed: {left}"
    return made


def _reduce(mesh, devices, asked, left) -> list:
    assert all(one is not None for one in asked), "some devices exchange, and some do not"
    factor, reduction, array = asked[0]
    axes = tuple(devices[0].axes(factor))
    if isinstance(reduction, tuple):
        return _neighbours(mesh, axes, reduction[1], [one[2] for one in asked], left)
    if not axes:
        return [one[2] for one in asked]
    item = devices[0].operation.inputs[0].item_bytes
    assert left, f"the strategy has no collective for {reduction} over {axes}"
    charged = left.pop(0)
    assert (charged.reduction, charged.axes) == (reduction, axes)
    assert charged.held_bytes == array.size * item
    members = int(np.prod([mesh.size_of(axis) for axis in axes]))
    assert charged.messages == 2 * (members - 1)
    assert charged.received_bytes * members == 2 * (members - 1) * array.size * item * mesh.size
    found: list = [None] * mesh.size
    for group in mesh.groups(axes):
        whole = functools.reduce(REDUCE[reduction], [asked[number][2] for number in group])
        for number in group:
            found[number] = whole
    return found


def _neighbours(mesh, axes, dimension, held, left) -> list:
    """The rows before and after what each device has, as many as the strategy says."""
    assert left, f"the strategy has no halo over {axes}"
    charged = left.pop(0)
    assert isinstance(charged, InnerHalo) and charged.axes == axes
    found: list = [None] * mesh.size
    counts = []
    for group in mesh.groups(axes):
        for place, number in enumerate(group):
            own = held[number]
            rows = [own.take(range(0), dimension)] * 2
            before, after = charged.borders[place]
            if before:
                rows[0] = np.split(held[group[place - 1]], [-before], dimension)[1]
            if after:
                rows[1] = np.split(held[group[place + 1]], [after], dimension)[0]
            assert [one.shape[dimension] for one in rows] == [before, after]
            counts.append(rows[0].size + rows[1].size)
            found[number] = rows
    assert charged.received_bytes == sum(counts) * ITEM_BYTES
    assert charged.awaited_bytes == max(counts) * ITEM_BYTES
    return found


def gradients(operation, strategy, inputs, output_gradients, kernel) -> list[np.ndarray | None]:
    """The inputs' gradients, put together from what the devices make.

    The kernel gets the device, its slices of the inputs and those of the outputs' gradients.
    """
    mesh = strategy.outputs[0].mesh
    layouts = [*strategy.inputs, *strategy.output_gradients]
    held = [
        [None] * mesh.size if layout is None else simulation.scatter(value, layout, seed=17 + i)
        for i, (value, layout) in enumerate(zip([*inputs, *output_gradients], layouts, strict=True))
    ]
    mine = [[one[number] for one in held] for number in range(mesh.size)]
    made = in_step(operation, strategy, mesh, kernel, mine, strategy.backward)
    return [
        None if layout is None else simulation.assemble([one[i] for one in made], layout)
        for i, layout in enumerate(strategy.input_gradients)
    ]


def linear_gradient(kernel: Callable) -> Callable:
    """A kernel of the gradient of a kernel that is linear in each input, and exchanges nothing.

    Each element of an input's gradient is what that element adds to the output, by the output's
    gradient. Nothing is known of the operation here.
    """

    def gradient(device, *everything):
        count = len(device.strategy.inputs)
        inputs, backs = everything[:count], everything[count:]
        found: list = [None] * count
        for i, layout in enumerate(device.strategy.input_gradients):
            if layout is None:
                continue
            others = [np.zeros_like(one) if i == j else one for j, one in enumerate(inputs)]
            nothing = kernel(device, *others)
            found[i] = np.zeros_like(inputs[i])
            for at in np.ndindex(inputs[i].shape):
                others[i] = np.zeros_like(inputs[i])
                others[i][at] = 1
                made = kernel(device, *others)
                found[i][at] = sum(
                    ((one - zero) * back).sum()
                    for one, zero, back in zip(made, nothing, backs, strict=True)
                    if back is not None
                )
        return found

    return gradient
