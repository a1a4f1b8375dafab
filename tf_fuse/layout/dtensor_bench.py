# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs what `tf_fuse.layout.measurement` measures on `tf.experimental.dtensor`.

On logical devices of one process, or in all processes of a mesh, where each makes a bench and calls
`measure`: then collectives meet, and all get the same rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor as stock

from tf_fuse.layout import dtensor
from tf_fuse.layout.measured_operations import absolutes, powers, small
from tf_fuse.layout.measurement import Relayouted
from tf_fuse.layout.mesh import Mesh
from tf_fuse.layout.redistribution import RelayoutPlan
from tf_fuse.layout.tensor_layout import TensorLayout


class Bench:
    """The devices of a mesh, to be measured."""

    def __init__(self, mesh: Mesh, devices: Any):
        """Takes the devices.

        Args:
          mesh: that is measured.
          devices: what `dtensor.device_mesh` made of it.
        """
        self._mesh = mesh
        self._devices = devices
        # A dimension in front for each axis, split over it: each device has its own.
        self._front = mesh.shape
        self._local = tuple(1 for _ in mesh.shape)

    def relayout(self, source: TensorLayout, target: TensorLayout, count: int) -> Relayouted:
        """Relayouts of a float32 tensor between two layouts, there and back."""
        plans, terms = _plans(source, target)
        function = tf.function(lambda one: self._to_and_fro(plans, one, count, terms))
        anew = terms and not any(target.splits)
        return Relayouted(plans, self._waiting(function, self._ones(source)), anew)

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
        plans, again = _plans(source, TensorLayout(source.mesh, source.shape))
        terms, matrices = self._ones(source), self._own((rows, rows))

        def beside(matrices: Any, terms: Any) -> Any:
            return powers(matrices, count), self._to_and_fro(plans, terms, count, again)

        function = tf.function(beside)

        def run() -> None:
            for made in function(matrices, terms):
                for one in stock.unpack(made):
                    one.numpy()

        return run

    def agreed(self, seconds: Sequence[float]) -> list[float]:
        """For each time the longest of all processes' ones: the same in each of them."""
        layout = stock.Layout([*self._mesh.axes, stock.UNSHARDED], self._devices)
        mine = tf.constant(list(seconds), tf.float64)
        tensor = self._packed(tf.reshape(mine, [*self._local, len(seconds)]), layout)
        # One axis a step, which is all that DTensor's gathers get right.
        specs = [*self._mesh.axes, stock.UNSHARDED]
        for i in range(len(self._mesh.axes)):
            specs[i] = stock.UNSHARDED
            tensor = stock.relayout(tensor, stock.Layout(list(specs), self._devices))
        every = stock.unpack(tensor)[0].numpy().reshape(-1, len(seconds))
        return [float(one) for one in every.max(axis=0)]

    def _alone(self, what: Callable[[Any], Any], shape: Sequence[int]) -> Callable[[], None]:
        """A function of each device's own tensor."""
        return self._waiting(tf.function(what), self._own(shape))

    def _own(self, shape: Sequence[int]) -> Any:
        specs = [*self._mesh.axes, *(stock.UNSHARDED for _ in shape)]
        piece = tf.fill([*self._local, *shape], 0.5)
        return self._packed(piece, stock.Layout(specs, self._devices))

    def _ones(self, layout: TensorLayout) -> Any:
        shape = (*(1 for _ in layout.partial), *layout.slice_shape)
        return self._packed(tf.ones(shape), dtensor.dtensor_layout(layout, self._devices))

    def _to_and_fro(
        self, plans: Sequence[RelayoutPlan], tensor: Any, count: int, terms: bool
    ) -> Any:
        first = tensor
        for _ in range(count):
            for plan in plans:
                tensor = dtensor.relayout(tensor, plan, self._devices)
            if terms:
                tensor = first * tensor
        return tensor

    def _packed(self, piece: Any, layout: Any) -> Any:
        return stock.pack([piece] * len(self._devices.local_devices()), layout)

    def _waiting(self, function: Any, tensor: Any) -> Callable[[], None]:
        def run() -> None:
            for one in stock.unpack(function(tensor)):
                one.numpy()

        return run


def _plans(source: TensorLayout, target: TensorLayout) -> tuple[tuple[RelayoutPlan, ...], bool]:
    """There and back; and whether terms are made of what is whole then, as products of the first.

    DTensor does not compile a sum of terms that zeros were put beside in the same function.
    """
    there = dtensor.plan(source, target)
    if not source.partial:
        return (there, dtensor.plan(target, source)), False
    whole = TensorLayout(target.mesh, target.shape)
    return ((there,) if target == whole else (there, dtensor.plan(target, whole))), True
