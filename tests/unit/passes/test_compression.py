# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tensors travel as bfloat16: rows and gradients of marked variables, and nothing else."""

import pytest
import tensorflow as tf

from tests.unit.passes.pass_testing import PS0, PS1, W0, device, trace
from tf_fuse.explain import rewrite

v1 = tf.compat.v1
_MARK = "bfloat16 job/0"
_GPU = device("worker", 0, "GPU")


def _table(mark=_MARK, on=PS0, shape=(9, 2), dtype=tf.float32, name="table"):
    """A handle; `_sent` makes an argument of it, with a mark if there is one."""
    with tf.device(on):
        handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name, name=name)
    if mark:
        handle.op._set_attr("_tf_fuse_compress", tf.compat.v1.AttrValue(s=mark.encode()))
    return handle


def _input(name, shape=(3,), dtype=tf.int32, on=W0):
    with tf.device(on):
        return v1.placeholder(dtype, shape, name=name)


def _rows(handle, ids=None, on=PS0, dtype=tf.float32):
    ids = _input("ids") if ids is None else ids
    with tf.device(on):
        return tf.raw_ops.ResourceGather(resource=handle, indices=ids, dtype=dtype, name="rows")


def _gradient(shape=(9, 2), dtype=tf.float32, on=W0):
    with tf.device(on):
        return tf.math.square(_input("given", shape, dtype, on), name="gradient")


def _used(value, on=W0):
    with tf.device(on):
        return tf.math.square(value, name="used")


def _returned(value, on=W0):
    with tf.device(on):
        return tf.raw_ops.Reshape(tensor=value, shape=[-1], name="returned")


def _argument(graph_def):
    """Make arguments of the handles, and a result of what is to be returned."""
    arguments = [node for node in graph_def.node if node.op == "VarHandleOp"]
    for index, node in enumerate(arguments):
        kept = {key: node.attr[key].SerializeToString() for key in node.attr}
        dtype, shape = node.attr["dtype"].type, type(node.attr["shape"].shape)()
        shape.CopyFrom(node.attr["shape"].shape)
        node.attr.clear()
        node.op = "_Arg"
        node.attr["T"].type = tf.resource.as_datatype_enum
        node.attr["index"].i = index
        # TensorFlow gives these to the arguments of a function that runs.
        node.attr["_handle_dtypes"].list.type.append(dtype)
        node.attr["_handle_shapes"].list.shape.add().CopyFrom(shape)
        if "_tf_fuse_compress" in kept:
            node.attr["_tf_fuse_compress"].ParseFromString(kept["_tf_fuse_compress"])
    if any(node.name == "returned" for node in graph_def.node):
        result = graph_def.node.add(name="result", op="_Retval", input=["returned"], device=W0)
        result.attr["T"].type = tf.float32.as_datatype_enum
        result.attr["index"].i = 0
    return graph_def


def _result(build):
    return rewrite(_argument(trace(build)))


def _sent(build):
    """What is sent between tasks, by the operation that sends it: type and the operations."""
    result = _result(build)
    found = {}
    for partition in result.before.values():
        nodes = {node.name: node for node in partition.node}
        for node in partition.node:
            if node.op != "_Send" or "_Send" in nodes[node.input[0].split(":")[0]].op:
                continue
            source = nodes[node.input[0].split(":")[0]]
            dtype = tf.as_dtype(node.attr["T"].type).name
            if dtype == "bfloat16":
                origin = source.input[0].split(":")[0]
                found[origin] = f"bfloat16 by {source.op}"
            else:
                found[source.name] = dtype
    return found


def test_rows_travel_as_bfloat16_and_their_numbers_as_they_are():
    assert _sent(lambda: _used(_rows(_table()))) == {"ids": "int32", "rows": "bfloat16 by Cast"}


def test_the_receiver_widens_them():
    result = _result(lambda: _used(_rows(_table())))
    (recv,) = (node for node in result.before[W0].node if node.op == "_Recv")
    assert recv.attr["tensor_type"].type == tf.bfloat16.as_datatype_enum
    (cast,) = (node for node in result.before[W0].node if node.op == "Cast")
    (used,) = (node for node in result.before[W0].node if node.name == "used")
    assert list(cast.input) == [recv.name]
    assert (cast.attr["SrcT"].type, cast.attr["DstT"].type) == (
        tf.bfloat16.as_datatype_enum,
        tf.float32.as_datatype_enum,
    )
    assert list(used.input) == [cast.name]


def test_a_graph_without_marks_is_not_changed():
    def build(mark):
        handle = _table(mark)
        ids = _input("ids")
        change = _used(_rows(handle, ids))
        with tf.device(PS0):
            tf.raw_ops.ResourceScatterSub(resource=handle, indices=ids, updates=change)

    plain = _result(lambda: build(""))
    assert {node.op for partition in plain.before.values() for node in partition.node} == {
        "_Arg", "Placeholder", "ResourceGather", "ResourceScatterSub", "Square", "_Recv", "_Send",
    }  # fmt: skip
    types = {
        node.attr["T"].type for p in plain.before.values() for node in p.node if node.op == "_Send"
    }
    assert types == {tf.float32.as_datatype_enum, tf.int32.as_datatype_enum}


@pytest.mark.parametrize("mark", ["", "float32"])
def test_a_variable_that_is_not_selected_is_left(mark):
    assert _sent(lambda: _used(_rows(_table(mark)))) == {"ids": "int32", "rows": "float32"}


@pytest.mark.parametrize("dtype", [tf.float64, tf.float16, tf.int64])
def test_other_types_are_left(dtype):
    def build():
        _used(_rows(_table(dtype=dtype), dtype=dtype))

    assert _sent(build) == {"ids": "int32", "rows": dtype.name}


@pytest.mark.parametrize(
    "between",
    [
        lambda rows: tf.identity(rows, name="end"),
        lambda rows: tf.raw_ops.Reshape(tensor=rows, shape=[6], name="end"),
        lambda rows: tf.raw_ops.GatherV2(params=rows, indices=[1, 1], axis=0, name="end"),
        lambda rows: tf.raw_ops.SparseSegmentMean(
            data=rows, indices=[0, 1], segment_ids=[0, 0], name="end"
        ),
    ],
)
def test_rows_that_pass_operations_of_their_server(between):
    def build():
        rows = _rows(_table())
        with tf.device(PS0):
            end = between(rows)
        _used(end)

    assert _sent(build) == {"ids": "int32", "end": "bfloat16 by Cast"}


def test_a_value_that_is_computed_from_rows_on_the_server_is_left():
    def build():
        _used(_used(_rows(_table()), PS0))

    assert _sent(build) == {"ids": "int32", "used": "float32"}


def test_a_variable_that_is_read_whole_is_left():
    def build():
        with tf.device(PS0):
            value = tf.raw_ops.ReadVariableOp(resource=_table(), dtype=tf.float32, name="read")
        _used(value)

    assert _sent(build) == {"read": "float32"}


def test_rows_that_the_function_returns_are_left():
    def build():
        rows = _rows(_table())
        _used(rows)
        _returned(rows)

    assert _sent(build) == {"ids": "int32", "rows": "float32"}


@pytest.mark.parametrize("job", ["chief", "evaluator", "ps"])
def test_rows_that_go_to_another_job_are_left(job):
    there = device(job, 1)

    def build():
        _used(_rows(_table(), _input("ids", on=there)), there)

    assert _sent(build) == {"ids": "int32", "rows": "float32"}


def test_rows_for_a_gpu_are_left():
    def build():
        handle = _table()
        rows = _rows(handle)
        with tf.device(_GPU):
            tf.identity(rows)

    assert _sent(build)["rows"] == "float32"


def _scatter(op, handle, ids, value):
    with tf.device(PS0):
        op(resource=handle, indices=ids, updates=value)


@pytest.mark.parametrize("op", [tf.raw_ops.ResourceScatterAdd, tf.raw_ops.ResourceScatterSub])
def test_gradients_of_rows_are_rounded_without_feedback(op):
    sent = _sent(lambda: _scatter(op, _table(), _input("ids"), _gradient((3, 2))))
    assert sent == {"ids": "int32", "gradient": "bfloat16 by Cast"}


def test_rows_that_are_assigned_are_left():
    op = tf.raw_ops.ResourceScatterUpdate
    sent = _sent(lambda: _scatter(op, _table(), _input("ids"), _gradient((3, 2))))
    assert sent == {"ids": "int32", "gradient": "float32"}


def _assign(op, value, on=PS0, **table):
    with tf.device(on):
        op(resource=_table(**table), value=value)


def test_a_dense_gradient_is_rounded_with_feedback():
    sent = _sent(lambda: _assign(tf.raw_ops.AssignSubVariableOp, _gradient()))
    assert sent == {"gradient": "bfloat16 by TfFuse>RoundWithFeedback"}


def test_the_gradient_of_an_optimizer_that_computes_on_the_server():
    def build():
        gradient = _gradient()
        with tf.device(PS0):
            slot = _table("", name="slot")
            change = tf.raw_ops.Mul(x=gradient, y=0.1)
            squared = tf.raw_ops.Square(x=gradient)
            tf.raw_ops.AssignAddVariableOp(resource=slot, value=squared)
            handle = _table()
            old = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.raw_ops.Sub(x=old, y=change))

    result = _result(build)
    (narrow,) = (n for n in result.before[W0].node if n.op == "TfFuse>RoundWithFeedback")
    assert narrow.attr["key"].s == b"job/0#0"
    (widened,) = (n for n in result.before[PS0].node if n.op == "Cast")
    readers = [n.op for n in result.before[PS0].node if widened.name in n.input]
    assert sorted(readers) == ["Mul", "Square"]


def test_a_value_that_is_assigned_is_left():
    sent = _sent(lambda: _assign(tf.raw_ops.AssignVariableOp, _gradient()))
    assert sent == {"gradient": "float32"}


def test_a_variable_that_is_not_trained_is_left():
    sent = _sent(lambda: _assign(tf.raw_ops.AssignAddVariableOp, _gradient(), mark=""))
    assert sent == {"gradient": "float32"}


@pytest.mark.parametrize("shape", [(), None])
def test_scalars_and_what_may_be_one_are_left(shape):
    def build():
        rate = _gradient(shape)
        with tf.device(PS0):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=_table(), alpha=rate, delta=tf.zeros([9, 2])
            )

    assert _sent(build) == {"gradient": "float32"}


def test_a_gradient_of_a_selected_and_of_another_variable_is_left():
    def build():
        gradient = _gradient()
        _assign(tf.raw_ops.AssignSubVariableOp, gradient)
        _assign(tf.raw_ops.AssignSubVariableOp, gradient, mark="float32", name="other")

    assert _sent(build) == {"gradient": "float32"}


def test_a_gradient_that_a_server_returns_is_left():
    def build():
        gradient = _gradient()
        with tf.device(PS0):
            there = tf.identity(gradient)
            tf.raw_ops.AssignSubVariableOp(resource=_table(), value=there)
        _returned(there)

    assert _sent(build)["gradient"] == "float32"


def test_a_gradient_from_another_server_is_left():
    sent = _sent(lambda: _assign(tf.raw_ops.AssignSubVariableOp, _gradient(on=PS1)))
    assert sent == {"gradient": "float32"}


def test_the_update_of_whole_rows_with_a_count_of_updates_is_dense():
    # TfFuse>ElementwiseUpdate gets a number, but not that of a row.
    from tf_fuse import _native
    from tf_fuse.v1 import update_pb2

    _native.load()
    program = update_pb2.UpdateProgram(size=18)
    program.variable_types.append(tf.float32.as_datatype_enum)
    program.input_types.append(tf.float32.as_datatype_enum)
    program.steps.add(op="AssignAddVariableOp", inputs=[0])

    def build():
        gradient = _gradient()
        with tf.device(PS0):
            handle = _table()
            begun = _native.load().tf_fuse_update_count(variable=handle)
            _native.load().tf_fuse_elementwise_update(
                variables=[handle],
                inputs=[gradient],
                begun=[begun],
                Tout=[],
                shapes=[],
                program=program.SerializeToString(),
                worker="",
                subject=0,
            )

    assert _sent(build) == {"gradient": "bfloat16 by TfFuse>RoundWithFeedback"}


def test_each_gradient_of_a_variable_has_a_key_of_its_own():
    def build():
        for name in ("b", "a"):
            with tf.device(W0):
                gradient = tf.math.square(_input(f"given_{name}", (9, 2), tf.float32), name=name)
            _assign(tf.raw_ops.AssignSubVariableOp, gradient, name=f"handle_{name}")

    result = _result(build)
    keys = {
        node.input[0]: node.attr["key"].s
        for node in result.before[W0].node
        if node.op == "TfFuse>RoundWithFeedback"
    }
    assert keys == {"a": b"job/0#0", "b": b"job/0#1"}


def test_rows_in_a_fused_receive_with_other_tensors():
    def build():
        ids = _input("ids")
        for name, mark, dtype in (
            ("plain", "", tf.float32),
            ("small", _MARK, tf.float32),
            ("wide", "", tf.float64),
        ):
            _used(_rows(_table(mark, dtype=dtype, name=name), ids, dtype=dtype))

    (group,) = _result(build).report.groups
    assert sorted(slot.dtype for slot in group.slots) == ["bfloat16", "double", "float"]


def test_small_operations_are_grouped_as_before():
    def build(mark):
        ids = [_input(f"ids_{i}") for i in range(6)]
        for i, of_table in enumerate(ids):
            handle = _table(mark, name=f"table_{i}")
            change = _used(_rows(handle, of_table))
            _scatter(tf.raw_ops.ResourceScatterSub, handle, of_table, change)

    def count(mark):
        graph = _argument(trace(lambda: build(mark)))
        groups = rewrite(graph, fuse_operations=True).report.operation_groups
        return [(one.device, sorted(one.operations)) for one in groups]

    lookups, updates = ["ResourceGather", "_Send"], ["ResourceScatterSub"]
    assert count("") == [(PS0, lookups), (PS0, updates)]
    # Rows are rounded where they are gathered; gradients are widened as soon as they are there.
    assert sorted(count(_MARK)) == [
        (PS0, ["Cast"]), (PS0, ["Cast", *lookups]), (PS0, updates), (W0, ["Cast"]),
    ]  # fmt: skip
