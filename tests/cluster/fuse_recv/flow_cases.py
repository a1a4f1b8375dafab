# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases of `cases.py` with branches and loops."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.cluster.fuse_recv.bench import MAX_PACKED_BYTES, Bench, case, whole_numbers


@case
def branches(bench: Bench) -> list[Any]:
    """A tf.cond whose branches read variables on two servers: one side is dead."""
    left = [bench.variable(0, whole_numbers("float32", i)) for i in range(3)]
    right = [bench.variable(1, whole_numbers("float32", 10 + i)) for i in range(3)]
    common = [bench.variable(i, whole_numbers("float32", 20 + i)) for i in range(4)]

    @tf.function
    def choose(flag):
        chosen = tf.cond(
            flag,
            lambda: [v * 3.0 + 1.0 for v in left],
            lambda: [v * 5.0 - 1.0 for v in right],
        )
        return chosen, [v + chosen[0] for v in common]

    return [
        value for flag in (True, False, True) for value in bench.call(choose, tf.constant(flag))
    ]


@case
def nested_branches(bench: Bench) -> list[Any]:
    """Conditionals in conditionals, whose predicates are computed on a server."""
    variables = [bench.variable(i, whole_numbers("float32", i)) for i in range(9)]
    limit = bench.variable(1, 2.0)

    @tf.function
    def choose(x):
        def read(*numbers):
            return tf.stack([variables[n] * float(n + 1) for n in numbers])

        def inner(a, b):
            return tf.cond(x > limit * 2.0, lambda: read(*a), lambda: read(*b))

        outer = tf.cond(
            x > limit, lambda: inner((0, 1, 2), (2, 3, 4)) + read(5), lambda: read(6, 7, 8)
        )
        return outer, [v + outer[0] for v in variables]

    return [value for x in (1.0, 3.0, 5.0) for value in bench.call(choose, tf.constant(x))]


@case
def switch_case(bench: Bench) -> list[Any]:
    """tf.switch_case with a branch per server, and one that reads nothing."""
    variables = [bench.variable(i, whole_numbers("float32", i)) for i in range(12)]

    @tf.function
    def choose(index):
        branches = [
            (lambda start=start: [v + 1.0 for v in variables[start::3]]) for start in range(3)
        ]
        branches.append(lambda: [tf.zeros([3])] * 4)
        return tf.switch_case(index, branches)

    return [value for i in range(5) for value in bench.call(choose, tf.constant(i))]


@case
def branch_on_another_server(bench: Bench) -> list[Any]:
    """Branches computed on servers that do nothing else, and have no control flow of their own.

    All that such a server receives may be dead. Without a receive of TensorFlow's its graph would
    be run by an executor that does not look at that, and both branches would have values.
    """
    variables = [bench.variable(0, whole_numbers("float32", i)) for i in range(4)]

    @tf.function
    def choose(flag):
        def computed(server, x, y):
            with tf.device(bench.server(server)):
                return tf.tanh(x - y), x * y

        with tf.device(bench.server(0)):
            a, b, c, d = [v * 2.0 for v in variables]
        return tf.cond(flag, lambda: computed(1, a, b), lambda: computed(2, c, d))

    return [v for flag in (True, False, True) for v in bench.call(choose, tf.constant(flag))]


@case
def updates_in_branches(bench: Bench) -> list[Any]:
    """Branches that update variables on other tasks with what they computed."""
    left = [bench.variable(0, whole_numbers("float32", i)) for i in range(4)]
    right = [bench.variable(1, whole_numbers("float32", 10 + i)) for i in range(4)]

    @tf.function
    def update(flag):
        def add(to, of):
            for a, b in zip(to, of, strict=True):
                a.assign_add(tf.sqrt(b * 2.0))
            return tf.add_n([tf.round(v) for v in to[:2]])

        return tf.cond(flag, lambda: add(left, right), lambda: add(right, left))

    values = [v for flag in (True, False, True) for v in bench.call(update, tf.constant(flag))]
    return values + [v.numpy() for v in (*left, *right)]


@case
def loops(bench: Bench) -> list[Any]:
    """A tf.while_loop that reads and updates remote variables in its body, one of them large."""
    large = bench.variable(0, tf.ones([MAX_PACKED_BYTES // 4 + 1]))
    steps = [bench.variable(i, whole_numbers("float32", i)) for i in range(3)]
    total = bench.variable(1, tf.zeros([3]))
    after = [bench.variable(0, whole_numbers("float32", 30 + i)) for i in range(2)]

    @tf.function
    def loop(n):
        def body(i, x):
            total.assign_add(x)
            more = tf.add_n([s * float(k + 1) for k, s in enumerate(steps)])
            return i + 1, x + more + tf.convert_to_tensor(large)[:3]

        i, x = tf.while_loop(lambda i, _: i < n, body, (tf.constant(0), tf.zeros([3])))
        return i, x, [v * x for v in after]

    values = bench.call(loop, tf.constant(0)) + bench.call(loop, tf.constant(5))
    return [*values, total.numpy()]


@case
def loop_bodies(bench: Bench) -> list[Any]:
    """A body that reads variables on two servers, one iteration at a time or ten."""
    left = [bench.variable(0, whole_numbers("float32", i)) for i in range(3)]
    right = [bench.variable(1, whole_numbers("float32", 10 + i)) for i in range(3)]
    values = []
    for parallel in (1, 10):

        @tf.function
        def loop(n, parallel=parallel):
            def body(i, x):
                scale = tf.cast(i + 1, tf.float32)
                return i + 1, x + tf.add_n([v * scale for v in left + right])

            return tf.while_loop(
                lambda i, _: i < n, body, (0, tf.zeros([3])), parallel_iterations=parallel
            )

        for n in (0, 1, 5):
            values += bench.call(loop, tf.constant(n), on=bench.workers[:1])
    return values


@case
def nested_loops(bench: Bench) -> list[Any]:
    """A loop in a loop; both read variables, and the inner one runs i times."""
    outer = [bench.variable(0, whole_numbers("float32", i)) for i in range(3)]
    inner = [bench.variable(1, whole_numbers("float32", 10 + i)) for i in range(3)]

    @tf.function
    def loop(n):
        def add(i, x):
            def multiply(j, y):
                return j + 1, tf.math.floormod(y * tf.add_n([v + 1.0 for v in inner]), 97.0)

            _, y = tf.while_loop(lambda j, _: j < i, multiply, (0, x + 1.0))
            return i + 1, y + tf.add_n([v + 1.0 for v in outer])

        i, x = tf.while_loop(lambda i, _: i < n, add, (0, tf.zeros([3])))
        return i, x, [v * x for v in outer + inner]

    return [value for n in (0, 1, 4) for value in bench.call(loop, tf.constant(n))]


@case
def loop_conditions(bench: Bench) -> list[Any]:
    """A condition that one server computes from what the other one has."""
    limits = [bench.variable(0, 40.0 + i) for i in range(3)]
    steps = [bench.variable(1, 3.0 + i) for i in range(3)]

    @tf.function
    def loop(x):
        def goes_on(x):
            with tf.device(bench.server(1)):
                return x < tf.add_n([v - 0.5 for v in limits])

        def body(x):
            return x + tf.add_n([v * 0.5 for v in steps])

        return tf.while_loop(goes_on, body, (x,))

    return [value for x in (0.0, 95.0, 500.0) for value in bench.call(loop, tf.constant(x))]


@case
def loop_gradients(bench: Bench) -> list[Any]:
    """Gradients of what a loop reads: the way back is a loop over stacks of what came in."""
    weights = [bench.variable(i, whole_numbers("float32", i, (3, 3)) / 128.0) for i in range(4)]

    @tf.function
    def step(n):
        with tf.GradientTape() as tape:

            def body(i, x):
                for w in weights:
                    x = tf.tanh(tf.matmul(x, w))
                return i + 1, x

            start = tf.ones([2, 3])
            _, x = tf.while_loop(lambda i, _: i < n, body, (0, start), maximum_iterations=10)
            loss = tf.reduce_sum(x * x)
        gradients = tape.gradient(loss, weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(gradient * 0.5)
        return loss, gradients

    on = bench.workers[:1]
    values = [value for n in (1, 4, 3) for value in bench.call(step, tf.constant(n), on=on)]
    return values + [w.numpy() for w in weights]


@case
def loops_and_branches(bench: Bench) -> list[Any]:
    """A loop in a branch that may not be taken, and a branch in each iteration."""
    left = [bench.variable(0, whole_numbers("float32", i)) for i in range(3)]
    right = [bench.variable(1, whole_numbers("float32", 10 + i)) for i in range(3)]
    seen = [bench.variable(i, tf.zeros([3])) for i in range(2)]

    @tf.function
    def run(flag, n):
        def body(i, x):
            seen[0].assign_add(x)
            more = tf.cond(
                i % 2 == 0,
                lambda: tf.add_n([v * 2.0 for v in left]),
                lambda: tf.add_n([v + 3.0 for v in right]),
            )
            return i + 1, x + more

        def loop():
            return tf.while_loop(lambda i, _: i < n, body, (0, tf.zeros([3])))[1]

        x = tf.cond(flag, loop, lambda: tf.add_n([v + 0.5 for v in right]))
        seen[1].assign_add(x)
        return x, [v - x for v in left]

    values = []
    for flag, n in ((True, 3), (False, 3), (True, 0), (True, 4)):
        values += bench.call(run, tf.constant(flag), tf.constant(n))
    return values + [v.numpy() for v in seen]


@case
def steps_in_a_loop(bench: Bench) -> list[Any]:
    """Several training steps in one call; each takes its batch from an iterator."""
    table = bench.variable(0, whole_numbers("float32", 1, (7, 4)) / 16.0)
    weights = [bench.variable(i, whole_numbers("float32", 10 + i, (4,)) / 16.0) for i in range(4)]
    coordinator = tf.distribute.coordinator.ClusterCoordinator(bench.strategy)

    @tf.function
    def train(iterator):
        total = 0.0
        for _ in tf.range(3):
            ids = next(iterator)
            with tf.GradientTape() as tape:
                rows = tf.gather(table, ids)
                loss = tf.reduce_sum(tf.add_n([rows * w for w in weights]))
            gradients = tape.gradient(loss, [table, *weights])
            # Small multiples of powers of two: sums are exact in any order.
            table.scatter_sub(tf.IndexedSlices(tf.sign(gradients[0].values), gradients[0].indices))
            for weight, gradient in zip(weights, gradients[1:], strict=True):
                weight.assign_sub(tf.sign(gradient) / 16.0)
            total += loss
        return total

    def dataset():
        return tf.data.Dataset.range(40).map(lambda i: tf.stack([i % 7, (3 * i) % 7])).repeat()

    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    losses = []
    with bench.counting():
        for _ in range(3):  # one at a time: the order of the steps matters
            losses.append(coordinator.schedule(train, args=(iterator,)))
            coordinator.join()
    return [*(loss.fetch() for loss in losses), table.numpy(), *(w.numpy() for w in weights)]
