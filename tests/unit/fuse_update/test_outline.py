# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What of an update becomes one call, and what it becomes."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf
from tensorflow.core.framework import function_pb2

import tf_fuse  # noqa: F401
from tests.unit.fuse_update.compiled_jobs import SHAPE, Job, ones
from tf_fuse.function_graph.function_lookup import op_defs, static_shapes
from tf_fuse.function_graph.view import ASSIGNS, GraphView, control_inputs
from tf_fuse.fuse_update import outline
from tf_fuse.fuse_update.analysis.local_nodes import can_fuse_locally
from tf_fuse.fuse_update.encode import xla
from tf_fuse.fuse_update.rewrite import function_builder


@pytest.fixture(autouse=True)
def _any_size(monkeypatch):
    monkeypatch.setattr(xla, "MIN_ELEMENTS", 2)


def _outline(body, *specs, is_here=lambda device, variable: True):
    function = tf.function(body, autograph=False, input_signature=specs).get_concrete_function()
    view = GraphView(function.function_def, op_defs(lambda name: None))
    return function, outline.outline(
        view, static_shapes(view, function.graph), is_here, xla.XlaEncoder()
    )


def test_an_update_is_one_call():
    job = Job()
    function, found = _outline(job.update, tf.TensorSpec(SHAPE))
    (cluster,) = found.clusters
    assert (cluster.size, len(cluster.variables), found.left) == (16, 2, ())
    (body,) = found.bodies.values()
    ops = sorted(node.op for node in body.node_def)
    assert ops == sorted(
        ["AddV2", "AssignSubVariableOp", "AssignVariableOp", "Const", "Const", "Mul", "Mul"]
        + ["ReadVariableOp"] * 2
    )
    (call,) = [node for node in found.function.node_def if node.name.startswith("tf_fuse")]
    assert call.op == "StatefulPartitionedCall"
    assert call.attr["_XlaMustCompile"].b
    # The gradient and both variables.
    assert sorted(call.input) == sorted(
        function.function_def.signature.input_arg[i].name for i in range(3)
    )
    assert call.name in found.function.control_ret.values()
    assert found.function.signature == function.function_def.signature
    left = {node.op for node in found.function.node_def}
    assert left <= {"Const", "StatefulPartitionedCall"}


def test_weights_of_one_shape_share_a_function():
    jobs = [Job(), Job(), Job()]

    def body(gradient):
        for job in jobs:
            job.update(gradient)

    _, found = _outline(body, tf.TensorSpec(SHAPE))
    assert (len(found.clusters), len(found.bodies)) == (3, 1)


def test_who_waited_for_an_operation_waits_for_the_call():
    job, other = Job(), ones()

    def body(gradient):
        product = tf.linalg.matmul(gradient, gradient)
        job.update(gradient)
        last = tf.raw_ops.AssignAddVariableOp(resource=job.w.handle, value=2.0 * gradient)
        with tf.control_dependencies([last]):
            other.assign(product)

    _, found = _outline(body, tf.TensorSpec(SHAPE))
    nodes = {node.name: node for node in found.function.node_def}
    (call,) = [name for name in nodes if name.startswith("tf_fuse")]
    (assign,) = [name for name in nodes if nodes[name].op in ASSIGNS]
    assert control_inputs(nodes[assign]) == [call]
    assert [left.reason for left in found.left] == ["not_elementwise"]


def _small(job, g):
    xla.MIN_ELEMENTS = 17
    job.update(g)


def _assigned_only(job, g):
    job.m.assign(g)


def _matmul(job, g):
    job.m.assign(tf.matmul(g, g))


def _used_twice(job, g):
    new = 2.0 * g
    job.m.assign(new)
    return tf.reduce_sum(new)


def _only_assignments(job, g):
    job.m.assign_add(g)
    job.m.assign_sub(job.w)


def _narrow(job, g):
    job.half = job.half if hasattr(job, "half") else tf.Variable(tf.ones(SHAPE, tf.bfloat16))
    job.half.assign(2 * job.half)


def _in_between(job, g):
    x = 0.3 * g
    job.m.assign_sub(x)
    job.w.assign_sub(x * tf.norm(job.m))


@pytest.mark.parametrize(
    ("body", "reasons"),
    [
        (_small, {"too_small"}),
        (_assigned_only, {"not_elementwise"}),
        (_matmul, {"not_elementwise"}),
        (_used_twice, {"read_elsewhere"}),
        (_narrow, {"type"}),
        (_only_assignments, {"too_few"}),
        (_in_between, {"waits_for_itself"}),
    ],
)
def test_reasons(body, reasons):
    job = Job()
    _narrow(job, None)
    _, found = _outline(lambda g: body(job, g), tf.TensorSpec(SHAPE))
    assert {left.reason for left in found.left} == reasons
    assert reasons <= outline.REASONS.keys()
    assert found.function is None
    assert found.bodies == {}


def test_a_variable_of_unknown_shape():
    variable = tf.Variable(tf.ones([2]), shape=tf.TensorShape(None))
    _, found = _outline(lambda: variable.assign(2.0 * variable))
    assert [left.reason for left in found.left] == ["unknown_shape"]


def test_a_variable_that_is_elsewhere():
    job = Job()
    _, found = _outline(job.update, tf.TensorSpec(SHAPE), is_here=lambda *place: False)
    assert {left.reason for left in found.left} == {"device"}


def test_assignments_on_two_devices():
    job = Job()

    def body(gradient):
        with tf.device("CPU:0"):
            job.m.assign(0.5 * gradient)
        job.m.assign_add(0.5 * gradient)

    _, found = _outline(body, tf.TensorSpec(SHAPE))
    assert {left.reason for left in found.left} == {"several_devices"}


def test_loops_of_tensorflow_1():
    job = Job()

    def body(gradient):
        predicate = tf.reduce_all(gradient > 0)
        new, _ = tf.raw_ops.Switch(data=2.0 * gradient, pred=predicate)
        job.m.assign(2.0 * new)

    _, found = _outline(body, tf.TensorSpec(SHAPE))
    assert [left.reason for left in found.left] == ["control_flow"]


class _Context:
    """What `_is_here` looks at."""

    def __init__(self, *devices):
        self._devices = devices

    def host_address_space(self):
        return "/job:worker/replica:0/task:0"

    def devices(self):
        return [f"/job:worker/replica:0/task:{d}" for d in self._devices]


def test_where_a_function_runs():
    own = "/job:worker/replica:0/task:0/device:CPU:0"
    one = can_fuse_locally(_Context("0/device:CPU:0", "1/device:CPU:0"), {})
    assert one("", "v") and one(own, "v") and one("/device:CPU:0", None)
    assert not one("/job:worker/replica:0/task:1/device:CPU:0", "v")
    assert not one("/job:ps/replica:0/task:0/device:CPU:0", "v")
    assert not one("/device:GPU:0", "v")
    two = can_fuse_locally(
        _Context("0/device:CPU:0", "0/device:CPU:1"), {"v": own, "u": own[:-1] + "1"}
    )
    # Without a name, it may be on either.
    assert not two("", "v")
    assert two(own, "v") and not two(own, "u") and not two(own, "unknown")


def test_a_missing_node_is_an_error():
    _, found = _outline(Job().update, tf.TensorSpec(SHAPE))
    key = sorted(found.function.control_ret)[0]
    found.function.control_ret[key] = "gone"
    with pytest.raises(ValueError, match=r"has no \['gone'\], which it uses"):
        function_builder._check(found.function)


def test_colocation_with_a_fused_node_is_dropped():
    function = tf.function(Job().update, autograph=False).get_concrete_function(tf.ones(SHAPE))
    definition = function_pb2.FunctionDef()
    definition.CopyFrom(function.function_def)
    (assigned,) = [n.name for n in definition.node_def if n.op == "AssignVariableOp"]
    other = definition.node_def.add(name="other", op="NoOp")
    classes = [f"loc:@{assigned}".encode(), b"loc:@elsewhere", b"of another kind"]
    other.attr["_class"].list.s[:] = classes
    view = GraphView(definition, op_defs(lambda name: None))
    found = outline.outline(
        view, static_shapes(view, function.graph), lambda *_: True, xla.XlaEncoder()
    )
    (left,) = [node for node in found.function.node_def if node.name == "other"]
    assert list(left.attr["_class"].list.s) == classes[1:]
