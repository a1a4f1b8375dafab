# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Traced functions: exactly which operations they are, and all error texts."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tf_fuse.layout import LayoutError
from tf_fuse.layout.operators import rule_of
from tf_fuse.layout.trace.function import trace

SPEC = tf.TensorSpec([8, 4])


def lines(traced) -> list[str]:
    """Each operation in a line: kind, what it makes, of what, attributes."""
    return [
        f"{one.kind} {', '.join(t.name for t in one.outputs)}"
        f"({', '.join(t.name for t in one.inputs)})"
        + "".join(f" {name}={value}" for name, value in one.attributes)
        for one in traced.operations
    ]


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


# A function of x [8, 4], the kind of the operation, its inputs' shapes, and its attributes.
KINDS = {
    "mean": (lambda x: tf.reduce_mean(x, -1, keepdims=True), "Mean", [(8, 4)],
             {"axes": -1, "keep_dims": True}),
    "transpose": (lambda x: tf.transpose(x, [1, 0]), "Transpose", [(8, 4)], {"perm": (1, 0)}),
    "concat": (lambda x: tf.concat([x, x], 1), "ConcatV2", [(8, 4)] * 2, {"axis": 1}),
    "split": (lambda x: tf.split(x, 2, 1)[0], "Split", [(8, 4)], {"axis": 1}),
    "splits": (lambda x: tf.split(x, [1, 3], 1)[1], "SplitV", [(8, 4)], {"axis": 1}),
    "stack": (lambda x: tf.stack([x, x], 1), "Pack", [(8, 4)] * 2, {"axis": 1}),
    "gather": (lambda x: tf.gather(x, tf.cast(x[:, 0], tf.int32), axis=1, batch_dims=1),
               "GatherV2", [(8, 4), (8,)], {"axis": 1, "batch_dims": 1}),
    "slice": (lambda x: tf.slice(x, [2, 0], [3, 4]), "Slice", [(8, 4)], {"begin": (2, 0)}),
    "row": (lambda x: x[-1], "StridedSlice", [(8, 4)],
            {"begin": (7, 0), "shrink": (0,), "strides": (1, 1)}),
    "column": (lambda x: x[..., 1], "StridedSlice", [(8, 4)],
               {"begin": (0, 1), "shrink": (1,), "strides": (1, 1)}),
    "steps": (lambda x: x[:, ::2], "StridedSlice", [(8, 4)],
              {"begin": (0, 0), "shrink": (), "strides": (1, 2)}),
    "pad": (lambda x: tf.pad(x, [[0, 0], [1, 2]]), "Pad", [(8, 4)],
            {"paddings": ((0, 0), (1, 2))}),
    "tile": (lambda x: tf.tile(x, [1, 3]), "Tile", [(8, 4)], {"multiples": (1, 3)}),
    "one hot": (lambda x: tf.one_hot(tf.cast(x[:, 0], tf.int32), 5), "OneHot", [(8,), (), ()],
                {"axis": -1}),
    "cumsum": (lambda x: tf.cumsum(x, 1), "Cumsum", [(8, 4)], {"axis": 1}),
    "roll": (lambda x: tf.roll(x, [2], [1]), "Roll", [(8, 4)], {"axis": (1,)}),
    "argmax": (lambda x: tf.argmax(x, 1), "ArgMax", [(8, 4)], {"axis": 1}),
    "top": (lambda x: tf.math.top_k(x, 2).values, "TopKV2", [(8, 4)], {}),
    "reshape": (lambda x: tf.reshape(x, [2, -1]), "Reshape", [(8, 4)], {}),
    "expand": (lambda x: tf.expand_dims(x, 1), "ExpandDims", [(8, 4)], {}),
    "broadcast": (lambda x: tf.broadcast_to(x, [3, 8, 4]), "BroadcastTo", [(8, 4)], {}),
    "fill": (lambda x: tf.fill([8, 4], x[0, 0]), "BroadcastTo", [()], {}),
    "checked": (lambda x: tf.debugging.check_numerics(x, "no"), "Identity", [(8, 4)], {}),
    "einsum": (lambda x: tf.einsum("ab,cb->ac", x, x), "Einsum", [(8, 4)] * 2,
               {"equation": "ab,cb->ac"}),
    "batches": (lambda x: tf.matmul(x[None], x[None], adjoint_b=True), "BatchMatMulV2",
                [(1, 8, 4)] * 2, {"adj_x": False, "adj_y": True}),
    "convolution": (lambda x: tf.nn.conv2d(x[None, :, :, None], tf.ones([3, 3, 1, 2]), 1, "SAME"),
                    "Conv2D", [(1, 8, 4, 1), (3, 3, 1, 2)],
                    {"data_format": "NHWC", "dilations": (1,) * 4, "strides": (1,) * 4}),
    "pooling": (lambda x: tf.nn.max_pool2d(x[None, :, :, None], 2, 2, "VALID"), "MaxPool",
                [(1, 8, 4, 1)],
                {"data_format": "NHWC", "ksize": (1, 2, 2, 1), "strides": (1, 2, 2, 1)}),
    "segments": (lambda x: tf.math.unsorted_segment_sum(x, tf.cast(x[:, 0], tf.int32), 5),
                 "UnsortedSegmentSum", [(8, 4), (8,)], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_attributes(name):
    function, kind, shapes, attributes = KINDS[name]
    traced = trace(function, [tf.TensorSpec([8, 4], name="x")])
    found = [one for one in traced.operations if one.kind == kind]
    one = next(one for one in found if [t.shape for t in one.inputs] == shapes)
    assert dict(one.attributes) == attributes
    assert rule_of(one).known


def test_gradients_of_slices_and_images_have_rules():
    def f(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            image = tf.reshape(x[:, 1:], [1, 8, 3, 1])
            y = tf.nn.avg_pool2d(
                tf.nn.conv2d(image, tf.ones([3, 3, 1, 2]), 1, "SAME"), 1, 1, "SAME"
            )
            loss = tf.reduce_sum(y)
        return tape.gradient(loss, x)

    traced = trace(f, [tf.TensorSpec([8, 4], name="x")])
    kinds = [one.kind for one in traced.operations]
    assert {"StridedSliceGrad", "AvgPoolGrad", "Conv2DBackpropInput"} <= set(kinds)
    assert traced.unknown == {}
    for one in traced.operations:
        rule_of(one)


def test_operations_without_a_rule_are_kept():
    def f(x):
        return tf.linalg.inv(x[:4]), tf.reverse(x, tf.cast(x[0, :1], tf.int32))

    traced = trace(f, [SPEC])
    assert traced.unknown == {
        "MatrixInverse": ("MatrixInverse",),
        "ReverseV2 with computed axis": ("ReverseV2",),
    }


def test_loops_and_conditionals_are_single_operations():
    w = tf.Variable(tf.ones([8, 4]), name="w")

    @tf.function
    def loop(x):
        for _ in tf.range(3):
            x = tf.nn.relu(x)
            w.assign_add(x)
        return x + w

    traced = trace(loop, [SPEC])
    (one,) = [one for one in traced.operations if one.kind == "While"]
    assert {"x", "w"} <= {tensor.name for tensor in one.inputs}
    assert traced.unknown == {"While": ("while",)}
    assert traced.writes == (("w", "w by while"),)
    (add,) = [one for one in traced.operations if one.kind == "AddV2"]
    assert [tensor.shape for tensor in add.inputs] == [(8, 4), (8, 4)]
    (read,) = [one for one in traced.operations if one.kind == "ReadVariableOp"]
    assert read.inputs[0].name == "w by while"

    @tf.function
    def conditional(x):
        return x + w if tf.reduce_sum(x) > 0 else x

    traced = trace(conditional, [SPEC])
    assert traced.unknown == {"If": ("cond",)}


def test_lists_of_loops_keep_the_order():
    """A recurrent layer: the loop reads a list that it does not make, and makes another."""
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input([5, 3]), layers.LSTM(4)])
    traced = trace(model, [tf.TensorSpec([8, 5, 3])])
    assert set(traced.unknown) == {
        "TensorListFromTensor", "TensorListReserve", "TensorListStack", "While"
    }  # fmt: skip
    assert len(traced.variables) == 3


def test_gradients_of_loops_follow_what_they_need():
    """The gradient gives the loop lists that are made after it; they come before it."""
    w = tf.Variable(tf.eye(4), name="w")

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            for _ in tf.range(3):
                x = tf.tanh(x @ w)
            loss = tf.reduce_sum(x)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    traced = trace(step, [SPEC])
    assert set(traced.unknown) == {"EmptyTensorList", "StatelessWhile", "While"}
    assert traced.variables == ("w",)
    assert [variable for variable, _ in traced.writes] == ["w"]
    made: set[str] = set()
    for one in traced.operations:
        assert {tensor.name for tensor in one.inputs} <= made, one.name
        made |= {tensor.name for tensor in one.outputs}


def test_a_keras_transformer_has_rules():
    keras = tf.keras
    first = keras.Input((6, 16))
    both = keras.layers.LayerNormalization()(
        first + keras.layers.MultiHeadAttention(2, 8)(first, first)
    )
    last = keras.layers.Dense(16)(keras.layers.Dense(32, "gelu")(both))
    model = keras.Model(first, keras.layers.LayerNormalization()(both + last))
    optimizer = keras.optimizers.AdamW()
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    spec = tf.TensorSpec([8, 6, 16])
    assert trace(step, [spec, spec]).unknown == {}


def test_a_keras_model_and_its_optimizer():
    keras = tf.keras
    model = keras.Sequential(
        [keras.Input([4]), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)]
    )
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    traced = trace(step, [SPEC, tf.TensorSpec([8], tf.int32)])
    assert traced.unknown == {}
    assert set(traced.variables) == {one.path for one in [*model.variables, *optimizer.variables]}
    written = {variable for variable, _ in traced.writes}
    assert set(traced.variables) - written == {optimizer._learning_rate.path}
    forward = trace(model, [SPEC])
    assert [one.kind for one in forward.operations if one.inputs] == [
        "ReadVariableOp", "MatMul", "ReadVariableOp", "BiasAdd", "Relu",
        "ReadVariableOp", "MatMul", "ReadVariableOp", "BiasAdd", "Identity",
    ]  # fmt: skip


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
