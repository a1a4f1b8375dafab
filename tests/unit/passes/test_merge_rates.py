# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which reads of rates become one, with the arithmetic on them, and which nodes stay."""

import collections

import pytest
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from tests.unit.passes.pass_testing import PS0, PS1, W0, nodes_of, trace
from tf_fuse.explain import rewrite
from tf_fuse.fuse_update.rewrite.shared_reads import MARK

_raw = tf.raw_ops


def _rate(name="rate", dtype=tf.float32):
    with tf.device(PS0):
        return _raw.VarHandleOp(dtype=dtype, shape=[], shared_name=name, name=name)


def _read(handle, is_marked=True, dtype=tf.float32):
    with tf.device(PS0):
        value = _raw.ReadVariableOp(resource=handle, dtype=dtype)
    if is_marked:
        value.op._set_attr(MARK, attr_value_pb2.AttrValue(b=True))
    return value


def _used(on, name, value):
    with tf.device(on):
        return _raw.ZerosLike(x=tf.identity(value, name=f"{name}_in"), name=name)


def _fed(on, count):
    with tf.device(on):
        return [tf.compat.v1.placeholder(tf.float32, [], name=f"fed_{i}") for i in range(count)]


def _counts(build, on):
    """How many nodes of each type a device has."""
    (partition,) = [rewrite(trace(build)).before[on]]
    return collections.Counter(node.op for node in partition.node)


def _biases(handle, on=PS0, is_marked=True, tables=3):
    """What Adam computes for each table."""
    for number in range(tables):
        value = _read(handle, is_marked)
        with tf.device(on):
            table = _raw.VarHandleOp(dtype=tf.float32, shape=[2], shared_name=f"table_{number}")
            with tf.compat.v1.colocate_with(table):
                bias = tf.sqrt(1.0 - tf.pow(0.9, value + 1.0))
            _raw.AssignSubVariableOp(resource=table, value=tf.fill([2], bias))


def test_reads_and_what_is_computed_from_them():
    counts = _counts(lambda: _biases(_rate()), PS0)
    assert {op: counts[op] for op in ("ReadVariableOp", "AddV2", "Pow", "Sub", "Sqrt")} == {
        "ReadVariableOp": 1, "AddV2": 1, "Pow": 1, "Sub": 1, "Sqrt": 1,
    }  # fmt: skip
    assert counts["AssignSubVariableOp"] == 3


def test_another_server_gets_a_rate_once():
    counts = _counts(lambda: _biases(_rate(), PS1), PS1)
    assert (counts["_Recv"], counts["Pow"], counts["Sqrt"]) == (1, 1, 1)


def test_without_marks_nothing_changes():
    counts = _counts(lambda: _biases(_rate(), is_marked=False), PS0)
    assert (counts["ReadVariableOp"], counts["Pow"], counts["Sqrt"]) == (3, 3, 3)


def test_reads_of_two_variables_stay_two():
    def build():
        for name in ("a", "b"):
            _used(PS0, f"of_{name}", tf.square(_read(_rate(name))))

    assert _counts(build, PS0)["ReadVariableOp"] == 2


def test_a_read_behind_an_assignment_stays():
    def build():
        handle = _rate()
        before = _read(handle)
        with tf.device(PS0):
            assign = _raw.AssignVariableOp(resource=handle, value=before * 0.5)
        with tf.control_dependencies([assign]):
            after = [_read(handle), _read(handle)]
        for number, value in enumerate([before, *after]):
            _used(PS0, f"of_{number}", value)

    # (Both reads behind the assignment wait for the same: they become one.)
    assert _counts(build, PS0)["ReadVariableOp"] == 2


def test_what_waits_for_a_read_waits_for_the_one_that_stays():
    def build():
        handle = _rate()
        reads = [_read(handle) for _ in range(3)]
        with tf.device(PS0):
            value = tf.constant(1.0)
        with tf.control_dependencies(reads), tf.device(PS0):
            _raw.AssignVariableOp(resource=handle, value=value, name="assign")
        _used(PS0, "used", tf.stack(reads))

    partition = rewrite(trace(build)).before[PS0]
    (read,) = nodes_of(partition, "ReadVariableOp")
    (assign,) = nodes_of(partition, "AssignVariableOp")
    assert [one for one in assign.input if one.startswith("^")] == [f"^{read.name}"]
    (stack,) = nodes_of(partition, "Pack")
    assert list(stack.input) == [read.name] * 3


@pytest.mark.parametrize("by", ["itself", "identity", "another device"])
@pytest.mark.parametrize(("added", "squares"), [(2, 1), (3, 2)])
def test_what_a_sum_may_begin_with_stays(added, squares, by):
    """AddN begins with the first input that nothing else reads: merging would change its order."""

    def build():
        handle = _rate()
        fed = _fed(W0, 4)
        for number in range(2):
            value = _read(handle)
            with tf.device(PS0):
                square = tf.square(value)
                square = tf.identity(square) if by == "identity" else square
            with tf.device(W0 if by == "another device" else PS0):
                others = [tf.exp(fed[2 * number + i]) for i in range(added - 1)]
                total = tf.add_n([square, *others])
            _used(PS0, f"used_{number}", total)

    found = nodes_of(rewrite(trace(build)).before[PS0], "Square")
    assert len(found) == squares
    # (TensorFlow would merge them later.)
    assert len({node.attr["_tf_fuse_apart"].s for node in found}) == squares


def test_many_that_a_sum_may_begin_with():
    """One for each sum, and one for all that are not added up."""

    def build():
        handle = _rate()
        fed = _fed(PS0, 6)
        for number in range(6):
            value = _read(handle)
            with tf.device(PS0):
                square = tf.square(value)
                if number in (0, 3):
                    square = tf.add_n([square, tf.exp(fed[number]), tf.sin(fed[number])])
            _used(PS0, f"used_{number}", square)

    found = nodes_of(rewrite(trace(build)).before[PS0], "Square")
    assert len(found) == len({node.attr["_tf_fuse_apart"].s for node in found}) == 3


def test_what_is_computed_elsewhere_from_what_was_merged():
    def build():
        handle = _rate()
        for number in range(2):
            with tf.device(PS0):
                square = tf.square(_read(handle))
            with tf.device(W0):
                _used(W0, f"used_{number}", tf.exp(square))

    assert _counts(build, W0)["Exp"] == 1


@pytest.mark.parametrize("op", ["InplaceAdd", "Square"])
def test_what_is_written_over_stays(op):
    def build():
        handle = _rate()
        for number in range(2):
            value = _read(handle)
            with tf.device(PS0):
                rows = tf.fill([2], value)
                if op == "InplaceAdd":
                    done = _raw.InplaceAdd(x=rows, i=[number], v=[2.0])
                else:
                    done = tf.square(rows)
            _used(PS0, f"used_{number}", done)

    assert _counts(build, PS0)["Fill"] == (2 if op == "InplaceAdd" else 1)


def test_nodes_of_other_devices_stay():
    def build():
        value = _read(_rate())
        _used(PS0, "there", value)
        with tf.device(W0):
            fed = tf.compat.v1.placeholder(tf.float32, [], name="fed")
            for number in range(2):
                _used(W0, f"of_{number}", tf.square(fed))

    assert _counts(build, W0)["Square"] == 2


@pytest.mark.parametrize("kind", ["random", "long", "type"])
def test_what_is_not_the_same_stays(kind):
    def build():
        value = _read(_rate())
        for number in range(2):
            with tf.device(PS0):
                if kind == "random":
                    other = tf.random.uniform([2])
                elif kind == "long":
                    other = tf.constant([float(i) for i in range(100)])
                else:
                    other = tf.cast(value, [tf.float64, tf.int32][number])
                _used(PS0, f"of_{number}", tf.square(other))
        _used(PS0, "used", value)

    counts = _counts(build, PS0)
    assert counts["Square"] == 2


def test_loops_stay():
    def build(is_marked):
        value = _read(_rate(), is_marked)
        for number in range(2):
            with tf.device(PS0):
                done = tf.compat.v1.while_loop(
                    lambda i: i < 3.0, lambda i: i + 1.0, [value], name=f"loop_{number}"
                )
            _used(PS0, f"of_{number}", done)

    marked, plain = (_counts(lambda on=on: build(on), PS0) for on in (True, False))
    for op in ("Enter", "Merge", "Switch", "NextIteration", "Exit"):
        assert marked[op] == plain[op] > 0
