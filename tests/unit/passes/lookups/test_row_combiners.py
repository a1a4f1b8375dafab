# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which gradients of rows are made on the server, from those of the sums."""

import pytest
import tensorflow as tf

from tests.unit.passes.lookups import combine_testing as graphs
from tests.unit.passes.pass_testing import PS0, PS1, W0, nodes_of


@pytest.mark.parametrize("op", graphs.SPARSE)
def test_gradients_of_sparse_lookups(op):
    def build():
        handle, ids, change = graphs.train(lookup=lambda rows: graphs.combine(rows, op))
        graphs.scatter(handle, ids, change)

    partitions = graphs.rewritten(build)
    sent = graphs.sent(partitions[W0])
    assert len(sent) == 4 and set(sent) > {"ids", "places", "segments"}
    assert graphs.sent(partitions[PS0]) == ["sums"]
    assert len(nodes_of(partitions[PS0], f"{op}Grad")) == 1


def test_what_lies_between_a_gradient_and_its_update():
    def build():
        handle, ids, change = graphs.train(lambda g: tf.reshape(-0.1 * g, [-1, graphs.WIDTH]))
        with tf.device(W0):
            once, places = tf.unique(ids)
            change = tf.math.unsorted_segment_sum(change, places, tf.size(once))
        graphs.scatter(handle, once, change)

    partitions = graphs.rewritten(build)
    assert len(nodes_of(partitions[PS0], "SparseSegmentSumGrad")) == 1
    assert len(nodes_of(partitions[PS0], "UnsortedSegmentSum")) == 1
    assert graphs.sent(partitions[PS0]) == ["sums"]


@pytest.mark.parametrize("kind", ["norm", "two servers", "rows are used"])
def test_gradients_that_are_left(kind):
    def build():
        handle, ids, change = graphs.train()
        graphs.scatter(handle, ids, change)
        if kind == "norm":
            with tf.device(W0):
                tf.reduce_sum(tf.square(change), name="used_norm")
        if kind == "two servers":
            graphs.scatter(graphs.table(PS1, "other"), ids, change, PS1, name="used_there")
        if kind == "rows are used":
            with tf.device(W0):
                graphs.use(tf.compat.v1.get_default_graph().get_tensor_by_name("kept:0"))

    assert len(nodes_of(graphs.rewritten(build)[W0], "SparseSegmentSumGrad")) == 1


def test_rows_by_other_numbers_than_segments_are_left():
    def build():
        graphs.use(graphs.combine(graphs.look_up()))
        whole = graphs.placeholder("whole", (None, graphs.WIDTH), tf.float32)
        with tf.device(W0):
            chosen = tf.gather(whole, graphs.placeholder("chosen"), name="few")
        graphs.scatter(graphs.table(name="other"), graphs.placeholder("others"), chosen)

    assert graphs.travels(build) == (["few", "ids", "others", "places", "segments"], ["sums"])


def _by_segments(rows):
    with tf.device(W0):
        return graphs.raw.SegmentSum(
            data=rows, segment_ids=graphs.placeholder("segments"), name="sums"
        )


def _ragged(rows):
    with tf.device(W0):
        return graphs.raw.UnsortedSegmentSum(
            data=rows, segment_ids=graphs.placeholder("segments"), num_segments=5, name="sums"
        )


def _weighted(rows):
    places, segments = graphs.places()
    weights = graphs.placeholder("weights", (None, 1), tf.float32)
    with tf.device(W0):
        each = tf.gather(rows, places) * weights
        return graphs.raw.SegmentSum(data=each, segment_ids=segments, name="sums")


@pytest.mark.parametrize("lookup", [_by_segments, _ragged, _weighted])
def test_gradients_of_segments(lookup):
    def build():
        handle, ids, change = graphs.train(lookup=lookup)
        graphs.scatter(handle, ids, change)

    partitions = graphs.rewritten(build)
    sent = {graphs.plain_name(send.input[0]) for send in nodes_of(partitions[W0], "_Send")}
    inputs = {"ids", "places", "segments", "weights"}
    assert len(sent - inputs) == 1, sent  # The gradient of the sums.
    assert graphs.sent(partitions[PS0]) == ["sums"]
    assert len(nodes_of(partitions[W0], "GatherV2")) == 0


@pytest.mark.parametrize("op", [tf.reduce_sum, tf.reduce_mean])
@pytest.mark.parametrize("batch", [None, 3])
def test_gradients_of_sums_along_an_axis(op, batch):
    def build():
        handle, ids = graphs.table(), graphs.placeholder("ids", (batch, 4))
        rows = graphs.gather(handle, ids)
        with tf.device(W0):
            kept = tf.identity(rows)
            sums = op(kept, axis=1, name="sums")
            (gradient,) = tf.gradients(tf.square(sums), kept)
        graphs.scatter(handle, ids, gradient)

    partitions = graphs.rewritten(build)
    sent = graphs.sent(partitions[W0])
    assert not nodes_of(partitions[W0], "BroadcastTo") and not nodes_of(partitions[W0], "Tile")
    assert len(sent) == 2 + (op is tf.reduce_mean and batch is None), sent
