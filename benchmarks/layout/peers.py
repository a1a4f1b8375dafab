# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a training step without a plan: on one device, by MirroredStrategy, and by DTensor.

MirroredStrategy and DTensor split the batch over all devices, and keep whole weights on each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from benchmarks.layout.step_models import RATE, Model

# Makes a model with variables that a function of initial values and a name makes.
Make = Callable[..., Model]


def one_device(make: Make, devices: int) -> Callable[[], Any]:
    """Return a call of the step on the first device; the loss."""
    del devices
    with tf.device("CPU:0"):
        model = make()
        args = [tf.constant(one) for one in model.args]
        step = tf.function(model.step)

    def run() -> Any:
        with tf.device("CPU:0"):
            return step(*args)

    return run


@functools.cache
def _strategy(devices: int) -> tf.distribute.Strategy:
    """One for all models: a second one on the same devices has the collective keys of the first."""
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)])


def mirrored(make: Make, devices: int) -> Callable[[], Any]:
    """Return a call of the step by MirroredStrategy; the loss."""
    strategy = _strategy(devices)
    with strategy.scope():
        model = make()

    def replica(*args: Any) -> Any:
        context = tf.distribute.get_replica_context()
        assert context is not None
        with tf.GradientTape() as tape:
            loss = model.loss_of(*args)
        gradients = tape.gradient(loss, model.variables)
        dense = [tf.convert_to_tensor(one) for one in gradients]
        means = context.all_reduce(tf.distribute.ReduceOp.MEAN, dense)
        for variable, mean in zip(model.variables, means, strict=True):
            # In each replica its own copy, since all means are equal.
            variable.assign_sub(RATE * mean)
        return loss

    @tf.function
    def step(*args: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(replica, args), axis=None)

    parts = [
        strategy.experimental_distribute_values_from_function(
            lambda context, whole=whole: tf.constant(
                _part(whole, context.replica_id_in_sync_group, devices)
            )
        )
        for whole in model.args
    ]
    return lambda: step(*parts)


def on_dtensor(make: Make, devices: int) -> Callable[[], Any]:
    """Return a call of the step by DTensor; the loss."""
    mesh = dtensor.create_mesh([("batch", devices)], devices=[f"CPU:{i}" for i in range(devices)])

    def variable(value: Any, name: str) -> Any:
        layout = dtensor.Layout.replicated(mesh, value.ndim)
        return dtensor.DVariable(dtensor.copy_to_mesh(tf.constant(value), layout), name=name)

    model = make(make_variable=variable)
    args = [
        dtensor.pack(
            [tf.constant(_part(whole, i, devices)) for i in range(devices)],
            dtensor.Layout.batch_sharded(mesh, "batch", whole.ndim),
        )
        for whole in model.args
    ]
    step = tf.function(model.step)
    return lambda: step(*args)


def _part(whole: Any, number: int, parts: int) -> Any:
    size = len(whole) // parts
    return whole[number * size : (number + 1) * size]


PEERS = {"one device": one_device, "MirroredStrategy": mirrored, "DTensor": on_dtensor}
