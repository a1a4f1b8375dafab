# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tensors travel as bfloat16: rows and gradients of marked variables, and nothing else."""

import types

import pytest
import tensorflow as tf

from tests.unit.kernels import elementwise_programs as elementwise
from tests.unit.passes.compress import compression_testing as graphs
from tests.unit.passes.pass_testing import PS0, PS1, W0, device, trace
from tf_fuse.explain import rewrite

_GPU = device("worker", 0, "GPU")


def test_rows_travel_as_bfloat16_and_their_numbers_as_they_are():
    assert graphs.sent(lambda: graphs.used(graphs.rows(graphs.table()))) == {
        "ids": "int32",
        "rows": "bfloat16 by Cast",
    }


def test_the_receiver_widens_them():
    result = graphs.rewritten(lambda: graphs.used(graphs.rows(graphs.table())))
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
        handle = graphs.table(mark)
        ids = graphs.fed("ids")
        change = graphs.used(graphs.rows(handle, ids))
        with tf.device(PS0):
            tf.raw_ops.ResourceScatterSub(resource=handle, indices=ids, updates=change)

    plain = graphs.rewritten(lambda: build(""))
    assert {node.op for partition in plain.before.values() for node in partition.node} == {
        "_Arg", "Placeholder", "ResourceGather", "ResourceScatterSub", "Square", "_Recv", "_Send",
    }  # fmt: skip
    sent = {
        node.attr["T"].type for p in plain.before.values() for node in p.node if node.op == "_Send"
    }
    assert sent == {tf.float32.as_datatype_enum, tf.int32.as_datatype_enum}


@pytest.mark.parametrize("mark", ["", "float32"])
def test_a_variable_that_is_not_selected_is_left(mark):
    assert graphs.sent(lambda: graphs.used(graphs.rows(graphs.table(mark)))) == {
        "ids": "int32",
        "rows": "float32",
    }


@pytest.mark.parametrize("dtype", [tf.float64, tf.float16, tf.int64])
def test_other_types_are_left(dtype):
    def build():
        graphs.used(graphs.rows(graphs.table(dtype=dtype), dtype=dtype))

    assert graphs.sent(build) == {"ids": "int32", "rows": dtype.name}


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
        rows = graphs.rows(graphs.table())
        with tf.device(PS0):
            end = between(rows)
        graphs.used(end)

    assert graphs.sent(build) == {"ids": "int32", "end": "bfloat16 by Cast"}


def test_a_value_that_is_computed_from_rows_on_the_server_is_left():
    def build():
        graphs.used(graphs.used(graphs.rows(graphs.table()), PS0))

    assert graphs.sent(build) == {"ids": "int32", "used": "float32"}


def test_a_variable_that_is_read_whole_is_left():
    def build():
        with tf.device(PS0):
            value = tf.raw_ops.ReadVariableOp(
                resource=graphs.table(), dtype=tf.float32, name="read"
            )
        graphs.used(value)

    assert graphs.sent(build) == {"read": "float32"}


def test_rows_that_the_function_returns_are_left():
    def build():
        rows = graphs.rows(graphs.table())
        graphs.used(rows)
        graphs.returned(rows)

    assert graphs.sent(build) == {"ids": "int32", "rows": "float32"}


@pytest.mark.parametrize("job", ["chief", "evaluator", "ps"])
def test_rows_that_go_to_another_job_are_left(job):
    there = device(job, 1)

    def build():
        graphs.used(graphs.rows(graphs.table(), graphs.fed("ids", on=there)), there)

    assert graphs.sent(build) == {"ids": "int32", "rows": "float32"}


def test_rows_for_a_gpu_are_left():
    def build():
        handle = graphs.table()
        rows = graphs.rows(handle)
        with tf.device(_GPU):
            tf.identity(rows)

    assert graphs.sent(build)["rows"] == "float32"


@pytest.mark.parametrize("op", [tf.raw_ops.ResourceScatterAdd, tf.raw_ops.ResourceScatterSub])
def test_gradients_of_rows_are_rounded_without_feedback(op):
    sent = graphs.sent(
        lambda: graphs.scatter(op, graphs.table(), graphs.fed("ids"), graphs.gradient((3, 2)))
    )
    assert sent == {"ids": "int32", "gradient": "bfloat16 by Cast"}


def test_rows_that_are_assigned_are_left():
    op = tf.raw_ops.ResourceScatterUpdate
    sent = graphs.sent(
        lambda: graphs.scatter(op, graphs.table(), graphs.fed("ids"), graphs.gradient((3, 2)))
    )
    assert sent == {"ids": "int32", "gradient": "float32"}


def test_a_dense_gradient_is_rounded_with_feedback():
    sent = graphs.sent(lambda: graphs.assign(tf.raw_ops.AssignSubVariableOp, graphs.gradient()))
    assert sent == {"gradient": "bfloat16 by TfFuse>RoundWithFeedback"}


def test_the_gradient_of_an_optimizer_that_computes_on_the_server():
    def build():
        gradient = graphs.gradient()
        with tf.device(PS0):
            slot = graphs.table("", name="slot")
            change = tf.raw_ops.Mul(x=gradient, y=0.1)
            squared = tf.raw_ops.Square(x=gradient)
            tf.raw_ops.AssignAddVariableOp(resource=slot, value=squared)
            handle = graphs.table()
            old = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.raw_ops.Sub(x=old, y=change))

    result = graphs.rewritten(build)
    (narrow,) = (n for n in result.before[W0].node if n.op == "TfFuse>RoundWithFeedback")
    assert narrow.attr["key"].s.startswith(b"job/0#")
    (widened,) = (n for n in result.before[PS0].node if n.op == "Cast")
    readers = [n.op for n in result.before[PS0].node if widened.name in n.input]
    assert sorted(readers) == ["Mul", "Square"]


def test_a_value_that_is_assigned_is_left():
    sent = graphs.sent(lambda: graphs.assign(tf.raw_ops.AssignVariableOp, graphs.gradient()))
    assert sent == {"gradient": "float32"}


def test_a_variable_that_is_not_trained_is_left():
    sent = graphs.sent(
        lambda: graphs.assign(tf.raw_ops.AssignAddVariableOp, graphs.gradient(), mark="")
    )
    assert sent == {"gradient": "float32"}


@pytest.mark.parametrize("shape", [(), None])
def test_scalars_and_what_may_be_one_are_left(shape):
    def build():
        rate = graphs.gradient(shape)
        with tf.device(PS0):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=graphs.table(), alpha=rate, delta=tf.zeros([9, 2])
            )

    assert graphs.sent(build) == {"gradient": "float32"}


def test_a_gradient_of_a_selected_and_of_another_variable_is_left():
    def build():
        gradient = graphs.gradient()
        graphs.assign(tf.raw_ops.AssignSubVariableOp, gradient)
        graphs.assign(tf.raw_ops.AssignSubVariableOp, gradient, mark="float32", name="other")

    assert graphs.sent(build) == {"gradient": "float32"}


def test_a_gradient_that_a_server_returns_is_left():
    def build():
        gradient = graphs.gradient()
        with tf.device(PS0):
            there = tf.identity(gradient)
            tf.raw_ops.AssignSubVariableOp(resource=graphs.table(), value=there)
        graphs.returned(there)

    assert graphs.sent(build)["gradient"] == "float32"


def test_a_gradient_from_another_server_is_left():
    sent = graphs.sent(
        lambda: graphs.assign(tf.raw_ops.AssignSubVariableOp, graphs.gradient(on=PS1))
    )
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
        gradient = graphs.gradient()
        with tf.device(PS0):
            handle = graphs.table()
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

    assert graphs.sent(build) == {"gradient": "bfloat16 by TfFuse>RoundWithFeedback"}


def test_rows_that_an_update_of_a_whole_variable_sums_have_no_feedback():
    steps = [elementwise.assign(0, kind="Add")]
    program = elementwise.program_of(
        18, steps, variables=[tf.float32], inputs=[tf.float32],
        rows=9, indices=[tf.int32], sums=[(0, 0, "")],
    )  # fmt: skip

    def build():
        gradient, ids = graphs.gradient(), graphs.fed("ids")
        with tf.device(PS0):
            table = types.SimpleNamespace(handle=graphs.table())
            elementwise.call(program, [table], [gradient, ids])

    assert graphs.sent(build) == {"gradient": "bfloat16 by Cast", "ids": "int32"}


def test_rows_in_a_fused_receive_with_other_tensors():
    def build():
        ids = graphs.fed("ids")
        for name, mark, dtype in (
            ("plain", "", tf.float32),
            ("small", graphs.MARK, tf.float32),
            ("wide", "", tf.float64),
        ):
            graphs.used(graphs.rows(graphs.table(mark, dtype=dtype, name=name), ids, dtype=dtype))

    (group,) = graphs.rewritten(build).report.groups
    assert sorted(slot.dtype for slot in group.slots) == ["bfloat16", "double", "float"]


def test_small_operations_are_grouped_as_before():
    def build(mark):
        ids = [graphs.fed(f"ids_{i}") for i in range(6)]
        for i, of_table in enumerate(ids):
            handle = graphs.table(mark, name=f"table_{i}")
            change = graphs.used(graphs.rows(handle, of_table))
            graphs.scatter(tf.raw_ops.ResourceScatterSub, handle, of_table, change)

    def count(mark):
        graph = graphs.with_arguments(trace(lambda: build(mark)))
        groups = rewrite(graph, fuse_operations=True).report.operation_groups
        return [(one.device, sorted(one.operations)) for one in groups]

    lookups, updates = ["ResourceGather", "_Send"], ["ResourceScatterSub"]
    sends = [(W0, ["_Send"])] * 2  # ids, changes
    assert count("") == [(PS0, lookups), (PS0, updates), *sends]
    # Rows are rounded where they are gathered; gradients are widened as soon as they are there.
    assert sorted(count(graphs.MARK)) == [
        (PS0, ["Cast"]), (PS0, ["Cast", *lookups]), (PS0, updates), (W0, ["Cast"]), *sends,
    ]  # fmt: skip
