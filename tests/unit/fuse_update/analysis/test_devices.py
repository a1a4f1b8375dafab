# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where updates on servers are, which of them are one operation, and what is read once."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

import tf_fuse  # noqa: F401  (loads the operations)
from tf_fuse.function_graph.function_lookup import op_defs, partial_shapes, static_shapes
from tf_fuse.function_graph.view import GraphView, control_inputs
from tf_fuse.fuse_update.analysis.devices import CALLER, ArgumentDevices, Servers
from tf_fuse.fuse_update.encode.elementwise import ElementwiseEncoder
from tf_fuse.fuse_update.outline import outline
from tf_fuse.fuse_update.rewrite.locking import lock_applies
from tf_fuse.fuse_update.rewrite.shared_reads import MARK, mark_reads

_PS = [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(3)]
_CHIEF = "/job:chief/replica:0/task:0/device:CPU:0"


class _Traced:
    """A function, as if its variables were on servers."""

    def __init__(self, body, places, lacking=()):
        self.asked = []

        def ask(task, device):
            self.asked.append((task, device))
            return "it lacks the plugin" if device in lacking else ""

        concrete = tf.function(body).get_concrete_function()
        self.view = GraphView(concrete.function_def, op_defs(lambda name: None))
        devices = {id(variable.handle): place for variable, place in places}
        pairs = zip(self.view.arguments, concrete.captured_inputs, strict=True)
        arguments = {name: devices[id(t)] for name, t in pairs if id(t) in devices}
        self.places = ArgumentDevices(Servers(ask, lambda: _CHIEF), arguments)
        self.view.device_of = lambda node: self.places.of_node(self.view, node)
        self.shapes = static_shapes(self.view, concrete.graph)
        self.partial = partial_shapes(self.view, concrete.graph)

    def outline(self, may_differ=True):
        maker = ElementwiseEncoder(bytes, lambda: may_differ)
        found = outline(self.view, self.shapes, self.places, maker, partial=self.partial)
        return found

    def node(self, op):
        (found,) = (node for node in self.view.nodes.values() if node.op == op)
        return found


def _momentum(weight, slot, device, gradient=3.0):
    with tf.device(device):
        slot.assign(slot * 0.5 - gradient)
        weight.assign_add(slot)


def _variables(count, shape=(5,)):
    return [tf.Variable(tf.ones(shape)) for _ in range(count)]


def test_each_server_does_its_own_updates():
    a, m, b, n = _variables(4)

    def step():
        _momentum(a, m, _PS[0])
        _momentum(b, n, _PS[1])

    traced = _Traced(step, [(a, _PS[0]), (m, _PS[0]), (b, _PS[1]), (n, _PS[1])])
    found = traced.outline()
    assert sorted(cluster.device for cluster in found.clusters) == _PS[:2]
    assert found.exact == (True, True) and found.left == ()
    assert {node.device for node in found.function.node_def if "Update" in node.op} == {*_PS[:2]}
    assert sorted(task for task, _ in traced.asked) == [
        d.rpartition("/device:")[0] for d in _PS[:2]
    ]


def test_server_without_the_plugin():
    a, m = _variables(2)
    traced = _Traced(lambda: _momentum(a, m, _PS[2]), [(a, _PS[2]), (m, _PS[2])], [_PS[2]])
    found = traced.outline()
    assert found.function is None
    assert {(left.reason, left.detail) for left in found.left} == {
        ("no_plugin", "it lacks the plugin")
    }
    assert len(traced.asked) == 1


def test_slot_on_another_server_than_its_weight():
    a, m = _variables(2)
    found = _Traced(lambda: _momentum(a, m, _PS[0]), [(a, _PS[0]), (m, _PS[1])]).outline()
    assert "device" in {left.reason for left in found.left}
    assert all(
        cluster.variables != () and len(cluster.variables) == 1 for cluster in found.clusters
    )


@pytest.mark.parametrize("device", ["", "/device:CPU:0"])
def test_variables_of_two_servers_are_not_of_one_operation(device):
    a, m = _variables(2)

    def step():
        with tf.device(device):
            m.assign(m * 0.5 + a)
            a.assign_sub(m * 0.1 + a * 0.2)

    traced = _Traced(step, [(a, _PS[0]), (m, _PS[1])])
    clusters = traced.outline().clusters
    assert sorted(len(cluster.variables) for cluster in clusters) == [1, 1]


@pytest.mark.parametrize(("place", "variables"), [(0, [2]), (1, [1, 1])])
def test_rows_of_two_servers_are_not_of_one_operation(place, variables):
    a, m = _variables(2, (4, 2))
    rows = tf.constant([3, 1])

    def step():
        m.scatter_add(tf.IndexedSlices(tf.ones([2, 2]), rows))
        a.scatter_sub(tf.IndexedSlices(tf.gather(m, rows) * 0.5, rows))

    found = _Traced(step, [(a, _PS[0]), (m, _PS[place])]).outline()
    assert [len(cluster.variables) for cluster in found.clusters] == variables
    assert found.left == ()


def test_variables_of_the_coordinator_stay():
    a, m = _variables(2)
    traced = _Traced(lambda: _momentum(a, m, _CHIEF), [(a, _CHIEF), (m, _CHIEF)])
    assert {left.reason for left in traced.outline().left} == {"device"}
    assert traced.asked == []


@pytest.mark.parametrize("device", ["", "/device:CPU:0", "/job:ps/task:1"])
def test_assignment_whose_device_is_named_in_part_is_where_its_variable_is(device):
    a, m = _variables(2)
    traced = _Traced(lambda: _momentum(a, m, device), [(a, _PS[1]), (m, _PS[1])])
    assert len(traced.outline().clusters) == 1
    assert traced.places.of_node(traced.view, traced.node("AssignVariableOp")) == _PS[1]
    assert traced.places.of_node(traced.view, traced.node("Sub")) == (
        CALLER if "/job:" not in device else traced.node("Sub").device
    )


def test_count_that_is_read_and_assigned():
    count = tf.Variable(0, dtype=tf.int64)
    found = _Traced(lambda: count.assign(count + 1), [(count, _PS[0])]).outline()
    assert found.exact == (True,) and len(found.clusters) == 1


def test_bits_that_are_not_known():
    count = tf.Variable([0.5])

    def step():
        with tf.device(_PS[0]):
            count.assign(count * 3.0 + 1.0)

    traced = _Traced(step, [(count, _PS[0])])
    assert traced.outline().exact == (False,)
    assert [left.reason for left in traced.outline(may_differ=False).left] == ["too_small"]


def _rows(weight, slot, rows, gradient):
    with tf.device(_PS[0]):
        slot.assign(slot * 0.5)
        slot.scatter_add(tf.IndexedSlices(gradient, rows))
        weight.assign_sub(slot * 0.1)


def test_rows_and_whole_variables_are_one_operation():
    a, m = _variables(2, (4, 2))
    gradient, rows = tf.ones([2, 2]), tf.constant([3, 1])
    traced = _Traced(lambda: _rows(a, m, rows, gradient), [(a, _PS[0]), (m, _PS[0])])
    found = traced.outline()
    nodes = [node for node in found.function.node_def if "Update" in node.op]
    assert [node.op for node in nodes] == ["TfFuse>UpdateCount", "TfFuse>StagedUpdate"]
    assert found.left == ()
    assert not {n.op for n in found.function.node_def} & {"ResourceScatterAdd", "AssignVariableOp"}


def test_rows_that_something_else_scatters_to_are_left():
    a, m = _variables(2, (4, 2))
    rows = tf.constant([3, 1])

    def step():
        _rows(a, m, rows, tf.ones([2, 2]))
        with tf.device(_PS[0]):
            m.scatter_max(tf.IndexedSlices(tf.ones([2, 2]), rows))
            a.assign(m * 1.5 + a)

    found = _Traced(step, [(a, _PS[0]), (m, _PS[0])]).outline()
    assert "waits_for_itself" in {left.reason for left in found.left}


def test_rows_of_a_type_that_is_not_added():
    table = tf.Variable(tf.zeros([4, 2], tf.int8))
    slices = tf.IndexedSlices(tf.ones([1, 2], tf.int8), tf.constant([1]))

    def step():
        with tf.device(_PS[0]):
            table.scatter_add(slices)

    found = _Traced(step, [(table, _PS[0])]).outline()
    assert found.function is None
    assert [left.reason for left in found.left] == ["rows"]


def test_reads_of_numbers_are_marked():
    rate = tf.Variable(0.5)
    weights = _variables(3)

    def step():
        for weight in weights:
            weight.assign_sub(rate * 2.0 * weight)
        rate.assign(rate * 0.9)
        return rate.read_value()

    traced = _Traced(step, [(v, _PS[0]) for v in (rate, *weights)])
    function = type(traced.view.function).FromString(traced.view.function.SerializeToString())
    mark_reads(function, traced.view, traced.shapes)
    (argument,) = (a for a in traced.view.arguments if traced.shapes[a] == ())
    reads = [n for n in function.node_def if n.op == "ReadVariableOp"]
    of_rate = [n for n in reads if n.input[0] == argument]
    # (One of them is behind the assignment.)
    assert sorted(bool(control_inputs(n)) for n in of_rate) == [False] * 4 + [True]
    for node in reads:
        marked = MARK in node.attr and node.attr[MARK].b
        assert marked == (node in of_rate and not control_inputs(node))


def test_locks_of_whole_updates():
    weight, slot = _variables(2)

    def step():
        for locked in (False, True):
            tf.raw_ops.ResourceApplyMomentum(
                var=weight.handle, accum=slot.handle, lr=0.1, grad=tf.ones([5]), momentum=0.9,
                use_locking=locked,
            )  # fmt: skip

    traced = _Traced(step, [(weight, _PS[0]), (slot, _PS[0])])
    function = type(traced.view.function).FromString(traced.view.function.SerializeToString())
    assert lock_applies(function, traced.view, traced.places) == 1
    applies = [node for node in function.node_def if node.op == "ResourceApplyMomentum"]
    assert [node.attr["use_locking"].b for node in applies] == [True, True]
    assert lock_applies(function, traced.view, lambda device, variable: False) == 0
