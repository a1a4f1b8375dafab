# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The operation that does an update: its values, and that it is under one lock."""

import os
import threading

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tests.unit.kernels.elementwise_programs import (
    assign,
    call,
    program_of,
    read,
    step_of,
    variable_of,
)


def test_reads_before_between_and_after_assignments():
    v = variable_of(1.0, 2.0)
    program = program_of(
        2,
        [
            read(),  # 1
            assign(0, kind="Add"),  # 2
            read(),  # 3
            assign(3, kind="Add"),  # 4: twice what it was
            assign(1, kind="Sub"),  # 5: less the first value
            read(),  # 6
        ],
        variables=[tf.float32],
        inputs=[tf.float32],
        results=[1, 3, 6, 0],
    )
    results = call(program, [v], [tf.constant([10.0, 20.0])], [tf.float32] * 4)
    assert [result.numpy().tolist() for result in results] == [
        [1.0, 2.0], [11.0, 22.0], [21.0, 42.0], [10.0, 20.0],
    ]  # fmt: skip
    assert v.numpy().tolist() == [21.0, 42.0]


def test_variables_that_change_places():
    a, b = variable_of(1.0, 2.0), variable_of(3.0, 4.0)
    program = program_of(
        2, [read(0), read(1), assign(1, 0), assign(0, 1)], variables=[tf.float32] * 2
    )
    call(program, [a, b])
    assert (a.numpy().tolist(), b.numpy().tolist()) == ([3.0, 4.0], [1.0, 2.0])


@pytest.mark.parametrize("size", [1, 70001])
def test_who_has_read_the_value_keeps_it(size):
    v, w = tf.Variable(tf.ones([size])), tf.Variable(tf.zeros([size]))
    w.assign(v)  # (They share memory.)
    before = v.read_value()
    program = program_of(
        size, [read(0), assign(0, 0, "Add"), assign(0, 1, "Add")], variables=[tf.float32] * 2
    )
    for _ in range(2):
        call(program, [v, w])
    assert set(before.numpy()) == {1.0}
    assert set(v.numpy()) == {4.0}
    assert set(w.numpy()) == {4.0}


def test_results_are_no_variables():
    v = variable_of(1.0, 2.0)
    program = program_of(2, [read()], variables=[tf.float32], results=[0, 0])
    first, second = call(program, [v], [], [tf.float32] * 2)
    v.assign_add([1.0, 1.0])
    assert first.numpy().tolist() == second.numpy().tolist() == [1.0, 2.0]


def test_no_elements():
    v = tf.Variable(tf.zeros([0]))
    program = program_of(0, [read(), assign(0, kind="Add")], variables=[tf.float32], results=[0])
    (result,) = call(program, [v], [], [tf.float32])
    assert result.shape == [0]


def test_values_that_live_long_have_registers_of_their_own():
    count = 40
    steps = [step_of("AddV2", (0, i), dtype=tf.float32) for i in range(count)]
    steps += [step_of("AddV2", (i, count + 1 - i + 1), dtype=tf.float32) for i in range(2, count)]
    program = program_of(5, steps, inputs=[tf.float32], results=range(1, count + 1))
    results = call(program, (), [tf.ones([5])], [tf.float32] * count)
    assert [float(result[4]) for result in results] == [i + 2.0 for i in range(count)]


def test_steps_on_many_threads_are_one_after_the_other():
    """Each leaves w as the sum of all that m has been: an update in between would be missed."""
    threads, steps, size = 8, 25, 20000
    m = tf.Variable(tf.zeros([size], tf.int64))
    w = tf.Variable(tf.zeros([size], tf.int64))
    program = program_of(
        size,
        [assign(0, 0, "Add"), read(0, tf.int64), assign(2, 1, "Add"), read(1, tf.int64)],
        variables=[tf.int64] * 2,
        inputs=[tf.int64],
        results=[2, 4],
    )
    one, torn, begin = tf.constant(1, tf.int64), [], threading.Barrier(threads)

    def work():
        begin.wait()
        for _ in range(steps):
            seen = [t.numpy() for t in call(program, [m, w], [one], [tf.int64] * 2)]
            n = int(seen[0][0])
            if set(seen[0]) != {n} or set(seen[1]) != {n * (n + 1) // 2}:
                torn.append(n)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    total = threads * steps
    assert torn == []
    assert set(m.numpy()) == {total}
    assert set(w.numpy()) == {total * (total + 1) // 2}
