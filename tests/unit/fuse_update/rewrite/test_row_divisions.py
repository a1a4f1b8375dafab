# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras 3's division of rows by a whole table: it is recognised, and joined rows are Keras's."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_fuse import _native
from tf_fuse.function_graph.function_lookup import op_defs, partial_shapes, static_shapes
from tf_fuse.function_graph.view import GraphView
from tf_fuse.fuse_update.analysis.keras_row_division import divisions
from tf_fuse.fuse_update.rewrite.row_divisions import replace_divisions

_ROWS, _WIDTH = 6, 3


def _traced(count, index_type, edit=None):
    """A function that divides rows by a table, and the bodies of those that it calls."""
    _native.load()

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec([count, _WIDTH], tf.float32),
            tf.TensorSpec([count], index_type),
            tf.TensorSpec([_ROWS, _WIDTH], tf.float32),
        ],
    )
    def divide(values, indices, divisor):
        shape = tf.constant([_ROWS, _WIDTH], index_type)
        quotient = keras.ops.divide(tf.IndexedSlices(values, indices, shape), divisor)
        return quotient.values, quotient.indices

    concrete = divide.get_concrete_function()
    library = concrete.graph.as_graph_def().library.function
    bodies = {one.signature.name: one for one in library}
    if edit is not None:
        edit(bodies)
    view = GraphView(concrete.function_def, op_defs(bodies.get))
    return view, concrete.graph, bodies


def _found(view, graph, bodies):
    return list(divisions(view, static_shapes(view, graph), bodies.get))


@pytest.mark.parametrize("count", [4, None])
@pytest.mark.parametrize("index_type", [tf.int32, tf.int64])
def test_a_division_is_found(count, index_type):
    view, graph, bodies = _traced(count, index_type)
    (found,) = _found(view, graph, bodies)
    assert (found.values, found.indices, found.divisor) == ("values", "indices", "divisor")
    assert view.producer(found.flags).op == "LogicalOr"
    shapes = static_shapes(view, graph)
    new = replace_divisions(view, shapes, partial_shapes(view, graph), [found]).without_dead(_all)
    assert [node.op for node in new.view.nodes.values() if node.op in ("If", "StatelessIf")] == []
    assert new.view.producer(new.view.results[0]).op == "Identity"
    assert new.partial(f"{found.node}:z:0") == (None, _WIDTH)


def _all(view, with_results):
    return set(view.nodes)


def _other_constant(bodies):
    for body in bodies.values():
        for node in body.node_def:
            if node.name.endswith("range/start"):
                node.attr["value"].tensor.int_val[0] = 2


def _other_operation(bodies):
    for body in bodies.values():
        for node in body.node_def:
            if node.op == "RealDiv":
                node.op = "Mul"


def _other_order(bodies):
    for body in bodies.values():
        for node in body.node_def:
            if node.op == "LogicalOr":
                node.op = "LogicalAnd"


def _other_attribute(bodies):
    for body in bodies.values():
        for node in body.node_def:
            if node.op == "Squeeze":
                del node.attr["squeeze_dims"].list.i[:]


@pytest.mark.parametrize(
    "edit", [_other_attribute, _other_constant, _other_operation, _other_order]
)
def test_another_division_is_left(edit):
    assert len(_found(*_traced(None, tf.int64))) == 1
    assert _found(*_traced(None, tf.int64, edit)) == []


# --- The operation -----------------------------------------------------------------------------


def _keras(values, indices, divisor):
    slices = tf.IndexedSlices(values, indices, tf.constant([_ROWS, _WIDTH], tf.int64))
    quotient = keras.ops.divide(slices, divisor)
    return quotient.values.numpy(), quotient.indices.numpy()


def _ours(values, indices, divisor):
    flags = tf.logical_or(tf.equal(divisor, 0), tf.math.is_nan(divisor))
    rows, numbers = _native.load().tf_fuse_join_rows(flags=flags, indices=indices, values=values)
    return (rows / tf.gather(divisor, numbers)).numpy(), numbers.numpy()


def _case(indices, zeros=(), nans=(), index_type="int64"):
    values = tf.range(1.0, len(indices) * _WIDTH + 1.0)
    divisor = np.full([_ROWS, _WIDTH], 0.75, "float32")
    for row in zeros:
        divisor[row, row % _WIDTH] = 0.0
    for row in nans:
        divisor[row, -1] = np.nan
    numbers = tf.constant(indices, index_type)
    return tf.reshape(values, [-1, _WIDTH]), numbers, tf.constant(divisor)


@pytest.mark.parametrize("index_type", ["int32", "int64"])
@pytest.mark.parametrize(
    "case",
    [
        {"indices": [4, 1, 2]},
        {"indices": []},
        {"indices": [4, 1, 1]},
        {"indices": [4, 1, 2], "zeros": [0, 5]},
        {"indices": [4, 1, 2], "nans": [3], "zeros": [1]},
        # As many rows as before: Keras leaves values in their order.
        {"indices": [4, 1, 2], "zeros": [4]},
        # A number twice stands for another row.
        {"indices": [4, 1, 1, 0, 5], "zeros": [0]},
        {"indices": [5, 4, 3, 2, 1, 0], "nans": [0, 1, 2, 3, 4, 5]},
    ],
)
def test_joined_rows_are_those_of_keras(case, index_type):
    given = _case(**case, index_type=index_type)
    for ours, theirs in zip(_ours(*given), _keras(*given), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.shape == theirs.shape


@pytest.mark.parametrize(
    "case",
    [
        # 1 + 2 + 3 + 4 of 5 rows.
        {"indices": [2, 2, 2, 2, 1], "zeros": [0]},
        {"indices": [], "zeros": [0]},
    ],
)
def test_what_is_an_error_in_keras_is_one_here(case):
    given = _case(**case)
    for divide in (_keras, _ours):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[.*\] = .* is not in"):
            divide(*given)


@pytest.mark.parametrize("index", [-1, _ROWS])
def test_rows_that_are_not_there(index):
    given = _case([1, index])
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"\] = {index} is not in \[0, 6\)"):
        _ours(*given)


def test_values_that_are_not_of_the_rows():
    values, indices, divisor = _case([1, 2])
    flags = tf.zeros(divisor.shape, tf.bool)
    with pytest.raises(tf.errors.InvalidArgumentError, match="for 2 rows of 3 elements"):
        _native.load().tf_fuse_join_rows(flags=flags, indices=indices, values=values[:1])
