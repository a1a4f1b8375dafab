# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows that are stored or returned keep their bits; updates share what rounding loses."""

import pytest
import tensorflow as tf

from tests.unit.passes.compress import compression_testing as graphs
from tests.unit.passes.pass_testing import PS0, PS1, W0

raw = tf.raw_ops
_ROUNDED = "bfloat16 by Cast"


def _sent_rows(build):
    """How the rows of a marked table travel; `build` gets them, the table and their ids."""

    def whole():
        handle, ids = graphs.table(shape=(3, 2)), graphs.fed("ids")
        build(graphs.rows(handle, ids), handle, ids)

    return graphs.sent(whole)["rows"]


def _worker(function, value):
    with tf.device(W0):
        return function(value)


_STORES = {
    "ResourceScatterUpdate": lambda handle, ids, value: raw.ResourceScatterUpdate(
        resource=handle, indices=ids, updates=value
    ),
    "ResourceScatterNdUpdate": lambda handle, ids, value: raw.ResourceScatterNdUpdate(
        ref=handle, indices=tf.expand_dims(ids, 1), updates=value
    ),
    "AssignVariableOp": lambda handle, ids, value: raw.AssignVariableOp(
        resource=handle, value=value
    ),
    "ResourceStridedSliceAssign": lambda handle, ids, value: raw.ResourceStridedSliceAssign(
        ref=handle, begin=[0], end=[3], strides=[1], value=value
    ),
}


@pytest.mark.parametrize("store", list(_STORES))
@pytest.mark.parametrize(
    "change",
    [tf.identity, lambda rows: tf.nn.l2_normalize(rows, 1), lambda rows: tf.clip_by_norm(rows, 1)],
)
def test_rows_that_are_stored_are_left(store, change):
    def build(rows, handle, ids):
        value = _worker(change, rows)
        with tf.device(PS0):
            _STORES[store](handle, ids, value)

    assert _sent_rows(build) == "float32"


@pytest.mark.parametrize("mark", ["", "float32"])
def test_rows_that_a_worker_copies_to_any_table_are_left(mark):
    def build(rows, handle, ids):
        value = _worker(lambda rows: tf.reverse(tf.concat([rows, rows], 0), [0]), rows)
        with tf.device(PS1):
            other = graphs.table(mark, on=PS1, name="other")
            raw.ResourceScatterUpdate(
                resource=other, indices=tf.concat([ids, ids], 0), updates=value
            )

    assert _sent_rows(build) == "float32"


def _gradient_of(rows):
    loss = tf.reduce_sum(tf.square(rows))
    return loss, rows * loss


@pytest.mark.parametrize("op", [raw.ResourceScatterAdd, raw.ResourceScatterSub])
def test_rows_whose_gradient_is_added_are_rounded(op):
    def build(rows, handle, ids):
        _, gradient = _worker(_gradient_of, rows)
        graphs.scatter(op, handle, ids, gradient)

    assert _sent_rows(build) == _ROUNDED


def test_rows_are_rounded_if_the_server_computes_what_it_stores():
    def build(rows, handle, ids):
        _, gradient = _worker(_gradient_of, rows)
        with tf.device(PS0):
            old = raw.ResourceGather(resource=handle, indices=ids, dtype=tf.float32)
            graphs.scatter(raw.ResourceScatterUpdate, handle, ids, old - 0.1 * gradient)

    assert _sent_rows(build) == _ROUNDED


def test_rows_are_rounded_beside_assignments_that_are_updates():
    def build(rows, handle, ids):
        _, gradient = _worker(_gradient_of, rows)
        with tf.device(PS0):
            weight = graphs.table("bfloat16 job/1", name="weight", shape=(3, 2))
            old = raw.ReadVariableOp(resource=weight, dtype=tf.float32)
        new = _worker(lambda gradient: old - 0.1 * gradient, gradient)
        with tf.device(PS0):
            raw.AssignVariableOp(resource=weight, value=new)

    assert _sent_rows(build) == _ROUNDED


def test_rows_are_rounded_beside_metrics_and_a_loss_that_is_kept():
    def build(rows, handle, ids):
        loss, gradient = _worker(_gradient_of, rows)
        graphs.assign(raw.AssignVariableOp, gradient, mark="", name="average", shape=(3, 2))
        graphs.assign(raw.AssignVariableOp, loss, mark="bfloat16 job/1", name="loss", shape=())

    assert _sent_rows(build) == _ROUNDED


def test_rows_are_rounded_beside_others_that_are_stored():
    def build():
        ids = graphs.fed("ids")
        handles = [graphs.table(f"bfloat16 job/{i}", name=f"table_{i}") for i in range(2)]
        stored, used = (graphs.rows(handle, ids) for handle in handles)
        value = _worker(lambda rows: tf.nn.l2_normalize(rows, 1), stored)
        graphs.scatter(raw.ResourceScatterUpdate, handles[0], ids, value)
        _, gradient = _worker(lambda rows: _gradient_of(rows + stored), used)
        graphs.scatter(raw.ResourceScatterSub, handles[1], ids, gradient)

    sent = graphs.sent(build)
    assert (sent["rows"], sent["rows_1"]) == ("float32", _ROUNDED)


_MOVES = {
    "gather": lambda rows: tf.gather(rows, [2, 0, 0]),
    "gather_nd": lambda rows: tf.gather_nd(rows, [[2, 0], [0, 1]]),
    "stitch": lambda rows: tf.dynamic_stitch([[0, 2, 1], [3]], [rows, [[0.0, 0.0]]]),
    "parallel_stitch": lambda rows: raw.ParallelDynamicStitch(
        indices=[[0, 2, 1], [3]], data=[[[0.0, 0.0]] * 3, [rows[0]]]
    ),
    "partition": lambda rows: tf.dynamic_partition(rows, [0, 1, 0], 2)[1],
    "concat": lambda rows: tf.concat([[[1.0, 1.0]], rows], 0),
    "stack": lambda rows: tf.stack([tf.zeros([3, 2]), rows]),
    "unstack": lambda rows: tf.unstack(rows)[1],
    "split": lambda rows: tf.split(rows, 3)[2],
    "slice": lambda rows: rows[1:, ::-1],
    "transpose": tf.transpose,
    "ensure_shape": lambda rows: tf.ensure_shape(rows, [None, 2]),
    "select": lambda rows: tf.where([[True], [False], [True]], rows, 0.0),
    "pad": lambda rows: tf.pad(rows, [[0, 1], [0, 0]]),
    "tile": lambda rows: tf.tile(rows, [2, 1]),
}


@pytest.mark.parametrize("name", list(_MOVES))
def test_rows_that_are_moved_and_returned_are_left(name):
    def build(rows, handle, ids):
        graphs.used(rows)
        graphs.returned(_worker(_MOVES[name], rows))

    assert _sent_rows(build) == "float32"


def test_what_is_computed_from_rows_may_be_returned():
    def build(rows, handle, ids):
        graphs.returned(_worker(tf.square, rows))

    assert _sent_rows(build) == _ROUNDED


def test_a_value_that_a_server_moves_and_assigns_is_left():
    def build():
        gradient = graphs.gradient()
        with tf.device(PS0):
            raw.AssignVariableOp(resource=graphs.table(shape=(2, 9)), value=tf.transpose(gradient))

    assert graphs.sent(build)["gradient"] == "float32"


def _keys(build):
    result = graphs.rewritten(build)
    nodes = (node for node in result.before[W0].node if node.op == "TfFuse>RoundWithFeedback")
    return {node.input[0]: node.attr["key"].s.decode() for node in nodes}


def _update(name, handle, op, rate=None):
    with tf.device(W0):
        value = tf.math.square(graphs.fed(f"given_{name}", (9, 2), tf.float32), name=name)
    with tf.device(PS0):
        op(resource=handle, value=value if rate is None else raw.Mul(x=value, y=rate))


def _copies(number, mark=graphs.MARK):
    handle = graphs.table(mark)
    for copy in range(number):
        _update(f"step_{copy}/a", handle, raw.AssignSubVariableOp)
        _update(f"step_{copy}/b", handle, raw.AssignSubVariableOp, rate=0.1)
        _update(f"step_{copy}/c", handle, raw.AssignSubVariableOp, rate=0.5)
        _update(f"step_{copy}/d", handle, raw.AssignAddVariableOp)


def test_the_copies_of_a_step_share_what_each_form_of_a_gradient_loses():
    keys = _keys(lambda: _copies(3))
    forms = [{keys[f"step_{copy}/{form}"] for copy in range(3)} for form in "abcd"]
    assert [len(form) for form in forms] == [1] * 4
    assert len(set.union(*forms)) == 4


def test_keys_say_which_variable_and_function_they_are_of():
    one, other = (
        _keys(lambda mark=mark: _copies(1, mark)) for mark in ("bfloat16 j/0/f", "bfloat16 j/0/g")
    )
    assert all(key.startswith("j/0/f#") for key in one.values())
    assert not set(one.values()) & set(other.values())
