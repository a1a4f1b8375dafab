# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Traced functions: exactly which operations they are, and all error texts."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.unit.layout.trace.traced_lines import SPEC, lines
from tf_fuse.layout import LayoutError
from tf_fuse.layout.operators import rule_of
from tf_fuse.layout.trace.function import trace


def test_a_layer():
    w = tf.Variable(tf.ones([4, 16]), name="w")
    b = tf.Variable(tf.ones([16]), name="b")

    def layer(x):
        return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, w), b))

    traced = trace(layer, [SPEC])
    assert lines(traced) == [
        "Placeholder x()",
        "Variable w()",
        "Variable b()",
        "ReadVariableOp MatMul/ReadVariableOp(w)",
        "MatMul MatMul(x, MatMul/ReadVariableOp) transpose_a=False transpose_b=False",
        "ReadVariableOp BiasAdd/ReadVariableOp(b)",
        "BiasAdd BiasAdd(MatMul, BiasAdd/ReadVariableOp) data_format=NHWC",
        "Relu Relu(BiasAdd)",
        "Identity Identity(Relu)",
    ]
    assert (traced.name, traced.inputs, traced.variables) == ("layer", ("x",), ("w", "b"))
    assert (traced.writes, traced.results, traced.left_out) == ((), ("Identity",), ())
    tensors = traced.tensors
    assert tensors["w"].parameter and not tensors["x"].parameter
    assert (tensors["w"].shape, tensors["w"].dtype) == ((4, 16), "float32")
    assert tensors["Relu"].shape == (8, 16)


def test_a_training_step():
    w = tf.Variable(tf.ones([4, 16]), name="w")

    @tf.function(input_signature=[SPEC])
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(x, w))
        w.assign_sub(tape.gradient(loss, w))
        return loss

    traced = trace(step)
    assert lines(traced) == [
        "Placeholder x()",
        "Variable w()",
        "ReadVariableOp MatMul/ReadVariableOp(w)",
        "MatMul MatMul(x, MatMul/ReadVariableOp) transpose_a=False transpose_b=False",
        "Sum Sum(MatMul) axes=(0, 1) keep_dims=False",
        "Const ones()",
        "Reshape gradient_tape/Reshape(ones)",
        "Tile gradient_tape/Tile(gradient_tape/Reshape) multiples=(8, 16)",
        "MatMul gradient_tape/MatMul/MatMul(x, gradient_tape/Tile) transpose_a=True "
        "transpose_b=False",
        "AssignSubVariableOp w by AssignSubVariableOp(w, gradient_tape/MatMul/MatMul)",
        "Identity Identity(Sum)",
    ]
    assert traced.writes == (("w", "w by AssignSubVariableOp"),)
    assert trace(step.get_concrete_function()) == traced


def test_calls_are_what_they_call():
    w = tf.Variable(tf.ones([4, 4]), name="w")

    @tf.function
    def inner(x):
        return tf.matmul(x, w)

    traced = trace(lambda x: inner(inner(x)), [SPEC])
    assert lines(traced) == [
        "Placeholder x()",
        "Variable w()",
        "ReadVariableOp StatefulPartitionedCall/MatMul/ReadVariableOp(w)",
        "MatMul StatefulPartitionedCall/MatMul(x, StatefulPartitionedCall/MatMul/ReadVariableOp) "
        "transpose_a=False transpose_b=False",
        "Identity StatefulPartitionedCall/Identity(StatefulPartitionedCall/MatMul)",
        "ReadVariableOp StatefulPartitionedCall_1/MatMul/ReadVariableOp(w)",
        "MatMul StatefulPartitionedCall_1/MatMul(StatefulPartitionedCall/Identity, "
        "StatefulPartitionedCall_1/MatMul/ReadVariableOp) transpose_a=False transpose_b=False",
        "Identity StatefulPartitionedCall_1/Identity(StatefulPartitionedCall_1/MatMul)",
        "Identity Identity(StatefulPartitionedCall_1/Identity)",
    ]


def test_readers_behind_a_write_read_what_was_written():
    w = tf.Variable(tf.ones([4]), name="w")

    def f(x):
        before = w + 1.0
        w.assign(x)
        w.assign_add(before)
        return w * 2.0

    traced = trace(f, [tf.TensorSpec([4])])
    assert lines(traced) == [
        "Placeholder x()",
        "Variable w()",
        "ReadVariableOp ReadVariableOp(w)",
        "Const add/y()",
        "AddV2 add(ReadVariableOp, add/y)",
        "AssignVariableOp w by AssignVariableOp(x)",
        "AssignAddVariableOp w by AssignAddVariableOp(w by AssignVariableOp, add)",
        "ReadVariableOp ReadVariableOp_1(w by AssignAddVariableOp)",
        "Const mul/y()",
        "Mul mul(ReadVariableOp_1, mul/y)",
        "Identity Identity(mul)",
    ]
    assert traced.writes == (("w", "w by AssignAddVariableOp"),)


def test_updates_write_the_variable_and_its_slots():
    w, m, v = (tf.Variable(tf.ones([4]), name=name) for name in "wmv")

    def f(g):
        for one in (w, m, v):
            one.read_value()  # TensorFlow knows variables that are read.
        tf.raw_ops.ResourceApplyAdam(
            var=w.handle, m=m.handle, v=v.handle, beta1_power=0.9, beta2_power=0.9, lr=0.1,
            beta1=0.9, beta2=0.9, epsilon=0.1, grad=g,
        )  # fmt: skip

    traced = trace(f, [tf.TensorSpec([4])])
    (update,) = [one for one in traced.operations if one.kind == "ResourceApplyAdam"]
    assert [one.name for one in update.inputs[:3]] == ["w", "m", "v"]
    assert update.inputs[-1].name == "g"
    assert traced.writes == tuple((one, f"{one} by ResourceApplyAdam") for one in "wmv")
    rule_of(update)


def test_equal_names_get_numbers():
    variables = [tf.Variable(tf.ones([4]), name="x") for _ in range(2)]
    traced = trace(lambda x: x + variables[0] + variables[1], [tf.TensorSpec([4], name="x")])
    assert (traced.inputs, traced.variables) == (("x",), ("x_1", "x_2"))


def test_a_variable_that_is_an_argument_or_captured_twice_is_one():
    w = tf.Variable(tf.ones([4, 4]), name="w")
    traced = trace(lambda x: tf.matmul(x, w) + tf.matmul(x, w), [SPEC])
    assert traced.variables == ("w",)
    traced = trace(lambda x, v: tf.matmul(x, v), [SPEC, w])
    assert (traced.inputs, traced.variables) == (("x",), ("v",))
    assert traced.tensors["v"].shape == (4, 4)


def test_captured_tensors_are_constants():
    table = tf.constant(np.arange(4.0, dtype=np.float32))
    traced = trace(lambda x: x + table, [SPEC])
    assert [str(one) for one in traced.operations][:2] == ["Placeholder 'x'", "Const 'add/y'"]


def test_what_is_not_used_is_no_operation():
    traced = trace(lambda x, unused: (tf.print(x), tf.exp(x), tf.nn.relu(x))[2], [SPEC, SPEC])
    assert [one.kind for one in traced.operations] == ["Placeholder", "Relu", "Identity"]
    assert traced.inputs == ("x",)
    assert (traced.effects, traced.left_out) == (("PrintV2 'PrintV2'",), ())
    assert traced.observed == ("x",)


def test_gradients_of_broadcasting():
    """Their axes are computed of shapes that TensorFlow does not fold."""
    w = tf.Variable(tf.ones([4, 5]), name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(x, w))
        return tape.gradient(loss, w)

    traced = trace(step, [tf.TensorSpec([2, 3, 4])])
    kinds = [one.kind for one in traced.operations]
    assert "BroadcastGradientArgs" not in kinds and traced.unknown == {}
    (total,) = [one for one in traced.operations if one.kind == "Sum" and "gradient" in one.name]
    assert (total.attribute("axes"), total.outputs[0].shape) == ((0,), (4, 5))


def test_errors():
    def error(*args) -> str:
        with pytest.raises(LayoutError) as caught:
            trace(*args)
        return str(caught.value)

    def f(x):
        return tf.nn.relu(x)

    assert error(f, [tf.TensorSpec([None, 4])]) == (
        "input 'x' has shape [None, 4]; a plan needs whole shapes: give it as a tf.TensorSpec with "
        "all sizes in args or in the function's input_signature"
    )
    assert error(f, [tf.TensorSpec(None)]) == (
        "input 'x' has an unknown shape; a plan needs whole shapes: give it as a tf.TensorSpec "
        "with all sizes in args or in the function's input_signature"
    )
    assert error(lambda x: tf.exp(tf.boolean_mask(x, x > 0)), [SPEC]).startswith(
        "tensor 'boolean_mask/Where' of Where 'boolean_mask/Where' has shape [None, 1], which is "
        "not known before the function runs; a plan needs whole shapes: keep it "
        "and what depends on it out of the function, or mask by tf.where with three arguments"
    )
    assert error(f, [tf.TensorSpec([0, 4])]) == (
        "input 'x' has shape [0, 4], and so no elements, and a plan is for tensors that have some; "
        "leave empty batches out, and keep empty tensors outside of the function"
    )
    words = "is of type 'string', and plans are for numbers; do what is done with it outside of "
    words += "the function, and feed it numbers"
    assert (
        error(tf.strings.as_string, [SPEC]) == f"tensor 'AsString' of AsString 'AsString' {words}"
    )
    assert error(tf.strings.length, [tf.TensorSpec([4], tf.string)]) == f"input 'input' {words}"
    names = tf.Variable(["a"], name="names")
    assert error(lambda x: (x, names.read_value()), [SPEC]) == f"variable 'names' {words}"
    assert error(3) == "a function is planned, got 3; give a tf.function, or a callable"
    assert error(f, []).startswith("'f' cannot be traced: ")
    assert error(f, []).endswith(
        "; give its arguments as tf.TensorSpec in args, or an input_signature to its tf.function"
    )


def test_sparse_and_ragged_arguments_are_errors_that_name_their_type():
    """Their components have no size, so a tf.TensorSpec cannot help."""
    sparse, ragged = tf.SparseTensorSpec([8, 4]), tf.RaggedTensorSpec([4, None])

    def step(x, s, r):
        return x, s.values[1:], r.values

    with pytest.raises(LayoutError) as caught:
        trace(step, [tf.TensorSpec([None]), sparse], {"r": ragged})
    words = "and plans are for dense tensors of whole shapes; make it dense before the function"
    assert sorted(caught.value.problems) == [
        f"input 'r' is of a RaggedTensor, {words}",
        f"input 's_1' is of a SparseTensor, {words}",
        "input 'x' has shape [None]; a plan needs whole shapes: give it as a tf.TensorSpec with "
        "all sizes in args or in the function's input_signature",
    ]


def test_a_slice_of_an_unknown_size_reports_where_the_size_is_lost():
    with pytest.raises(LayoutError) as caught:
        trace(lambda x: tf.boolean_mask(x, x > 0)[1:], [tf.TensorSpec([8])])
    assert caught.value.problems[0].startswith(
        "tensor 'boolean_mask/Where' of Where 'boolean_mask/Where' has shape [None, 1], which is "
    )


def test_what_an_unknown_size_makes_unknown_is_not_reported_beside_it():
    """Such as gradients of a sum and of a broadcast, which are as long as another tensor's size."""
    w = tf.Variable(tf.ones([4, 8]), name="w")

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((tf.matmul(x, w) - y) ** 2)
        return tape.gradient(loss, w)

    with pytest.raises(LayoutError) as caught:
        trace(step, [tf.TensorSpec([None, 4]), tf.TensorSpec([8])])
    (problem,) = caught.value.problems
    assert problem.startswith("input 'x' has shape [None, 4]; ")


def test_distinct_rows_of_a_gradient_are_an_error_that_says_how_to_do_without():
    """Optimizers of tf_keras make them of gradients of tables."""
    with pytest.raises(LayoutError) as caught:
        trace(lambda ids: tf.unique(ids)[0] * 2, [tf.TensorSpec([8], tf.int32)])
    (problem,) = caught.value.problems
    assert problem == (
        "tensor 'Unique' of Unique 'Unique' has shape [None], which is not known before the "
        "function runs; a plan needs whole shapes: if an optimizer makes it of a table's gradient, "
        "give it tf.convert_to_tensor(gradient); else keep it out of the function"
    )
