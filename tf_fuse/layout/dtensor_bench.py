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
from tf_fuse.layout.measurement import Relayouted
from tf_fuse.layout.mesh import Mesh
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

    def relayout(self, source: TensorLayout, target: TensorLayout) -> Relayouted:
        """A relayout of a float32 tensor between two layouts."""
        plan = dtensor.plan(source, target)
        shape = (*(1 for _ in source.partial), *source.slice_shape)
        tensor = self._packed(tf.ones(shape), dtensor.dtensor_layout(source, self._devices))
        function = tf.function(lambda one: dtensor.relayout(one, plan, self._devices))
        run = self._waiting(function, tensor)
        return Relayouted(plan.received_bytes_per_device, plan.messages, run)

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
        specs = [*self._mesh.axes, *(stock.UNSHARDED for _ in shape)]
        piece = tf.fill([*self._local, *shape], 0.5)
        tensor = self._packed(piece, stock.Layout(specs, self._devices))
        return self._waiting(tf.function(what), tensor)

    def _packed(self, piece: Any, layout: Any) -> Any:
        return stock.pack([piece] * len(self._devices.local_devices()), layout)

    def _waiting(self, function: Any, tensor: Any) -> Callable[[], None]:
        def run() -> None:
            for one in stock.unpack(function(tensor)):
                one.numpy()

        return run
