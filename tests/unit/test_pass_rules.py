# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rules of the fuse_recv pass: one case for each, and one for each reason to skip."""

import random

import pytest
import tensorflow as tf
from pass_testing import (
    PS0,
    PS1,
    W0,
    W1,
    const,
    device,
    groups,
    node,
    nodes_of,
    partitions,
    recv,
    send,
    skips,
    sorted_groups,
    source,
    structure,
    trace,
    use,
    v1,
)
from tensorflow.core.framework import graph_pb2

from tf_fuse.explain import rewrite


def _pair(names: str, from_: str, to: str, dtype: tf.DType = tf.float32, **more):
    """For each letter: a value on `from_`, its _Send, and its _Recv on `to`."""
    made = []
    for name in names:
        made.append(const(name, from_, dtype))
        made.append(send(name, name, from_, to, dtype, **more))
        made.append(recv(name, from_, to, dtype, **more))
    return made


def _exchange():
    """Two values of each of two servers to a worker, and two results back to one server."""
    x, y = source(PS0, "x"), source(PS0, "y")
    z, w = source(PS1, "z"), source(PS1, "w")
    one, two = use(W0, "one", x, z), use(W0, "two", y, w)
    use(PS0, "back", one, two)


def test_receives_of_one_server_become_one_in_both_directions():
    result = rewrite(trace(_exchange))
    assert sorted_groups(result) == [["one", "two"], ["w", "z"], ["x", "y"]]
    assert skips(result) == {}
    directions = [(g.send_device, g.recv_device, g.depth) for g in result.report.groups]
    assert sorted(directions) == [(PS0, W0, 1), (PS1, W0, 1), (W0, PS0, 2)]
    assert result.report.partitions == 3
    for graph in result.after.values():
        assert nodes_of(graph, "_Recv") == []
    for name, graph in result.before.items():
        assert nodes_of(result.after[name], "_Send") == nodes_of(graph, "_Send")


def test_fused_node_stands_where_its_receives_stood():
    result = rewrite(
        partitions(*_pair("ab", PS0, W0), node("u", "Identity", ["recv_b"], W0, T=tf.float32))
    )
    assert structure(result.after[PS0]) == structure(result.before[PS0])
    assert structure(result.after[W0]) == [
        "tf_fuse/ps_0_to_worker_0/depth_1 = _FuseRecv()",
        "u = Identity(tf_fuse/ps_0_to_worker_0/depth_1:1)",
    ]
    (fused,) = nodes_of(result.after[W0], "_FuseRecv")
    assert fused.device == W0
    assert list(fused.attr["tensor_names"].list.s) == [b"a", b"b"]
    assert list(fused.attr["tensor_types"].list.type) == [tf.float32.as_datatype_enum] * 2
    assert fused.attr["send_device"].s.decode() == PS0
    assert fused.attr["recv_device"].s.decode() == W0
    assert fused.attr["send_device_incarnation"].i == 1


def test_values_of_different_types_share_a_group():
    result = rewrite(
        partitions(*_pair("a", PS0, W0), *_pair("b", PS0, W0, tf.int64), *_pair("c", PS0, W0))
    )
    assert groups(result) == [["a", "b", "c"]]
    assert [s.dtype for s in result.report.groups[0].slots] == ["float", "int64", "float"]


def test_chain_of_depths_makes_one_group_each():
    def build():
        values = [source(PS0, "a0"), source(PS0, "b0")]
        for level, on in enumerate([W0, PS0, W0], start=1):
            a = use(on, f"a{level}", *values)
            values = [a, use(on, f"b{level}", *values)]

    result = rewrite(trace(build))
    assert sorted_groups(result) == [["a0", "b0"], ["a1", "b1"], ["a2", "b2"]]
    assert sorted(g.depth for g in result.report.groups) == [1, 2, 3]


def test_receivers_are_kept_apart():
    result = rewrite(partitions(*_pair("ab", PS0, W0), *_pair("cd", PS0, W1)))
    assert sorted_groups(result) == [["a", "b"], ["c", "d"]]


def test_receives_within_a_task_are_counted_and_left():
    gpu = device("worker", 0, "GPU")
    result = rewrite(partitions(*_pair("ab", W0, gpu)))
    assert (groups(result), skips(result), result.report.local_receives) == ([], {}, 2)


def test_control_edges_move_to_the_fused_node():
    result = rewrite(
        partitions(
            *_pair("ab", PS0, W0)[:2],
            recv("a", PS0, W0, control=("before",)),
            *_pair("b", PS0, W0),
            node("before", "NoOp", [], W0),
            node("after", "NoOp", ["^recv_a", "^recv_b"], W0),
        )
        if False
        else partitions(
            const("a", PS0),
            send("a", "a", PS0, W0),
            recv("a", PS0, W0, control=("before",)),
            *_pair("b", PS0, W0),
            node("before", "NoOp", [], W0),
            node("after", "NoOp", ["^recv_a", "^recv_b"], W0),
        )
    )
    assert structure(result.after[W0]) == [
        "after = NoOp(^tf_fuse/ps_0_to_worker_0/depth_1)",
        "before = NoOp()",
        "tf_fuse/ps_0_to_worker_0/depth_1 = _FuseRecv(^before)",
    ]


def test_control_edges_across_tasks_are_received_together():
    def build():
        with tf.device(PS0):
            first, second = v1.placeholder(tf.float32, (), "p"), v1.placeholder(tf.float32, (), "q")
        with tf.device(W0):
            with tf.control_dependencies([first]):
                tf.no_op("after_first")
            with tf.control_dependencies([second]):
                tf.no_op("after_second")

    result = rewrite(trace(build))
    assert list(map(len, groups(result))) == [2]
    assert skips(result) == {}


def _shared(*waits: str):
    """Values a, b on a server, each below the blocking operation named at its place ("" none)."""
    made = []
    for queue in sorted(set(waits) - {""}):
        made.append(node(f"{queue}_handle", "FIFOQueueV2", [], PS0, component_types=[tf.float32]))
        made.append(
            node(queue, "QueueDequeueV2", [f"{queue}_handle"], PS0, component_types=[tf.float32])
        )
    for name, wait in zip("abcd", waits, strict=False):
        on = [f"^{wait}"] if wait else []
        made.append(node(name, "Placeholder", on, PS0, dtype=tf.float32))
        made.append(send(name, name, PS0, W0))
        made.append(recv(name, PS0, W0))
    return partitions(*made)


def test_receives_below_different_blocking_operations_are_kept_apart():
    result = rewrite(_shared("", "", "q", "q"))
    assert sorted_groups(result) == [["a", "b"], ["c", "d"]]
    result = rewrite(_shared("q", "r", "q", "r"))
    assert sorted_groups(result) == [["a", "c"], ["b", "d"]]
    assert skips(rewrite(_shared("", "q"))) == {"alone": ["a", "b"]}


@pytest.mark.parametrize(
    ("op", "kept"), [("AssignVariableOp", True), ("AssignAddVariableOp", False)]
)
def test_value_that_a_variable_takes_over_is_copied_out_of_the_frame(op, kept):
    result = rewrite(
        partitions(
            *_pair("ab", W0, PS0),
            node("var", "VarHandleOp", [], PS0, dtype=tf.float32),
            node("same", "Identity", ["recv_a"], PS0, T=tf.float32),
            node("assign", op, ["var", "same"], PS0, dtype=tf.float32),
            node("neg", "Neg", ["recv_b"], PS0, T=tf.float32),
        )
    )
    (fused,) = nodes_of(result.after[PS0], "_FuseRecv")
    assert list(fused.attr["copy_out"].list.b) == ([True, False] if kept else [])


def test_order_of_nodes_does_not_matter():
    graph = trace(_exchange)
    first = rewrite(graph)
    rng = random.Random(0)
    for _ in range(5):
        nodes = list(graph.node)
        rng.shuffle(nodes)
        again = rewrite(graph_pb2.GraphDef(versions=graph.versions, node=nodes))
        assert groups(again) == groups(first)
        assert [g.node for g in again.report.groups] == [g.node for g in first.report.groups]


# One case for each reason to leave a receive alone.


def test_alone():
    result = rewrite(partitions(*_pair("a", PS0, W0), *_pair("b", PS1, W0)))
    assert (groups(result), skips(result)) == ([], {"alone": ["a", "b"]})
    assert structure(result.after[W0]) == structure(result.before[W0])


def test_client_terminated():
    result = rewrite(
        partitions(*_pair("ab", PS0, W0), *_pair("cd", PS0, W0, client_terminated=True))
    )
    assert (groups(result), skips(result)) == ([["a", "b"]], {"client_terminated": ["c", "d"]})


def test_not_cpu():
    ps_gpu, worker_gpu = device("ps", 0, "GPU"), device("worker", 0, "GPU")
    result = rewrite(partitions(*_pair("ab", ps_gpu, W0), *_pair("cd", PS0, worker_gpu)))
    assert (groups(result), skips(result)) == ([], {"not_cpu": ["a", "b", "c", "d"]})


@pytest.mark.parametrize("dtype", [tf.string, tf.resource, tf.variant])
def test_type_not_raw(dtype):
    result = rewrite(partitions(*_pair("ab", PS0, W0), *_pair("cd", PS0, W0, dtype)))
    assert (groups(result), skips(result)) == ([["a", "b"]], {"type_not_raw": ["c", "d"]})


def test_host_memory():
    result = rewrite(
        partitions(*_pair("ab", PS0, W0), *_pair("cd", PS0, W0, _hostmem_sendrecv=True))
    )
    assert (groups(result), skips(result)) == ([["a", "b"]], {"host_memory": ["c", "d"]})


def test_sender_not_visible():
    # What hangs on a value from nowhere has no known depth either.
    result = rewrite(
        partitions(
            recv("x", PS1, PS0),
            node("c", "Identity", ["recv_x"], PS0, T=tf.float32),
            send("c", "c", PS0, W0),
            recv("c", PS0, W0),
            *_pair("ab", PS0, W0),
        )
    )
    assert (groups(result), skips(result)) == ([["a", "b"]], {"sender_not_visible": ["", "c"]})


def test_peer_without_plugin():
    graph = trace(_exchange)
    result = rewrite(graph, plain_tasks=["/job:ps/replica:0/task:0"])
    # A sender without the plugin is for the receiver to find out, at run time.
    assert sorted_groups(result) == [["w", "z"], ["x", "y"]]
    assert skips(result) == {"peer_without_plugin": ["one", "two"]}


def _crossing():
    return partitions(
        *_pair("a", PS0, W0),
        send("b", "recv_a", W0, PS0),
        recv("b", W0, PS0),
        send("c", "recv_b", PS0, W0),
        recv("c", PS0, W0),
    )


def test_would_cycle():
    result = rewrite(_crossing(), grouping="all")
    assert groups(result) == []
    assert skips(result) == {"alone": ["recv_a"], "would_cycle": ["a", "recv_b"]}
    assert skips(rewrite(_crossing())) == {"alone": ["a", "recv_a", "recv_b"]}


def test_cyclic_graph():
    result = rewrite(
        partitions(
            node("a", "Identity", ["recv_b"], PS0, T=tf.float32),
            send("a", "a", PS0, W0),
            recv("a", PS0, W0),
            send("b", "recv_a", W0, PS0),
            recv("b", W0, PS0),
        )
    )
    assert (groups(result), skips(result)) == ([], {"cyclic_graph": ["a", "recv_a"]})


def test_unknown_grouping_is_refused():
    with pytest.raises(ValueError, match="grouping is 'depth' or 'all', got 'none'"):
        rewrite(_crossing(), grouping="none")
