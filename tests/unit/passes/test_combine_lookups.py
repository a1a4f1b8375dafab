# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which operations run beside a lookup on its server, so that sums of rows travel."""

import re

import pytest
import tensorflow as tf

from tests.unit.passes.pass_testing import PS0, PS1, W0, W1, device, nodes_of, trace
from tf_fuse.explain import rewrite

_raw = tf.raw_ops
_SPARSE = ["SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"]
# Rows are larger than what travels besides for each.
_WIDTH = 8


def _table(on=PS0, name="table", dtype=tf.float32, width=_WIDTH):
    with tf.device(on):
        return _raw.VarHandleOp(dtype=dtype, shape=[9, width], shared_name=name, name=name)


def _input(name, shape=(None,), dtype=tf.int32, on=W0):
    with tf.device(on):
        return tf.compat.v1.placeholder(dtype, shape, name=name)


def _rows(handle, ids, on=PS0, dtype=tf.float32, name="rows"):
    with tf.device(on):
        return _raw.ResourceGather(resource=handle, indices=ids, dtype=dtype, name=name)


def _used(value, on=W0, name="used"):
    with tf.device(on):
        return tf.identity(tf.nn.relu(value), name=name)


def _scatter(handle, ids, value, on=PS0, name="scatter"):
    with tf.device(on):
        _raw.ResourceScatterSub(resource=handle, indices=ids, updates=value, name=name)


def _lookup(ids="ids", on=PS0, name="table", **options):
    return _rows(_table(on, name, **options), _input(ids), on, name=f"rows_of_{name}")


def _places(number=""):
    return _input(f"places{number}"), _input(f"segments{number}", dtype=tf.int64)


def _name(node):
    """Without the number that makes it the only one."""
    return re.sub(r"/_\d+(?=:|$)", "", node)


def _rewritten(build, **options):
    """The partitions, without what nothing uses."""
    graph = trace(build)
    ends = [n.name for n in graph.node if n.op.startswith("ResourceScatter") or "used" in n.name]
    graph = tf.compat.v1.graph_util.extract_sub_graph(graph, ends)
    return rewrite(graph, fuse_lookups_combine=True, **options).before


def _sent(partition):
    return sorted({_name(send.input[0]) for send in nodes_of(partition, "_Send")})


def _travels(build, servers=(PS0,), **options):
    """What the worker sends, and what the servers do."""
    partitions = _rewritten(build, **options)
    return _sent(partitions[W0]), sorted(name for on in servers for name in _sent(partitions[on]))


def _combined(rows, op="SparseSegmentSum", on=W0, name="sums", number=""):
    places, segments = _places(number)
    with tf.device(on):
        return getattr(_raw, op)(data=rows, indices=places, segment_ids=segments, name=name)


@pytest.mark.parametrize("op", _SPARSE)
def test_sums_of_a_sparse_lookup(op):
    def build():
        _used(_combined(_lookup(), op))

    assert _travels(build) == (["ids", "places", "segments"], ["sums"])


@pytest.mark.parametrize("op", _SPARSE)
def test_with_the_number_of_segments(op):
    def build():
        places, segments = _places()
        rows = _lookup()
        with tf.device(W0):
            sums = getattr(_raw, f"{op}WithNumSegments")(
                data=rows, indices=places, segment_ids=segments, num_segments=5, name="sums"
            )
        _used(sums)

    assert _travels(build) == (["ids", "places", "segments"], ["sums"])


@pytest.mark.parametrize("op", ["SegmentSum", "SegmentMean"])
def test_sums_of_segments(op):
    def build():
        rows = _lookup()
        segments = _input("segments")
        with tf.device(W0):
            sums = getattr(_raw, op)(data=rows, segment_ids=segments, name="sums")
        _used(sums)

    assert _travels(build) == (["ids", "segments"], ["sums"])


def test_sums_of_ragged_rows():
    def build():
        rows, segments, count = _lookup(), _input("segments"), _input("count", ())
        with tf.device(W0):
            sums = _raw.UnsortedSegmentSum(
                data=rows, segment_ids=segments, num_segments=count, name="sums"
            )
        _used(sums)

    assert _travels(build) == (["count", "ids", "segments"], ["sums"])


@pytest.mark.parametrize("op", ["Sum", "Mean"])
@pytest.mark.parametrize(
    ("axis", "width", "moves"),
    [(1, 8, True), (0, 8, True), ([0, 1], 8, True), (-2, 8, True), (2, 8, False), (-1, 8, False),
     ([1, 2], 8, False), (1, 1, False)],
)  # fmt: skip
def test_sums_along_an_axis(op, axis, width, moves):
    def build():
        rows = _rows(_table(width=width), _input("ids", (None, 4)))
        with tf.device(W0):
            sums = getattr(_raw, op)(input=rows, axis=axis, name="sums")
        _used(sums)

    assert _travels(build) == (["ids"], ["sums" if moves else "rows"])


def test_sums_along_an_axis_that_is_computed_are_left():
    def build():
        rows, axis = _rows(_table(), _input("ids", (None, 4))), _input("axis", ())
        with tf.device(W0):
            sums = _raw.Sum(input=rows, axis=axis, name="sums")
        _used(sums)

    assert _travels(build) == (["ids"], ["rows"])


def test_weighted_sums():
    def build():
        rows, (places, segments) = _lookup(), _places()
        weights = _input("weights", (None, 1), tf.float32)
        with tf.device(W0):
            each = tf.gather(rows, places) * weights
            sums = _raw.SegmentSum(data=each, segment_ids=segments, name="sums")
            _used(sums / tf.math.segment_sum(weights, segments))

    assert _travels(build) == (["ids", "places", "segments", "weights"], ["sums"])


@pytest.mark.parametrize("shape", [(None, _WIDTH), None])
def test_weights_that_are_as_large_as_rows_are_left(shape):
    def build():
        rows, segments = _lookup(), _input("segments")
        weights = _input("weights", shape, tf.float32)
        with tf.device(W0):
            _used(_raw.SegmentSum(data=rows * weights, segment_ids=segments))

    assert _travels(build) == (["ids"], ["rows_of_table"])


def test_products_of_rows_of_one_server():
    def build():
        rows = [_lookup("ids", name="one"), _lookup("others", name="two")]
        segments = _input("segments")
        with tf.device(W0):
            _used(_raw.SegmentSum(data=rows[0] * rows[1], segment_ids=segments, name="sums"))

    assert _travels(build) == (["ids", "others", "segments"], ["sums"])


def test_products_of_rows_of_two_servers_are_left():
    def build():
        rows = [_lookup("ids", name="one"), _lookup("others", PS1, name="two")]
        segments = _input("segments")
        with tf.device(W0):
            _used(_raw.SegmentSum(data=rows[0] * rows[1], segment_ids=segments))

    assert _travels(build, (PS0, PS1)) == (["ids", "others"], ["rows_of_one", "rows_of_two"])


def test_what_lies_between():
    def build():
        rows = _rows(_table(dtype=tf.bfloat16), _input("ids"), dtype=tf.bfloat16)
        with tf.device(PS0):
            rows = tf.identity(rows)
        with tf.device(W0):
            rows = tf.reshape(-tf.cast(tf.identity(rows), tf.float32), [-1, _WIDTH])
        _used(_combined(rows))

    assert _travels(build) == (["ids", "places", "segments"], ["sums"])


def test_several_sums_of_the_same_rows():
    def build():
        rows, (places, segments) = _lookup(), _places()
        for number, op in enumerate(_SPARSE):
            with tf.device(W0):
                sums = getattr(_raw, op)(
                    data=rows, indices=places, segment_ids=segments, name=f"sums_{number}"
                )
            _used(sums, name=f"used_{number}")

    assert _travels(build) == (["ids", "places", "segments"], ["sums_0", "sums_1", "sums_2"])


@pytest.mark.parametrize(
    "kind", ["rows are used", "another worker", "another server", "gpu", "other operation"]
)
def test_rows_that_are_left(kind):
    def build():
        rows = _lookup()
        if kind == "gpu":
            with tf.device(device("worker", 0, "GPU")):
                rows = tf.identity(rows)
        if kind == "other operation":
            with tf.device(W0):
                rows = tf.sin(rows)
        if kind == "another server":
            _used(rows, PS1, "used_there")
        _used(_combined(rows))
        if kind == "rows are used":
            _used(rows)
        if kind == "another worker":
            _used(rows, W1, "used_there")

    partitions = _rewritten(build)
    assert [len(nodes_of(partitions[W0], op)) for op in _SPARSE] == [1, 0, 0]


@pytest.mark.parametrize(("width", "moves"), [(1, False), (3, False), (4, True), (16, True)])
def test_rows_that_are_not_larger_than_their_numbers_are_left(width, moves):
    def build():
        _used(_combined(_lookup(width=width)))

    assert _travels(build)[1] == ["sums" if moves else "rows_of_table"]


def test_numbers_that_travel_already_cost_nothing():
    def build():
        ids, segments = _input("ids"), _input("segments")
        rows = _rows(_table(width=1), ids)
        _scatter(_table(name="counts"), segments, _input("g", (None, _WIDTH), tf.float32))
        with tf.device(W0):
            _used(_raw.SegmentSum(data=rows, segment_ids=segments, name="sums"))

    assert _travels(build)[1] == ["sums"]


def test_it_is_off_unless_asked_for():
    def build():
        _used(_combined(_lookup()))

    partitions = rewrite(trace(build)).before
    assert (_sent(partitions[W0]), _sent(partitions[PS0])) == (["ids"], ["rows_of_table"])


def test_sessions_are_left():
    def build():
        _used(_combined(_lookup()))

    assert _travels(build, session=True) == (["ids"], ["rows_of_table"])


def test_servers_without_the_plugin():
    def build():
        _used(_combined(_lookup()))

    expected = (["ids", "places", "segments"], ["sums"])
    assert _travels(build, plain_tasks=["/job:ps/replica:0/task:0"]) == expected


def _trained(change=lambda g: g, lookup=_combined, on=PS0, name="table"):
    """A lookup, and a step of SGD with the gradient of the sums' squares."""
    handle, ids = _table(on, name), _input("ids")
    rows = _rows(handle, ids, on, name=f"rows_of_{name}")
    with tf.device(W0):
        kept = tf.identity(rows, name="kept")
        sums = lookup(kept)
        loss = tf.identity(tf.square(sums), name="loss")
        (gradient,) = tf.gradients(loss, kept)
        changed = change(tf.convert_to_tensor(gradient))
    return handle, ids, changed


@pytest.mark.parametrize("op", _SPARSE)
def test_gradients_of_sparse_lookups(op):
    def build():
        handle, ids, change = _trained(lookup=lambda rows: _combined(rows, op))
        _scatter(handle, ids, change)

    partitions = _rewritten(build)
    sent = _sent(partitions[W0])
    assert len(sent) == 4 and set(sent) > {"ids", "places", "segments"}
    assert _sent(partitions[PS0]) == ["sums"]
    assert len(nodes_of(partitions[PS0], f"{op}Grad")) == 1


def test_what_lies_between_a_gradient_and_its_update():
    def build():
        handle, ids, change = _trained(lambda g: tf.reshape(-0.1 * g, [-1, _WIDTH]))
        with tf.device(W0):
            once, places = tf.unique(ids)
            change = tf.math.unsorted_segment_sum(change, places, tf.size(once))
        _scatter(handle, once, change)

    partitions = _rewritten(build)
    assert len(nodes_of(partitions[PS0], "SparseSegmentSumGrad")) == 1
    assert len(nodes_of(partitions[PS0], "UnsortedSegmentSum")) == 1
    assert _sent(partitions[PS0]) == ["sums"]


@pytest.mark.parametrize("kind", ["norm", "two servers", "rows are used", "other segments"])
def test_gradients_that_are_left(kind):
    def build():
        handle, ids, change = _trained()
        _scatter(handle, ids, change)
        if kind == "norm":
            with tf.device(W0):
                tf.reduce_sum(tf.square(change), name="used_norm")
        if kind == "two servers":
            _scatter(_table(PS1, "other"), ids, change, PS1, name="used_there")
        if kind == "rows are used":
            with tf.device(W0):
                _used(tf.compat.v1.get_default_graph().get_tensor_by_name("kept:0"))

    if kind == "other segments":

        def build():
            _used(_combined(_lookup()))
            handle, ids = _table(name="other"), _input("others")
            with tf.device(W0):
                whole = _input("whole", (None, _WIDTH), tf.float32)
                _scatter(handle, ids, tf.gather(whole, _input("chosen")))

    partitions = _rewritten(build)
    names = {node.name for node in partitions[W0].node}
    assert any("SparseSegmentSumGrad" in node.op for node in partitions[W0].node) or (
        kind == "other segments" and any("Gather" in name for name in names)
    )


def _by_segments(rows):
    with tf.device(W0):
        return _raw.SegmentSum(data=rows, segment_ids=_input("segments"), name="sums")


def _ragged(rows):
    with tf.device(W0):
        return _raw.UnsortedSegmentSum(
            data=rows, segment_ids=_input("segments"), num_segments=5, name="sums"
        )


def _weighted(rows):
    places, segments = _places()
    weights = _input("weights", (None, 1), tf.float32)
    with tf.device(W0):
        each = tf.gather(rows, places) * weights
        return _raw.SegmentSum(data=each, segment_ids=segments, name="sums")


@pytest.mark.parametrize("lookup", [_by_segments, _ragged, _weighted])
def test_gradients_of_segments(lookup):
    def build():
        handle, ids, change = _trained(lookup=lookup)
        _scatter(handle, ids, change)

    partitions = _rewritten(build)
    sent = {_name(send.input[0]) for send in nodes_of(partitions[W0], "_Send")}
    inputs = {"ids", "places", "segments", "weights"}
    assert len(sent - inputs) == 1, sent  # The gradient of the sums.
    assert _sent(partitions[PS0]) == ["sums"]
    assert len(nodes_of(partitions[W0], "GatherV2")) == 0


@pytest.mark.parametrize("op", [tf.reduce_sum, tf.reduce_mean])
@pytest.mark.parametrize("batch", [None, 3])
def test_gradients_of_sums_along_an_axis(op, batch):
    def build():
        handle, ids = _table(), _input("ids", (batch, 4))
        rows = _rows(handle, ids)
        with tf.device(W0):
            kept = tf.identity(rows)
            sums = op(kept, axis=1, name="sums")
            (gradient,) = tf.gradients(tf.square(sums), kept)
        _scatter(handle, ids, gradient)

    partitions = _rewritten(build)
    sent = _sent(partitions[W0])
    assert not nodes_of(partitions[W0], "BroadcastTo") and not nodes_of(partitions[W0], "Tile")
    assert len(sent) == 2 + (op is tf.reduce_mean and batch is None), sent


def test_constants_are_copied_and_not_sent():
    def build():
        rows = _rows(_table(), _input("ids", (None, 4)))
        with tf.device(W0):
            axis = tf.constant([1], name="axis")
            _used(_raw.Sum(input=rows, axis=axis, name="sums"))
            _used(axis, name="used_axis")

    partitions = _rewritten(build)
    (total,) = nodes_of(partitions[PS0], "Sum")
    (copy,) = [node for node in partitions[PS0].node if node.name == total.input[1]]
    assert copy.op == "Const" and "axis" in copy.name
    assert tf.make_ndarray(copy.attr["value"].tensor).tolist() == [1]
    assert "axis" in [_name(node.name) for node in nodes_of(partitions[W0], "Const")]
    assert "axis" not in _sent(partitions[W0])


def test_colocation_is_given_up():
    def build():
        rows = _lookup()
        places, segments = _places()
        with tf.device(W0), tf.Graph.colocate_with(tf.compat.v1.get_default_graph(), places.op):
            _used(
                _raw.SparseSegmentSum(data=rows, indices=places, segment_ids=segments, name="sums")
            )

    (total,) = nodes_of(_rewritten(build)[PS0], "SparseSegmentSum")
    assert total.device == PS0 and "_class" not in total.attr


def test_operations_of_many_tables_are_few():
    def build(tables):
        for number in range(tables):
            with tf.device(W0):
                ids = _input(f"ids_{number}")
            rows = _rows(_table(name=f"table_{number}"), ids, name=f"rows_{number}")
            sums = _combined(rows, name=f"sums_{number}", number=f"_{number}")
            _used(sums, name=f"used_{number}")

    counts = set()
    for tables in (10, 100):
        graph = trace(lambda tables=tables: build(tables))
        result = rewrite(graph, fuse_lookups_combine=True, fuse_operations=True)
        counts.add(len([n for n in result.after[PS0].node if n.op not in ("Const", "VarHandleOp")]))
    assert len(counts) == 1
