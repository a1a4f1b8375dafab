# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which operations run beside a lookup on its server, so that sums of rows travel."""

import subprocess
import sys

import pytest
import tensorflow as tf

from tests.unit.passes.lookups import combine_testing as graphs
from tests.unit.passes.pass_testing import PS0, PS1, W0, W1, device, nodes_of, trace
from tf_fuse.explain import rewrite


@pytest.mark.parametrize("op", graphs.SPARSE)
def test_sums_of_a_sparse_lookup(op):
    def build():
        graphs.use(graphs.combine(graphs.look_up(), op))

    assert graphs.travels(build) == (["ids", "places", "segments"], ["sums"])


@pytest.mark.parametrize("op", graphs.SPARSE)
def test_with_the_number_of_segments(op):
    def build():
        places, segments = graphs.places()
        rows = graphs.look_up()
        with tf.device(W0):
            sums = getattr(graphs.raw, f"{op}WithNumSegments")(
                data=rows, indices=places, segment_ids=segments, num_segments=5, name="sums"
            )
        graphs.use(sums)

    assert graphs.travels(build) == (["ids", "places", "segments"], ["sums"])


@pytest.mark.parametrize("op", ["SegmentSum", "SegmentMean"])
def test_sums_of_segments(op):
    def build():
        rows = graphs.look_up()
        segments = graphs.placeholder("segments")
        with tf.device(W0):
            sums = getattr(graphs.raw, op)(data=rows, segment_ids=segments, name="sums")
        graphs.use(sums)

    assert graphs.travels(build) == (["ids", "segments"], ["sums"])


def test_sums_of_ragged_rows():
    def build():
        rows, segments, count = (
            graphs.look_up(),
            graphs.placeholder("segments"),
            graphs.placeholder("count", ()),
        )
        with tf.device(W0):
            sums = graphs.raw.UnsortedSegmentSum(
                data=rows, segment_ids=segments, num_segments=count, name="sums"
            )
        graphs.use(sums)

    assert graphs.travels(build) == (["count", "ids", "segments"], ["sums"])


@pytest.mark.parametrize("op", ["Sum", "Mean"])
@pytest.mark.parametrize(
    ("axis", "width", "moves"),
    [(1, 8, True), (0, 8, True), ([0, 1], 8, True), (-2, 8, True), (2, 8, False), (-1, 8, False),
     ([1, 2], 8, False), (1, 1, False)],
)  # fmt: skip
def test_sums_along_an_axis(op, axis, width, moves):
    def build():
        rows = graphs.gather(graphs.table(width=width), graphs.placeholder("ids", (None, 4)))
        with tf.device(W0):
            sums = getattr(graphs.raw, op)(input=rows, axis=axis, name="sums")
        graphs.use(sums)

    assert graphs.travels(build) == (["ids"], ["sums" if moves else "rows"])


_SUMS = """
import hashlib, sys
import numpy as np, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
rng, found = np.random.default_rng(0), hashlib.sha256()
for shape, axes in (((64, 50, 16), [1]), ((1, 70000, 3), [1]), ((1, 20001, 2), [0, 1]),
                    ((9001, 17), [0]), ((5, 200, 1001), [1]), ((3, 7, 5000, 2), [1, 2]),
                    ((3, 7000, 5, 3), [0, 2]), ((2, 300000, 2), [1])):
    for dtype in (tf.float32, tf.float16, tf.float64):
        rows = tf.cast(rng.normal(size=shape), dtype)
        for reduce in (tf.reduce_sum, tf.reduce_mean):
            found.update(reduce(rows, axes).numpy().tobytes())
print(found.hexdigest())
"""


def test_sums_along_an_axis_do_not_depend_on_threads():
    def of(threads):
        command = [sys.executable, "-c", _SUMS, str(threads)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert of(1) == of(5)


def test_sums_along_an_axis_that_is_computed_are_left():
    def build():
        rows, axis = (
            graphs.gather(graphs.table(), graphs.placeholder("ids", (None, 4))),
            graphs.placeholder("axis", ()),
        )
        with tf.device(W0):
            sums = graphs.raw.Sum(input=rows, axis=axis, name="sums")
        graphs.use(sums)

    assert graphs.travels(build) == (["ids"], ["rows"])


def test_weighted_sums():
    def build():
        rows, (places, segments) = graphs.look_up(), graphs.places()
        weights = graphs.placeholder("weights", (None, 1), tf.float32)
        with tf.device(W0):
            each = tf.gather(rows, places) * weights
            sums = graphs.raw.SegmentSum(data=each, segment_ids=segments, name="sums")
            graphs.use(sums / tf.math.segment_sum(weights, segments))

    assert graphs.travels(build) == (["ids", "places", "segments", "weights"], ["sums"])


@pytest.mark.parametrize("shape", [(None, graphs.WIDTH), None])
def test_weights_that_are_as_large_as_rows_are_left(shape):
    def build():
        rows, segments = graphs.look_up(), graphs.placeholder("segments")
        weights = graphs.placeholder("weights", shape, tf.float32)
        with tf.device(W0):
            graphs.use(graphs.raw.SegmentSum(data=rows * weights, segment_ids=segments))

    assert graphs.travels(build) == (["ids"], ["rows_of_table"])


def test_products_of_rows_of_one_server():
    def build():
        rows = [graphs.look_up("ids", name="one"), graphs.look_up("others", name="two")]
        segments = graphs.placeholder("segments")
        with tf.device(W0):
            graphs.use(
                graphs.raw.SegmentSum(data=rows[0] * rows[1], segment_ids=segments, name="sums")
            )

    assert graphs.travels(build) == (["ids", "others", "segments"], ["sums"])


def test_products_of_rows_of_two_servers_are_left():
    def build():
        rows = [graphs.look_up("ids", name="one"), graphs.look_up("others", PS1, name="two")]
        segments = graphs.placeholder("segments")
        with tf.device(W0):
            graphs.use(graphs.raw.SegmentSum(data=rows[0] * rows[1], segment_ids=segments))

    assert graphs.travels(build, (PS0, PS1)) == (["ids", "others"], ["rows_of_one", "rows_of_two"])


def test_what_lies_between():
    def build():
        rows = graphs.gather(
            graphs.table(dtype=tf.bfloat16), graphs.placeholder("ids"), dtype=tf.bfloat16
        )
        with tf.device(PS0):
            rows = tf.identity(rows)
        with tf.device(W0):
            rows = tf.reshape(-tf.cast(tf.identity(rows), tf.float32), [-1, graphs.WIDTH])
        graphs.use(graphs.combine(rows))

    assert graphs.travels(build) == (["ids", "places", "segments"], ["sums"])


def test_several_sums_of_the_same_rows():
    def build():
        rows, (places, segments) = graphs.look_up(), graphs.places()
        for number, op in enumerate(graphs.SPARSE):
            with tf.device(W0):
                sums = getattr(graphs.raw, op)(
                    data=rows, indices=places, segment_ids=segments, name=f"sums_{number}"
                )
            graphs.use(sums, name=f"used_{number}")

    assert graphs.travels(build) == (["ids", "places", "segments"], ["sums_0", "sums_1", "sums_2"])


@pytest.mark.parametrize(
    "kind", ["rows are used", "another worker", "another server", "gpu", "other operation"]
)
def test_rows_that_are_left(kind):
    def build():
        rows = graphs.look_up()
        if kind == "gpu":
            with tf.device(device("worker", 0, "GPU")):
                rows = tf.identity(rows)
        if kind == "other operation":
            with tf.device(W0):
                rows = tf.sin(rows)
        if kind == "another server":
            graphs.use(rows, PS1, "used_there")
        graphs.use(graphs.combine(rows))
        if kind == "rows are used":
            graphs.use(rows)
        if kind == "another worker":
            graphs.use(rows, W1, "used_there")

    partitions = graphs.rewritten(build)
    assert [len(nodes_of(partitions[W0], op)) for op in graphs.SPARSE] == [1, 0, 0]


@pytest.mark.parametrize(("width", "moves"), [(1, False), (3, False), (4, True), (16, True)])
def test_rows_that_are_not_larger_than_their_numbers_are_left(width, moves):
    def build():
        graphs.use(graphs.combine(graphs.look_up(width=width)))

    assert graphs.travels(build)[1] == ["sums" if moves else "rows_of_table"]


def test_numbers_that_travel_already_cost_nothing():
    def build():
        ids, segments = graphs.placeholder("ids"), graphs.placeholder("segments")
        rows = graphs.gather(graphs.table(width=1), ids)
        graphs.scatter(
            graphs.table(name="counts"),
            segments,
            graphs.placeholder("g", (None, graphs.WIDTH), tf.float32),
        )
        with tf.device(W0):
            graphs.use(graphs.raw.SegmentSum(data=rows, segment_ids=segments, name="sums"))

    assert graphs.travels(build)[1] == ["sums"]


def test_it_is_off_unless_asked_for():
    def build():
        graphs.use(graphs.combine(graphs.look_up()))

    partitions = rewrite(trace(build)).before
    assert (graphs.sent(partitions[W0]), graphs.sent(partitions[PS0])) == (
        ["ids"],
        ["rows_of_table"],
    )


def test_sessions_are_left():
    def build():
        graphs.use(graphs.combine(graphs.look_up()))

    assert graphs.travels(build, session=True) == (["ids"], ["rows_of_table"])


def test_servers_without_the_plugin():
    def build():
        graphs.use(graphs.combine(graphs.look_up()))

    expected = (["ids", "places", "segments"], ["sums"])
    assert graphs.travels(build, plain_tasks=["/job:ps/replica:0/task:0"]) == expected


def test_constants_are_copied_and_not_sent():
    def build():
        rows = graphs.gather(graphs.table(), graphs.placeholder("ids", (None, 4)))
        with tf.device(W0):
            axis = tf.constant([1], name="axis")
            graphs.use(graphs.raw.Sum(input=rows, axis=axis, name="sums"))
            graphs.use(axis, name="used_axis")

    partitions = graphs.rewritten(build)
    (total,) = nodes_of(partitions[PS0], "Sum")
    (copy,) = [node for node in partitions[PS0].node if node.name == total.input[1]]
    assert copy.op == "Const" and "axis" in copy.name
    assert tf.make_ndarray(copy.attr["value"].tensor).tolist() == [1]
    assert "axis" in [graphs.plain_name(node.name) for node in nodes_of(partitions[W0], "Const")]
    assert "axis" not in graphs.sent(partitions[W0])


def test_colocation_is_given_up():
    def build():
        rows = graphs.look_up()
        places, segments = graphs.places()
        with tf.device(W0), tf.Graph.colocate_with(tf.compat.v1.get_default_graph(), places.op):
            graphs.use(
                graphs.raw.SparseSegmentSum(
                    data=rows, indices=places, segment_ids=segments, name="sums"
                )
            )

    (total,) = nodes_of(graphs.rewritten(build)[PS0], "SparseSegmentSum")
    assert total.device == PS0 and "_class" not in total.attr


def test_operations_of_many_tables_are_few():
    def build(tables):
        for number in range(tables):
            with tf.device(W0):
                ids = graphs.placeholder(f"ids_{number}")
            rows = graphs.gather(graphs.table(name=f"table_{number}"), ids, name=f"rows_{number}")
            sums = graphs.combine(rows, name=f"sums_{number}", number=f"_{number}")
            graphs.use(sums, name=f"used_{number}")

    counts = set()
    for tables in (10, 100):
        graph = trace(lambda tables=tables: build(tables))
        result = rewrite(graph, fuse_lookups_combine=True, fuse_operations=True)
        counts.add(len([n for n in result.after[PS0].node if n.op not in ("Const", "VarHandleOp")]))
    assert len(counts) == 1
