# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Distinct rows have a whole shape in a trace, unless something sees how many there are."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tf_fuse.layout import LayoutError
from tf_fuse.layout.trace.function import trace
from tf_fuse.layout.types.operation import DISTINCT_ROWS

IDS = [tf.TensorSpec([6], tf.int32)]


def test_sums_and_updates_of_distinct_rows_have_a_row_for_each_number():
    table = tf.Variable(tf.ones([8, 4]), name="table")

    def step(ids):
        distinct, places = tf.unique(ids)
        rows = tf.math.unsorted_segment_sum(tf.ones([6, 4]), places, tf.shape(distinct)[0])
        rows /= tf.sqrt(tf.gather(table, tf.reshape(distinct, [-1]))) + 1.0
        table.scatter_sub(tf.IndexedSlices(rows, distinct))

    traced = trace(step, IDS)
    shapes = {one.kind: one.outputs[0].shape for one in traced.operations}
    marked = {one.kind for one in traced.operations if one.attribute(DISTINCT_ROWS)}
    assert marked == {"Unique", "ResourceGather", "ResourceScatterSub"}
    assert {shapes[kind] for kind in ("UnsortedSegmentSum", "ResourceGather", "RealDiv")} == {
        (6, 4)
    }
    assert traced.unknown == {"Unique": ("Unique",)}


def test_two_lookups_of_one_distinct_row_are_planned():
    table = tf.Variable(tf.ones([8, 4]), name="table")

    def looked_up(ids):
        distinct, places = tf.unique(ids)
        return tf.gather(tf.gather(table, distinct), places)

    (result,) = trace(looked_up, IDS).results
    assert trace(looked_up, IDS).tensors[result].shape == (6, 4)


def _rows(ids):
    """One row for each distinct number."""
    distinct, places = tf.unique(ids)
    return tf.math.unsorted_segment_sum(tf.ones([6, 4]), places, tf.shape(distinct)[0])


TABLE = tf.zeros([8, 4])
MIXED = {
    "returned": _rows,
    "count": lambda ids: tf.shape(tf.unique(ids)[0])[0],
    "mean": lambda ids: tf.reduce_mean(_rows(ids)),
    "last": lambda ids: _rows(ids)[-1],
    "other rows": lambda ids: tf.reduce_sum(tf.gather(_rows(ids) + tf.ones([6, 4]), [0])),
    "product": lambda ids: tf.matmul(_rows(ids), _rows(ids), transpose_a=True),
    "arithmetic": lambda ids: tf.gather(TABLE, tf.unique(ids)[0] + 1),
    "other numbers": lambda ids: tf.gather(_rows(ids), ids),
    "two": lambda ids: tf.reduce_sum(_rows(ids) * _rows(ids + 1)),
    "other count": lambda ids: tf.math.unsorted_segment_sum(
        tf.ones([6, 4]), ids, tf.shape(tf.unique(ids)[0])[0]
    ),
    "range": lambda ids: tf.reduce_sum(tf.range(tf.size(tf.unique(ids)[0]))),
    "conditional": lambda ids: tf.cond(
        ids[0] > 0, lambda: tf.reduce_sum(tf.unique(ids)[0]), lambda: 0
    ),
}


@pytest.mark.parametrize("name", [one for one in MIXED if one != "conditional"])
def test_what_sees_how_many_distinct_rows_there_are_is_an_error(name):
    with pytest.raises(LayoutError) as caught:
        trace(MIXED[name], IDS)
    assert "has shape [None" in str(caught.value)


def test_a_conditional_with_distinct_rows_runs_whole():
    assert "StatelessIf" in trace(MIXED["conditional"], IDS).unknown


def test_a_conditional_is_planned_by_the_one_branch_of_known_shapes():
    def chosen(x):
        return tf.reduce_sum(tf.cond(x[0] > 0, lambda: x[x > 1], lambda: x * 2) ** 2)

    traced = trace(chosen, [tf.TensorSpec([4])])
    assert traced.effects == ("Assert 'cond/check'",)
    kinds = [one.kind for one in traced.operations]
    assert "LogicalNot" in kinds and "Where" not in kinds and traced.unknown == {}
