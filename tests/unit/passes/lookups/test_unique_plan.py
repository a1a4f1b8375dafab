# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which ids travel once each: those of lookups, and of gradients that are only added up."""

import re
import types

import pytest
import tensorflow as tf

from tests.unit.kernels import elementwise_programs as elementwise
from tests.unit.passes.pass_testing import PS0, PS1, W0, device, nodes_of, trace
from tf_fuse.explain import rewrite

_OURS = ["TfFuse>PlaceRows", "TfFuse>SumRows", "TfFuse>UniqueIds"]
_raw = tf.raw_ops


def _table(on=PS0, name="table", dtype=tf.float32):
    with tf.device(on):
        return _raw.VarHandleOp(dtype=dtype, shape=[9, 2], shared_name=name, name=name)


def _input(name, shape=(3,), dtype=tf.int32, on=W0):
    with tf.device(on):
        return tf.compat.v1.placeholder(dtype, shape, name=name)


def _rows(handle, ids, on=PS0, dtype=tf.float32, name="rows"):
    with tf.device(on):
        return _raw.ResourceGather(resource=handle, indices=ids, dtype=dtype, name=name)


def _used(value, on=W0, name="used"):
    with tf.device(on):
        return tf.identity(tf.raw_ops.ZerosLike(x=value), name=name)


def _scatter(handle, ids, value, op="Sub", on=PS0, name="scatter"):
    with tf.device(on):
        getattr(_raw, f"ResourceScatter{op}")(
            resource=handle, indices=ids, updates=value, name=name
        )


def _name(node):
    """Without the number that makes it the only one."""
    return re.sub(r"/_\d+(?=:|$)", "", node)


def _found(build, on=W0, **options):
    """How many of our operations there are on a device, and which of its outputs are sent."""
    result = rewrite(trace(build), fuse_lookups_unique=True, **options)
    partition = result.before[on]
    count = {op: len(nodes_of(partition, op)) for op in _OURS}
    sent = {_name(send.input[0]) for send in nodes_of(partition, "_Send")}
    others = [graph for place, graph in result.before.items() if place != on]
    assert not any(nodes_of(graph, op) for graph in others for op in _OURS)
    return [count[op] for op in _OURS], sorted(sent)


_NONE = [0, 0, 0]


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("shape", [(3,), (None,), (2, 3), None])
def test_rows_of_a_lookup(dtype, shape):
    def build():
        _used(_rows(_table(), _input("ids", shape, dtype)))

    assert _found(build) == ([1, 0, 1], ["ids/unique"])


def test_where_the_rows_go():
    def build():
        _used(_rows(_table(), _input("ids")))

    after = rewrite(trace(build), fuse_lookups_unique=True).before[W0]
    (placed,) = nodes_of(after, "TfFuse>PlaceRows")
    (recv,) = nodes_of(after, "_Recv")
    assert [_name(one) for one in placed.input] == ["rows", "ids/unique:1", "ids"]
    assert placed.input[0] == recv.name
    assert [n.input[0] for n in after.node if n.op == "ZerosLike"] == [placed.name]
    assert placed.device == W0


def test_it_is_off_unless_asked_for():
    def build():
        _used(_rows(_table(), _input("ids")))

    operations = {node.op for graph in rewrite(trace(build)).before.values() for node in graph.node}
    assert not operations & set(_OURS)


def test_sessions_are_left():
    def build():
        _used(_rows(_table(), _input("ids")))

    assert _found(build, session=True)[0] == _NONE


def test_one_list_for_all_tables_and_servers_that_have_it():
    def build():
        ids = _input("ids")
        for number, on in enumerate([PS0, PS0, PS1]):
            handle = _table(on, f"table_{number}")
            rows = _rows(handle, ids, on, name=f"rows_{number}")
            _scatter(handle, ids, _used(rows, name=f"used_{number}"), on=on, name=f"s_{number}")

    count, sent = _found(build)
    assert count == [3, 3, 1]
    assert sent == ["ids/unique", "used_0/sums", "used_1/sums", "used_2/sums"]


def test_ids_in_another_shape_are_the_same_ids():
    def build():
        ids = _input("ids", (2, 3))
        rows = _rows(_table(), ids)
        with tf.device(W0):
            flat = tf.reshape(ids, [-1], name="flat")
            gradient = tf.reshape(_used(rows), [-1, 2], name="gradient")
        _scatter(_table(name="other"), flat, gradient)

    assert _found(build) == ([1, 1, 1], ["gradient/sums", "ids/unique"])


@pytest.mark.parametrize("kind", ["scalar", "unique", "other_task", "same_task", "gpu"])
def test_ids_that_are_left(kind):
    def build():
        if kind == "unique":
            with tf.device(W0):
                ids = tf.reshape(tf.unique(_input("ids"))[0], [-1], name="once")
        elif kind == "same_task":
            ids = _input("ids", on=PS0)
        elif kind == "gpu":
            ids = _input("ids", on=device("worker", 0, "GPU"))
        else:
            ids = _input("ids", () if kind == "scalar" else (3,))
        rows = _rows(_table(), ids)
        _used(rows, on=PS1 if kind == "other_task" else W0)

    assert _found(build)[0] == _NONE


def test_rows_that_their_server_hands_on():
    def build():
        rows = _rows(_table(), _input("ids"))
        with tf.device(PS0):
            rows = tf.cast(tf.identity(rows), tf.float64)
        _used(rows)

    assert _found(build) == ([1, 0, 1], ["ids/unique"])


@pytest.mark.parametrize("on", [PS0, PS1])
def test_rows_that_another_task_uses_are_left(on):
    def build():
        rows = _rows(_table(), _input("ids"))
        _used(rows)
        _used(rows, on=on, name="there")

    assert _found(build) == (_NONE, ["ids"])


def test_rows_that_their_server_sums_are_left():
    def build():
        rows = _rows(_table(), _input("ids"))
        with tf.device(PS0):
            total = tf.reduce_sum(rows)
        _used(total)

    assert _found(build) == (_NONE, ["ids"])


@pytest.mark.parametrize("op", ["Add", "Sub"])
def test_gradients_that_are_added_to_rows(op):
    def build():
        _scatter(_table(), _input("ids"), _input("gradient", (3, 2), tf.float32), op)

    assert _found(build) == ([0, 1, 1], ["gradient/sums", "ids/unique"])


@pytest.mark.parametrize("op", ["Update", "Min", "Max", "Mul", "Div"])
def test_what_is_done_with_rows_but_adding_is_left(op):
    def build():
        _scatter(_table(), _input("ids"), _input("gradient", (3, 2), tf.float32), op)

    assert _found(build) == (_NONE, ["gradient", "ids"])


@pytest.mark.parametrize(
    ("scale", "adds"),
    [
        (lambda g: g * 0.1, True),
        (lambda g: 0.1 * g, True),
        (lambda g: -g / 3.0, True),
        (lambda g: tf.identity(g), True),
        (lambda g: g * g, False),
        (lambda g: tf.square(g), False),
        (lambda g: 0.1 / g, False),
        (lambda g: g * tf.constant([[1.0], [2.0], [3.0]]), False),
        (lambda g: tf.cast(g, tf.bfloat16), False),
        (lambda g: tf.sign(g), False),
    ],
)
def test_what_is_computed_before_the_sum(scale, adds):
    def build():
        gradient = _input("gradient", (3, 2), tf.float32)
        with tf.device(PS0):
            value = scale(gradient)
        _scatter(_table(dtype=value.dtype), _input("ids"), value)

    count, sent = _found(build)
    assert (count, sent) == (
        ([0, 1, 1], ["gradient/sums", "ids/unique"]) if adds else (_NONE, ["gradient", "ids"])
    )


def test_one_use_that_squares_is_enough_to_leave_a_gradient():
    def build():
        ids, gradient = _input("ids"), _input("gradient", (3, 2), tf.float32)
        _scatter(_table(), ids, gradient)
        with tf.device(PS0):
            squared = tf.square(gradient)
        _scatter(_table(name="slot"), ids, squared, "Add", name="of_slot")

    assert _found(build) == (_NONE, ["gradient", "ids"])


def test_a_gradient_that_also_goes_elsewhere():
    def build():
        ids, gradient = _input("ids"), _input("gradient", (3, 2), tf.float32)
        _scatter(_table(), ids, gradient)
        _used(gradient)  # (As a norm of it.)
        _used(gradient, on=PS1, name="there")

    assert _found(build) == ([0, 1, 1], ["gradient", "gradient/sums", "ids/unique"])


def _summed(gradient, ids, on=PS0):
    with tf.device(on):
        return tf.math.unsorted_segment_sum(gradient, ids, 9)


def test_gradients_that_become_dense():
    def build():
        gradient = _input("gradient", (3, 2), tf.float32)
        _used(_summed(gradient, _input("ids")), on=PS0)

    assert _found(build) == ([0, 1, 1], ["gradient/sums", "ids/unique"])


@pytest.mark.parametrize("op", ["", "Square"])
def test_gradients_that_an_update_of_a_whole_table_sums(op):
    program = elementwise.program_of(
        18, [elementwise.assign(0, kind="Add")], variables=[tf.float32],
        inputs=[tf.float32, tf.float32], rows=9, indices=[tf.int32], sums=[(1, 0, op)],
    )  # fmt: skip

    def build():
        gradient, ids = _input("gradient", (3, 2), tf.float32), _input("ids")
        with tf.device(PS0):
            table = types.SimpleNamespace(handle=_table())
            elementwise.call(program, [table], [tf.constant(1.0), gradient, ids])

    assert _found(build) == (
        (_NONE, ["gradient", "ids"]) if op else ([0, 1, 1], ["gradient/sums", "ids/unique"])
    )


@pytest.mark.parametrize("numbers_are_used", [False, True])
def test_gradients_that_their_server_adds_up_by_unique(numbers_are_used):
    def build():
        ids, gradient = _input("ids"), _input("gradient", (3, 2), tf.float32)
        with tf.device(PS0):
            once, places = tf.unique(ids)
            summed = tf.math.unsorted_segment_sum(gradient, places, tf.size(once))
            if numbers_are_used:
                tf.identity(places)
        _scatter(_table(), once, summed)

    assert _found(build) == (
        (_NONE, ["gradient", "ids"])
        if numbers_are_used
        else ([0, 1, 1], ["gradient/sums", "ids/unique"])
    )


def test_two_gradients_by_one_unique():
    def build(squares):
        ids = _input("ids")
        with tf.device(PS0):
            once, places = tf.unique(ids)
        for number in range(2):
            gradient = _input(f"gradient_{number}", (3, 2), tf.float32)
            with tf.device(PS0):
                value = tf.square(gradient) if squares and number else gradient
                summed = tf.math.unsorted_segment_sum(value, places, tf.size(once))
            _scatter(_table(name=f"t{number}"), once, summed, name=f"s{number}")

    assert _found(lambda: build(False)) == (
        [0, 2, 1], ["gradient_0/sums", "gradient_1/sums", "ids/unique"],
    )  # fmt: skip
    assert _found(lambda: build(True)) == (_NONE, ["gradient_0", "gradient_1", "ids"])


def test_gradients_by_other_ids_than_they_came_with():
    def build():
        gradient = _input("gradient", (3, 2), tf.float32)
        _scatter(_table(), _input("ids"), gradient)
        _scatter(_table(name="other"), _input("others"), gradient, name="of_others")

    assert _found(build) == (_NONE, ["gradient", "ids", "others"])


@pytest.mark.parametrize("shape", [(), None])
def test_what_may_be_one_number_for_all_rows_is_left(shape):
    def build():
        _scatter(_table(), _input("ids"), _input("gradient", shape, tf.float32))

    assert _found(build) == (_NONE, ["gradient", "ids"])


def test_operations_of_many_tables_are_few():
    def build(tables):
        batch = _input("batch", (3, tables))
        handles = [_table(name=f"table_{number}") for number in range(tables)]
        with tf.device(W0):
            ids = tf.unstack(batch, axis=1)
        rows = [_rows(handle, of_table) for handle, of_table in zip(handles, ids, strict=True)]
        with tf.device(W0):
            gradients = tf.split(tf.square(tf.concat(rows, axis=1)), tables, axis=1)
        for handle, of_table, gradient in zip(handles, ids, gradients, strict=True):
            _scatter(handle, of_table, gradient)

    counts = set()
    for tables in (10, 100):
        graph = trace(lambda tables=tables: build(tables))
        result = rewrite(graph, fuse_lookups_unique=True, fuse_operations=True)
        grouped = [dict(g.operations) for g in result.report.operation_groups if g.device == W0]
        found = {op: sum(one.get(op, 0) for one in grouped) for op in _OURS}
        assert found == dict.fromkeys(_OURS, tables)
        counts.add(len([n for n in result.after[W0].node if n.op != "Const"]))
    assert len(counts) == 1
