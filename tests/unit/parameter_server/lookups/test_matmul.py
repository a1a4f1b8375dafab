# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Products with a variable in pieces: values, gradients, and that nothing is put together."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.eager import context

import tf_fuse  # noqa: F401  (adds the option)


@pytest.fixture
def option():
    tf.config.optimizer.set_experimental_options({"split_matmuls": True})
    yield
    tf.config.optimizer.set_experimental_options({"split_matmuls": False})


def _set(on):
    tf.config.optimizer.set_experimental_options({"split_matmuls": on})


def needed(graph):
    """Kinds of the operations that a function's results need."""
    found, waiting = {}, [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    while waiting:
        op = waiting.pop()
        if op.name not in found:
            found[op.name] = op.type
            waiting += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return list(found.values())


def _sharded(rows, columns, pieces, dtype=tf.float32, seed=0):
    value = np.random.default_rng(seed).standard_normal([rows, columns])
    parts = np.array_split(value, pieces)
    return ShardedVariable([tf.Variable(part, dtype=dtype) for part in parts])


def _run(body, on):
    """What a function returns, the operations that its results need, and those that ran."""
    _set(on)
    try:
        function = tf.function(body)
        traced = needed(function.get_concrete_function().graph)
        context.context().enable_run_metadata()
        values = [v.numpy() for v in tf.nest.flatten(function())]
        graphs = context.context().export_run_metadata().partition_graphs
        context.context().disable_run_metadata()
        return values, traced, [node.op for graph in graphs for node in graph.node]
    finally:
        _set(False)


def _step(x, sharded, transpose_b=False, cast=None):
    """A product and the gradients of what goes into it."""

    def body():
        with tf.GradientTape() as tape:
            tape.watch(x)
            w = sharded if cast is None else tf.cast(tf.convert_to_tensor(sharded), cast)
            y = tf.matmul(x, w, transpose_b=transpose_b)
            loss = tf.reduce_sum(tf.cast(y, tf.float32) ** 2)
        return y, *tape.gradient(loss, [x, *sharded.variables])

    return body


def _units(ours, stock):
    """The largest difference, in units in the last place of the largest element."""
    return float(np.max(np.abs(ours - stock)) / np.spacing(np.max(np.abs(stock))))


@pytest.mark.parametrize("pieces", [2, 3, 7])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_values_and_gradients(pieces, transpose_b):
    sharded = _sharded(64, 48, pieces)
    columns = 48 if transpose_b else 64
    x = tf.constant(np.random.default_rng(1).standard_normal([32, columns]), tf.float32)
    stock, traced, _ = _run(_step(x, sharded, transpose_b), on=False)
    assert traced.count("MatMul") == 3
    ours, traced, _ = _run(_step(x, sharded, transpose_b), on=True)
    assert traced.count("MatMul") == 3 * pieces
    assert [one.shape for one in ours] == [one.shape for one in stock]
    for mine, theirs in zip(ours[:1], stock[:1], strict=True):
        assert _units(mine, theirs) <= 10


def test_the_variable_is_not_put_together():
    sharded = _sharded(64, 48, 2)
    x = tf.ones([4, 64])

    def body():
        return tf.matmul(x, sharded)

    assert _run(body, on=False)[2].count("ConcatV2") == 1
    assert _run(body, on=True)[2].count("ConcatV2") == 0


def test_gradients_are_not_cut():
    sharded, x = _sharded(64, 48, 2), tf.ones([4, 64])
    slices = [_run(_step(x, sharded), on=on)[2].count("Slice") for on in (False, True)]
    assert slices == [2, 0]


def test_whole_numbers_have_the_same_bits():
    # No sum is rounded, so the order makes no difference.
    sharded = ShardedVariable(
        [tf.Variable(tf.reshape(tf.range(i, i + 12.0), [4, 3])) for i in range(3)]
    )
    x = tf.reshape(tf.range(24.0), [2, 12])
    ours, stock = (_run(_step(x, sharded), on=on)[0] for on in (True, False))
    for mine, theirs in zip(ours, stock, strict=True):
        assert mine.tobytes() == theirs.tobytes()


def test_a_narrower_type_is_cast_by_pieces():
    sharded = _sharded(16, 8, 2)
    x = tf.ones([4, 16], tf.float16)
    ours, traced, _ = _run(_step(x, sharded, cast=tf.float16), on=True)
    assert traced.count("MatMul") == 6 and "Slice" not in traced
    stock, _, _ = _run(_step(x, sharded, cast=tf.float16), on=False)
    assert [one.dtype for one in ours] == [one.dtype for one in stock]
    np.testing.assert_allclose(ours[0], stock[0], rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("rank", [2, 3])
def test_a_dense_layer(rank, option):
    layer = tf_keras.layers.Dense(3)
    layer.build([None, 8])
    kernel = layer.kernel.numpy()
    layer.kernel = ShardedVariable([tf.Variable(part) for part in np.array_split(kernel, 2)])
    x = tf.random.stateless_normal([5] * (rank - 1) + [8], [1, 2])
    values, traced, ran = _run(lambda: layer(x), on=True)
    assert traced.count("MatMul") == 2 and "ConcatV2" not in ran
    np.testing.assert_allclose(values[0], np.asarray(x) @ kernel, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_session_puts_pieces_together(axis, option):
    # Its graph can grow for ever, so a gradient of the whole may be asked for at any time.
    def build(graph):
        with graph.as_default():
            partitioner = tf.compat.v1.fixed_size_partitioner(2, axis=axis)
            w = tf.compat.v1.get_variable(
                "w", [6, 4], partitioner=partitioner, initializer=tf.ones_initializer()
            )
            y = tf.matmul(tf.reshape(tf.range(12.0), [2, 6]), w)
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                return session.run(y)

    graph = tf.Graph()
    assert build(graph).tolist() == [[15.0] * 4, [51.0] * 4]
    assert [op.type for op in graph.get_operations()].count("MatMul") == 1


def test_other_products_are_as_they_were(option):
    x, w = tf.Variable(tf.ones([2, 3])), tf.Variable(tf.ones([3, 2]))
    sharded = _sharded(4, 2, 2)

    @tf.function
    def body(y):
        both = tf.concat([y, y], 0)
        return (
            tf.matmul(x, w),
            tf.matmul(x, tf.concat([y, y[:1]], 0)),
            tf.matmul(both, sharded, transpose_a=True),
            tf.matmul(tf.ones([2, 2, 4]), tf.convert_to_tensor(sharded)),
        )

    graph = body.get_concrete_function(tf.ones([2, 2])).graph
    kinds = [op.type for op in graph.get_operations()]
    assert kinds.count("MatMul") == 3 and kinds.count("BatchMatMulV2") == 1
    assert tf.matmul(tf.ones([1, 4]), sharded).shape == [1, 2]
