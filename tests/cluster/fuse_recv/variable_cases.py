# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases of `cases.py` that read and write variables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.cluster.fuse_recv.bench import Bench, case, whole_numbers


@case
def gradients(bench: Bench) -> list[Any]:
    """Tables and weights, read, and updated by scatter_sub, assign_sub and assign."""
    servers = range(2 * len(bench.ps))
    tables = [bench.variable(i, whole_numbers("float32", i, (7, 4)) / 9.0) for i in servers]
    weights = [bench.variable(i, whole_numbers("float32", 50 + i, (4, 3)) / 11.0) for i in servers]
    last = [bench.variable(i, tf.zeros([4, 3])) for i in servers]
    ids = tf.constant([0, 3, 3, 6])
    labels = whole_numbers("float32", 99, (4, 3)) / 7.0

    @tf.function
    def step(ids, labels):
        with tf.GradientTape() as tape:
            rows = [tf.gather(t, ids) for t in tables]
            out = tf.add_n([tf.matmul(r, w) for r, w in zip(rows, weights, strict=True)])
            loss = tf.reduce_sum(tf.square(tf.tanh(out) - labels))
        grads = tape.gradient(loss, [*tables, *weights])
        for table, grad in zip(tables, grads[: len(tables)], strict=True):
            table.scatter_sub(tf.IndexedSlices(0.1 * grad.values, grad.indices))
        for weight, kept, grad in zip(weights, last, grads[len(tables) :], strict=True):
            weight.assign_sub(0.1 * grad)
            kept.assign(grad)
        return loss

    losses = bench.call(step, ids, labels) + bench.call(step, ids, labels)
    return losses + [v.numpy() for v in (*tables, *weights, *last)]


@case
def snapshots(bench: Bench) -> list[Any]:
    """Values that are sent and then written over on the server, before and after the sending."""
    dense = [bench.variable(0, whole_numbers("float32", i)) for i in range(4)]
    tables = [bench.variable(0, whole_numbers("float32", 10 + i, (5, 2))) for i in range(2)]

    @tf.function
    def step():
        before = [v.read_value() for v in (*dense, *tables)]
        for v in dense[:2]:
            v.assign_add([1.0, 2.0, 3.0])
        dense[2].assign([7.0, 8.0, 9.0])
        for table in tables:
            table.scatter_add(tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 4])))
        after = [v.read_value() for v in (*dense, *tables)]
        return [b * 2.0 for b in before], [a * 3.0 for a in after]

    return bench.call(step) + bench.call(step)


@case
def spread(bench: Bench) -> list[Any]:
    """The same values go to the worker and to the other servers, and from there to the worker."""
    variables = [bench.variable(0, whole_numbers("float32", i)) for i in range(4)]
    others = [bench.server(i) for i in range(1, len(bench.ps))]

    @tf.function
    def run():
        values = [v.read_value() for v in variables]
        results = [v * 2.0 for v in values]
        for device in others:
            with tf.device(device):
                results += [v + 1.0 for v in values] + [tf.add_n(values)]
        return [r * 1.0 for r in results]

    return bench.call(run)


@case
def sums(bench: Bench) -> list[Any]:
    """Each operation takes several tensors of a server: plain, in branches, and in a loop."""
    left = [bench.variable(0, whole_numbers("float32", i)) for i in range(6)]
    right = [bench.variable(1, whole_numbers("float32", 10 + i)) for i in range(6)]

    def halves(variables):
        read = [v.read_value() for v in variables]
        return tf.add_n(read[:3]) - 2.0 * tf.add_n(read[3:])

    @tf.function
    def plain():
        return halves(left), halves(right)

    @tf.function
    def branch(flag):
        return tf.cond(flag, lambda: halves(left), lambda: halves(right))

    @tf.function
    def loop(n):
        def body(i, x):
            return i + 1, x + halves(left) * halves(right)

        return tf.while_loop(lambda i, _: i < n, body, (0, tf.zeros([3])))

    values = bench.call(plain)
    values += bench.call(branch, tf.constant(True)) + bench.call(branch, tf.constant(False))
    return values + bench.call(loop, tf.constant(3))


@case
def kept_values(bench: Bench) -> list[Any]:
    """Variables that take over what was received; they must not keep the frame."""
    kept = [bench.variable(0, tf.zeros([8])) for _ in range(3)]
    added = bench.variable(0, tf.zeros([8]))

    @tf.function
    def store(x):
        for i, v in enumerate(kept):
            v.assign(x * float(i + 1))
        added.assign_add(x * 4.0)
        return x * 5.0

    values = bench.call(store, whole_numbers("float32", 1, (8,)))
    values += bench.call(store, whole_numbers("float32", 2, (8,)))
    return values + [v.numpy() for v in (*kept, added)]
