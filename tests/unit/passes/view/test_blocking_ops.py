# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What may wait for another step is kept apart from what does not."""

import pytest
import tensorflow as tf

from tests.unit.passes.pass_testing import PS0, W0, sorted_groups, trace, use, v1
from tests.unit.passes.waiting_values import blocked, dequeue
from tf_fuse.explain import rewrite


def test_what_may_wait_for_another_step_is_kept_apart():
    assert blocked(dequeue) == [["a", "b"], ["x", "y"]]


def test_what_may_wait_inside_a_loop_is_kept_apart():
    # The dequeued value reaches the exit only by going round.
    def loop():
        queue = v1.placeholder(tf.resource, ())
        return v1.while_loop(
            lambda i, _: i < 3,
            lambda i, a: (i + 1, a + dequeue(queue)),
            [tf.constant(0), tf.zeros([2])],
        )[1]

    assert blocked(loop) == [["a", "b"], ["x", "y"]]


def test_what_may_wait_inside_a_function_is_kept_apart():
    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def waits(queue):
        return dequeue(queue)

    assert blocked(lambda: waits(v1.placeholder(tf.resource, ()))) == [["a", "b"], ["x", "y"]]


_WAITING = {
    "Unstage": lambda: tf.raw_ops.Unstage(dtypes=[tf.float32])[0],
    "StagePeek": lambda: tf.raw_ops.StagePeek(index=0, dtypes=[tf.float32])[0],
    "MapUnstage": lambda: tf.raw_ops.MapUnstage(key=1, indices=[0], dtypes=[tf.float32])[0],
    "OrderedMapPeek": lambda: tf.raw_ops.OrderedMapPeek(key=1, indices=[0], dtypes=[tf.float32])[0],
    "Batch": lambda: tf.raw_ops.Batch(
        in_tensors=[tf.zeros([2])],
        num_batch_threads=1,
        max_batch_size=2,
        batch_timeout_micros=1,
        grad_timeout_micros=1,
    ).batched_tensors[0],
    "a stateless call": lambda: tf.raw_ops.PartitionedCall(
        args=[], Tout=[tf.float32], f=_no_argument.get_concrete_function()
    )[0],
    "a stateful operation that is not known": lambda: tf.fill(
        [2], tf.cast(tf.strings.length(tf.raw_ops.RecordInput(file_pattern="x")), tf.float32)
    ),
}


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _no_argument():
    return tf.zeros([2])


@pytest.mark.parametrize("op", _WAITING)
def test_operations_that_may_wait(op):
    assert blocked(lambda: tf.ensure_shape(_WAITING[op](), [2])) == [["a", "b"], ["x", "y"]]


_ENDING = {
    "matmul of a batch": lambda: tf.linalg.matmul(tf.zeros([2, 1, 3]), tf.zeros([2, 3, 1]))[
        :, 0, 0
    ],
    "batch norm": lambda: tf.nn.batch_normalization(tf.zeros([2]), 0.0, 1.0, None, None, 1e-3),
    "variable": lambda: tf.raw_ops.ReadVariableOp(
        resource=tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2]), dtype=tf.float32
    ),
    "table": lambda: tf.raw_ops.LookupTableFindV2(
        table_handle=tf.raw_ops.HashTableV2(key_dtype=tf.int64, value_dtype=tf.float32),
        keys=tf.constant([1, 2], tf.int64),
        default_value=0.0,
    ),
}


@pytest.mark.parametrize("op", _ENDING)
def test_operations_that_end_by_themselves(op):
    assert blocked(lambda: tf.ensure_shape(_ENDING[op](), [2])) == [["a", "b", "x", "y"]]


def test_a_branch_that_waits_is_no_wait_if_it_is_not_taken():
    # m waits for the queue only where p is true; what fills the queue may use it.
    def build():
        with tf.device(PS0):
            x, p = v1.placeholder(tf.float32, [2]), v1.placeholder(tf.bool, ())
            taken = dequeue()
            branches = tf.raw_ops.Switch(data=x, pred=p)
            merged = tf.raw_ops.Merge(
                inputs=[branches.output_false, tf.add_n([branches.output_true, taken])]
            ).output
            m = [tf.identity(merged, name=name) for name in ("m", "n")]
            z = [tf.identity(tf.add_n([taken, x]), name=name) for name in ("y", "z")]
        use(W0, "sum", *m, *z)

    assert sorted_groups(rewrite(trace(build))) == [["m", "n"], ["y", "z"]]


def test_a_loop_that_waits_is_no_wait_if_it_is_not_gone_round():
    def build():
        with tf.device(PS0):
            queue = v1.placeholder(tf.resource, ())
            taken = dequeue(queue)
            _, out = v1.while_loop(
                lambda i, _: i < v1.placeholder(tf.int32, ()),
                lambda i, a: (i + 1, a + dequeue(queue)),
                [tf.constant(0), tf.ensure_shape(taken, [2])],
            )
            m = [tf.identity(out, name=name) for name in ("m", "n")]
            z = [tf.identity(taken, name=name) for name in ("y", "z")]
        use(W0, "sum", *m, *z)

    assert sorted_groups(rewrite(trace(build))) == [["m", "n"], ["y", "z"]]


def test_an_op_that_waits_for_nothing_keeps_nothing_apart():
    assert blocked(lambda: tf.random.uniform([2])) == [["a", "b", "x", "y"]]


def test_what_waits_for_different_queues_is_kept_apart():
    def build():
        values = []
        with tf.device(PS0):
            taken = [dequeue() for _ in range(2)]
            values += [tf.identity(taken[0], "a0"), tf.identity(taken[1], "a1")]
            values += [tf.identity(taken[0], "b0"), tf.identity(taken[1], "b1")]
            values += [tf.add_n(taken, "c0"), tf.add_n(taken, "c1")]
        use(W0, "sum", *values)

    assert sorted_groups(rewrite(trace(build))) == [["a0", "b0"], ["a1", "b1"], ["c0", "c1"]]
