# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sessions, one rule each: what the master stamps, and what a task makes of stamps."""

import random

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.unit.passes.pass_testing import (
    PS0,
    PS1,
    W0,
    const,
    node,
    nodes_of,
    skips,
    sorted_groups,
    source,
    structure,
    trace,
    use,
    verdicts,
)
from tests.unit.passes.sessions.stamped_graphs import (
    STAMP,
    changed,
    copy,
    found,
    stamp_of,
    stamped_nodes,
    two_reads,
)
from tf_fuse.explain import rewrite
from tf_fuse.v1 import receive_stamp_pb2

PS0_1 = PS0.replace("CPU:0", "CPU:1")


# --- One rule each -----------------------------------------------------------------------------


def test_stamp_of_two_reads():
    result = rewrite(two_reads(), session=True)
    stamped = stamped_nodes(result.before)
    assert sorted(stamped) == ["x_in0", "x_in1"]
    for name, sent in (("x_in0", "a"), ("x_in1", "b")):
        stamp = stamp_of(stamped[name])
        assert stamp.version == 1
        assert [(i.index, i.source, i.group, i.depth, i.reason) for i in stamp.inputs] == [
            (0, sent, 1, 1, "")
        ]
    assert sorted_groups(result) == [["a", "b"]]
    assert structure(result.after[W0]) == [
        "tf_fuse/ps_0_to_worker_0/depth_1/a_S2 = _FuseRecv()",
        "x = AddN(x_in0, x_in1)",
        "x_in0 = Identity(tf_fuse/ps_0_to_worker_0/depth_1/a_S2)",
        "x_in1 = Identity(tf_fuse/ps_0_to_worker_0/depth_1/a_S2:1)",
    ]


def test_reason_travels_with_the_stamp():
    def build():
        accelerator = source(PS0.replace("CPU", "GPU"), "c")
        use(W0, "x", source(PS0, "a"), source(PS1, "b"), accelerator)

    result = rewrite(trace(build), session=True)
    assert verdicts(result) == {"a": "alone", "b": "alone", "c": "not_cpu"}
    inputs = [i for n in stamped_nodes(result.before).values() for i in stamp_of(n).inputs]
    assert sorted((i.source, i.group, i.reason) for i in inputs) == [
        ("a", 0, "alone"),
        ("b", 0, "alone"),
        ("c", 0, "not_cpu"),
    ]


def test_control_edges_are_fused_with_the_rest():
    def build():
        a, b = source(PS0, "a"), source(PS0, "b")
        with tf.device(W0), tf.control_dependencies([a]):
            tf.identity(b, name="x")
            tf.no_op(name="y")

    result = rewrite(trace(build), session=True)
    assert sorted_groups(result) == [["a", "b"]]
    stamped = stamped_nodes(result.before)
    assert sorted((i.index, i.source) for i in stamp_of(stamped["x"]).inputs) == [
        (-1, "a"),
        (0, "b"),
    ]
    assert [(i.index, i.source) for i in stamp_of(stamped["y"]).inputs] == [(-1, "a")]


def test_two_devices_of_a_task():
    """Both use one receive; the second gets it from the first, without an RPC."""

    def build():
        a, b = source(W0, "a"), source(W0, "b")
        use(PS0, "x", a, b)
        with tf.device(PS0_1):
            tf.identity(a, name="y")
            with tf.control_dependencies([b]):
                tf.no_op(name="z")

    result = rewrite(trace(build), session=True)
    assert result.report.local_receives > 0
    assert found(result) == found(rewrite(result.before))
    assert {"a", "b"} <= {s.sender_node for g in result.report.groups for s in g.slots}


def test_every_use_must_be_stamped():
    def build():
        a, b = source(PS0, "a"), source(PS0, "b")
        use(W0, "x", a, b)
        use(W0, "y", a)

    graphs = copy(rewrite(trace(build), session=True).before)
    assert sorted_groups(rewrite(graphs, session=True)) == [["a", "b"]]
    del stamped_nodes(graphs)["y_in0"].attr[STAMP]
    result = rewrite(graphs, session=True)
    assert skips(result) == {"alone": ["b"], "not_stamped": ["a"]}


@pytest.mark.parametrize(
    "change",
    [
        lambda stamp: b"\xff\xff no proto",
        lambda stamp: b"",
        lambda stamp: changed(stamp, index=3),
        lambda stamp: changed(stamp, source="b"),
        lambda stamp: changed(stamp, group=0),
        lambda stamp: changed(stamp, group=-5),
        lambda stamp: changed(stamp, reason="alone"),
        lambda stamp: changed(stamp, group=0, reason="No Reason" * 9),
        lambda stamp: changed(stamp, dynamic=True),
        lambda stamp: changed(stamp, group=0, reason="alone", dynamic=True),
    ],
)
def test_stamps_that_make_no_sense_are_left_alone(change):
    graphs = copy(rewrite(two_reads(), session=True).before)
    n = stamped_nodes(graphs)["x_in0"]
    n.attr[STAMP].s = change(stamp_of(n))
    result = rewrite(graphs, session=True)
    reason = "stamp_version" if not n.attr[STAMP].s else "not_stamped"
    assert skips(result) == {"alone": ["b"], reason: ["a"]}
    assert nodes_of(result.after[W0], "_FuseRecv") == []


def test_stamps_of_another_version_are_not_followed():
    graphs = copy(rewrite(two_reads(), session=True).before)
    for n in stamped_nodes(graphs).values():
        stamp = stamp_of(n)
        stamp.version = 2
        n.attr[STAMP].s = stamp.SerializeToString()
    (group,) = rewrite(graphs, session=True).report.groups
    assert (group.dynamic, [slot.sender_node for slot in group.slots]) == (True, ["a", "b"])


def test_reason_of_a_newer_master_is_reported_as_it_is():
    graphs = copy(rewrite(two_reads(), session=True).before)
    for n in stamped_nodes(graphs).values():
        n.attr[STAMP].s = changed(stamp_of(n), group=0, reason="a_reason_to_come")
    assert skips(rewrite(graphs, session=True)) == {"a_reason_to_come": ["a", "b"]}


def test_stamps_of_a_wrong_type_are_not_followed():
    graphs = copy(rewrite(two_reads(), session=True).before)
    for n in stamped_nodes(graphs).values():
        n.attr[STAMP].i = 1
    (group,) = rewrite(graphs, session=True).report.groups
    assert (group.dynamic, [slot.sender_node for slot in group.slots]) == (True, ["a", "b"])


def test_groups_of_another_sender_are_not_mixed():
    """Two groups with one number, as no master writes them, stay two."""

    def build():
        use(W0, "x", *(source(p, f"{n}{i}") for i, p in enumerate((PS0, PS1)) for n in "ab"))

    graphs = copy(rewrite(trace(build), session=True).before)
    for n in stamped_nodes(graphs).values():
        n.attr[STAMP].s = changed(stamp_of(n), group=1)
    assert sorted_groups(rewrite(graphs, session=True)) == [["a0", "b0"], ["a1", "b1"]]


def test_stamps_of_a_saved_graph_are_written_anew():
    graph = two_reads()
    for n in graph.node:
        n.attr[STAMP].s = receive_stamp_pb2.ReceiveStamp(version=1).SerializeToString()
    assert sorted_groups(rewrite(graph, session=True)) == [["a", "b"]]


def test_plain_task_stays_as_it_is():
    result = rewrite(two_reads(), plain_tasks=["/job:worker/replica:0/task:0"], session=True)
    assert skips(result) == {"peer_without_plugin": ["a", "b"]}


def test_large_constants_stay_with_their_values():
    values = list(range(5000))

    def build():
        with tf.device(PS0):
            large = tf.constant(values, tf.float32, name="large")
        use(W0, "x", large, source(PS0, "b", shape=(5000,)))

    result = rewrite(trace(build), session=True)
    assert sorted_groups(result) == [["b", "large"]]
    (kept,) = [n for n in result.after[PS0].node if n.name == "large"]
    assert tf.make_ndarray(kept.attr["value"].tensor).tolist() == values


def _nested_switches(order):
    """A Switch of a Switch; each may be visited first."""
    nodes = {
        "v": const("v", PS0),
        "p": const("p", PS1, tf.bool),
        "outer": node("outer", "Switch", ["v", "p"], W0, T=tf.float32),
        "inner": node("inner", "Switch", ["outer:1", "p"], PS1, T=tf.float32),
        "x": node("x", "Identity", ["inner:1"], W0, T=tf.float32),
        "y": node("y", "Identity", ["inner"], W0, T=tf.float32),
    }
    return graph_pb2.GraphDef(node=[nodes[name] for name in order])


@pytest.mark.parametrize("seed", range(6))
def test_switches_are_where_the_partitioner_puts_them(seed):
    order = ["v", "p", "outer", "inner", "x", "y"]
    random.Random(seed).shuffle(order)
    result = rewrite(_nested_switches(order), session=True)
    assert [n.name for n in nodes_of(result.before[PS0], "Switch")] == ["inner", "outer"]
    assert sorted_groups(result) == [["inner", "inner"]]


def test_loop_across_tasks():
    """Fused as the whole graph would be, but for the loop's condition: it has no node to stamp."""

    def build():
        steps = [source(PS0, f"s{i}", shape=()) for i in range(3)]
        with tf.device(W0):
            start = tf.add_n(steps, name="start")

            def body(x):
                with tf.device(PS0):
                    y = tf.multiply(x, 2.0, name="far")
                with tf.device(W0):
                    return tf.add(y, 1.0, name="near")

            tf.identity(tf.while_loop(lambda x: x < 100.0, body, [start])[0], name="end")

    v2 = tf.compat.v1.control_flow_v2_enabled()
    tf.compat.v1.disable_control_flow_v2()
    try:
        graph = trace(build)
    finally:
        if v2:
            tf.compat.v1.enable_control_flow_v2()
    result = rewrite(graph, session=True)
    assert ["s0", "s1", "s2"] in sorted_groups(result)
    assert skips(result)["not_stamped"] == ["while/LoopCond"]
    whole = [
        (*key, [slot for slot in slots if "LoopCond" not in slot[0]])
        for *key, slots in found(rewrite(result.before))[0]
    ]
    assert [(*key, slots) for *key, slots in found(result)[0]] == whole
