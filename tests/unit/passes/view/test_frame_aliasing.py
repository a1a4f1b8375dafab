# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which outputs of a _FuseRecv are copied out of the frame: those that outlive the step.

Each graph receives "x", whose value may be kept, and "other", which is added up and gone.
"""

import pytest
import tensorflow as tf

from tests.unit.passes.pass_testing import PS0, W0, nodes_of, source, trace, use, v1
from tf_fuse import _native
from tf_fuse.explain import placed_graph, rewrite
from tf_fuse.v1 import staged_update_pb2, update_pb2

_FLOAT = tf.float32.as_datatype_enum


def _copied(consume, dtype=tf.float32):
    """Names of the tensors that the fused receive copies.

    Args:
      consume: takes "x" on the receiving device.
      dtype: type of "x".
    """

    def build():
        x, other = source(PS0, "x", dtype), source(PS0, "other")
        use(W0, "sum", other)
        with tf.device(W0):
            consume(x)

    return _copied_in(rewrite(trace(build)))


def _copied_in(result):
    (fused,) = nodes_of(result.after[W0], "_FuseRecv")
    (group,) = result.report.groups
    flags = list(fused.attr["copy_out"].list.b)
    assert not flags or len(flags) == len(group.slots)
    senders = [s.sender_node for s in group.slots]
    return [sender for sender, copied in zip(senders, flags, strict=bool(flags)) if copied]


def _resource(op=tf.raw_ops.VarHandleOp, **attrs):
    return op(**attrs) if attrs else op(dtype=tf.float32, shape=[2])


def _list_of(x):
    handle = tf.raw_ops.EmptyTensorList(
        element_shape=[2], max_num_elements=-1, element_dtype=tf.float32
    )
    return tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=x)


def _conditional(x):
    predicate = v1.placeholder(tf.bool, ())
    taken = tf.raw_ops.Switch(data=tf.identity(x), pred=predicate).output_true
    return tf.raw_ops.AssignVariableOp(resource=_resource(), value=taken)


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _returned(x):
    return x


def _elementwise_update(x):
    """Sets w to x, as one operation."""
    program = update_pb2.UpdateProgram(
        size=2, variable_types=[_FLOAT], input_types=[_FLOAT],
        steps=[update_pb2.UpdateStep(op="AssignVariableOp", inputs=[0])],
    )  # fmt: skip
    return _native.load().tf_fuse_elementwise_update(
        variables=[_resource()], inputs=[x], begun=[], Tout=[], shapes=[],
        program=program.SerializeToString(),
    )  # fmt: skip


def _staged_update(x):
    """Sets rows 0 and 1 of w to x, as one operation."""
    scatter = staged_update_pb2.RowScatter(op="ResourceScatterUpdate", value=-2)
    stage = staged_update_pb2.UpdateStage(is_by_row=True, indices=0, scatters=[scatter])
    update = staged_update_pb2.StagedUpdate(stages=[stage])
    return _native.load().tf_fuse_staged_update(
        variables=[_resource()], inputs=[tf.constant([0, 1]), x], begun=[],
        update=update.SerializeToString(),
    )  # fmt: skip


KEPT = {
    "variable": lambda x: tf.raw_ops.AssignVariableOp(resource=_resource(), value=x),
    "ref variable": lambda x: tf.raw_ops.Assign(
        ref=tf.raw_ops.VariableV2(shape=[2], dtype=tf.float32), value=x
    ),
    "queue": lambda x: tf.queue.FIFOQueue(1, [tf.float32], [[2]]).enqueue(x),
    "TensorList": _list_of,
    "stack": lambda x: tf.raw_ops.StackPushV2(
        handle=tf.raw_ops.StackV2(max_size=1, elem_type=tf.float32), elem=x
    ),
    "staging area": lambda x: tf.raw_ops.Stage(values=[x]),
    "Python function": lambda x: v1.py_func(lambda y: y, [x], tf.float32),
    "identity": lambda x: KEPT["variable"](tf.identity(tf.identity(x))),
    "reshape": lambda x: KEPT["variable"](tf.raw_ops.Reshape(tensor=x, shape=[2])),
    "sum over no dimension": lambda x: KEPT["variable"](tf.reduce_sum(x, axis=[])),
    "stack of one": lambda x: tf.raw_ops.Stage(values=[tf.stack([x])]),
    "Einsum that changes nothing": lambda x: KEPT["variable"](tf.einsum("i->i", x)),
    "cast to its own type": lambda x: KEPT["variable"](tf.raw_ops.Cast(x=x, DstT=tf.float32)),
    "AddN of one": lambda x: KEPT["variable"](tf.raw_ops.AddN(inputs=[x])),
    "one of several": lambda x: [tf.sin(x), KEPT["variable"](x), tf.cos(x)],
    "branch": _conditional,
    "function": lambda x: KEPT["variable"](_returned(x)),
}

# AddN begins with an input that it may write over: a view is not one, a copy is.
ADDED = {
    "AddN of three": (tf.float32, 3, ["x"]),
    "AddN of two": (tf.float32, 2, []),
    "AddN of three bfloat16": (tf.bfloat16, 3, ["x"]),
    "AddN of three integers": (tf.int32, 3, []),
}


@pytest.mark.parametrize("case", ADDED)
def test_values_are_added_up_in_the_order_of_stock(case):
    dtype, count, copied = ADDED[case]

    def consume(x):
        rest = [tf.zeros([2], dtype)] * (count - 1)
        tf.sin(tf.cast(tf.raw_ops.AddN(inputs=[tf.identity(x), *rest]), tf.float32))

    assert _copied(consume, dtype) == copied


GONE = {
    "arithmetic": lambda x: tf.sin(x) * 2,
    "sum that is kept": lambda x: KEPT["variable"](x + 1),
    "added to a variable": lambda x: tf.raw_ops.AssignAddVariableOp(resource=_resource(), value=x),
    "optimizer": lambda x: tf.raw_ops.ResourceApplyGradientDescent(
        var=_resource(), alpha=0.1, delta=x
    ),
    "scatter": lambda x: tf.raw_ops.ResourceScatterAdd(
        resource=_resource(), indices=[0, 1], updates=x
    ),
    "ref optimizer": lambda x: tf.raw_ops.ApplyGradientDescent(
        var=tf.raw_ops.VariableV2(shape=[2], dtype=tf.float32), alpha=0.1, delta=x
    ),
    "AddN of two": lambda x: KEPT["variable"](tf.raw_ops.AddN(inputs=[x, x])),
    "stack of two": lambda x: tf.raw_ops.Stage(values=[tf.stack([x, x])]),
    "cast": lambda x: KEPT["variable"](tf.cast(tf.cast(x, tf.float64), tf.float32)),
    "control edge": lambda x: tf.group(tf.identity(x)),
    "update that is one operation": _elementwise_update,
    "update of rows that is one operation": _staged_update,
}


@pytest.mark.parametrize("consumer", KEPT)
def test_value_that_is_kept_is_copied(consumer):
    assert _copied(KEPT[consumer]) == ["x"]


@pytest.mark.parametrize("consumer", GONE)
def test_value_that_is_gone_after_the_step_is_not_copied(consumer):
    assert _copied(GONE[consumer]) == []


def test_value_that_a_function_returns_is_copied():
    @tf.function(autograph=False)
    def step():
        with tf.device(PS0):
            x, other = (tf.random.uniform([2], name=name) for name in ("x", "other"))
        return tf.identity(x), other * 2

    graph = placed_graph(step.get_concrete_function(), W0)
    assert [n.op for n in graph.node if n.op == "_Retval"] == ["_Retval"] * 2
    assert _copied_in(rewrite(graph)) == ["x/RandomUniform"]


def test_value_that_is_sent_on_is_not_copied():
    def sent_on(x):
        y = tf.identity(x)
        with tf.device(PS0):
            tf.sin(y)

    assert _copied(sent_on) == []
