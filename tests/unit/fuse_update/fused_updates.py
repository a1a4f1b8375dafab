# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions whose updates become one operation each, run with stock and with ours."""

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as context_module

import tf_fuse  # noqa: F401
from tests import decisions
from tf_fuse.shard_update import interception


def _switch(on):
    tf.config.optimizer.set_experimental_options({"fuse_weight_update": on})


def _decisions():
    return interception.fuser_of(context_module.context()).decisions


def outlines_of(run):
    """Runs something with the option on; returns that, and what is decided of functions."""
    with decisions.kept():
        count = len(_decisions())
        _switch(True)
        try:
            result = run()
        finally:
            _switch(False)
        return result, [decision.outline for decision in _decisions()[count:]]


def bits(values):
    """The bits of some tensors."""
    return [np.asarray(value).tobytes() for value in values]


def bits_without_nan_signs(values):
    """The same; of two NaNs the compiler of a kernel chooses which one a sum or product is."""
    return bits(np.where(np.isnan(value), np.float32("nan"), value) for value in values)


def clusters(outlines):
    """How many updates are one operation each."""
    return sum(len(one.clusters) for one in outlines)


def reasons(outlines):
    """Why others are not."""
    return {left.reason for one in outlines for left in one.left}


class Job:
    """A weight, a slot, a scalar."""

    def __init__(self, shape=(5, 7, 3), dtype=tf.float32):
        rng = np.random.default_rng(1)
        self.w = tf.Variable(rng.standard_normal(shape), dtype=dtype)
        self.m = tf.Variable(np.abs(rng.standard_normal(shape)), dtype=dtype)
        self.s = tf.Variable(0.7, dtype=dtype)

    def update(self, g):
        """Constants in chains, a quotient by a square root, a cube."""
        x = 0.3 * (0.7 * (g * 0.1))
        self.m.assign(0.9 * self.m + 0.1 * tf.pow(0.3 * g, 3.0))
        self.w.assign_sub(x * (self.m * 0.01) / (0.3 + (tf.sqrt(self.m * self.m) + 1e-3)))


def compared(body, shape=(5, 7, 3), dtype=tf.float32, steps=2, of=bits):
    """Runs a function of a job and a gradient with stock and with ours; returns the outlines."""

    def run():
        job = Job(shape, dtype)
        rng = np.random.default_rng(2)
        function = tf.function(lambda g: body(job, g), autograph=False)
        told = []
        for _ in range(steps):
            gradient = tf.constant(rng.standard_normal(shape), dtype)
            told += [t.numpy() for t in tf.nest.flatten(function(gradient)) if t is not None]
        return [*told, job.w.numpy(), job.m.numpy(), job.s.numpy()]

    stock = run()
    ours, outlines = outlines_of(run)
    assert of(ours) == of(stock)
    return outlines


def _unrolled(job, g):
    for _ in range(5):
        job.m.assign(0.9 * job.m + g * 0.1)
        job.w.assign_sub(job.m * 0.01)
