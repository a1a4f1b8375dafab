# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the fuse_recv pass fuses, what it leaves and why, and what the graphs look like after."""

import random

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.unit.passes.pass_testing import (
    PS0,
    PS1,
    W0,
    W1,
    const,
    groups,
    node,
    nodes_of,
    pair,
    partitions,
    recv,
    send,
    skips,
    sorted_groups,
    source,
    structure,
    trace,
    two,
    use,
    v1,
    verdicts,
)
from tf_fuse.explain import rewrite


def test_graph_before_and_after():
    add = node("sum", "AddN", ["recv_x", "recv_y"], W0, T=tf.float32, N=2)
    result = rewrite(partitions(*two(), add))
    server = ["send_x = _Send(x)", "send_y = _Send(y)", "x = Placeholder()", "y = Placeholder()"]
    assert {k: structure(g) for k, g in result.before.items()} == {
        PS0: server,
        W0: ["recv_x = _Recv()", "recv_y = _Recv()", "sum = AddN(recv_x, recv_y)"],
    }
    name = "tf_fuse/ps_0_to_worker_0/depth_1"
    assert {k: structure(g) for k, g in result.after.items()} == {
        PS0: server,
        W0: [f"sum = AddN({name}, {name}:1)", f"{name} = _FuseRecv()"],
    }
    (fused,) = nodes_of(result.after[W0], "_FuseRecv")
    assert fused.device == W0
    assert list(fused.attr["tensor_types"].list.type) == [tf.float32.as_datatype_enum] * 2
    assert fused.attr["tensor_names"].list.s == [b"x", b"y"]
    assert fused.attr["send_device"].s.decode() == PS0
    assert fused.attr["recv_device"].s.decode() == W0
    assert fused.attr["send_device_incarnation"].i == 1
    assert fused.attr["client_terminated"].b is False
    assert fused.attr["copy_out"].list.b == []
    (group,) = result.report.groups
    assert (group.node, group.send_device, group.recv_device) == (name, PS0, W0)
    assert group.depth == 1
    assert [(s.tensor_name, s.dtype, s.sender_node, s.recv_node) for s in group.slots] == [
        ("x", "float", "x", "recv_x"),
        ("y", "float", "y", "recv_y"),
    ]
    assert not result.report.skips
    assert result.report.partitions == 2
    assert result.report.local_receives == 0


def test_both_directions_and_several_tasks():
    def build():
        weights = [source(on, f"w{i}_{t}") for t, on in enumerate((PS0, PS1)) for i in range(2)]
        for t, worker in enumerate((W0, W1)):
            gradients = [use(worker, f"g{i}_{t}", w) for i, w in enumerate(weights)]
            for i, gradient in enumerate(gradients):
                with tf.device((PS0, PS1)[i // 2]):
                    tf.identity(gradient, name=f"update{i}_{t}")

    result = rewrite(trace(build))
    assert sorted_groups(result) == [
        ["g0_0", "g1_0"],
        ["g0_1", "g1_1"],
        ["g2_0", "g3_0"],
        ["g2_1", "g3_1"],
        ["w0_0", "w1_0"],
        ["w0_0", "w1_0"],
        ["w0_1", "w1_1"],
        ["w0_1", "w1_1"],
    ]
    assert [(g.depth, g.node) for g in result.report.groups] == [
        (1, "tf_fuse/ps_0_to_worker_0/depth_1"),
        (1, "tf_fuse/ps_0_to_worker_1/depth_1"),
        (1, "tf_fuse/ps_1_to_worker_0/depth_1"),
        (1, "tf_fuse/ps_1_to_worker_1/depth_1"),
        (2, "tf_fuse/worker_0_to_ps_0/depth_2"),
        (2, "tf_fuse/worker_0_to_ps_1/depth_2"),
        (2, "tf_fuse/worker_1_to_ps_0/depth_2"),
        (2, "tf_fuse/worker_1_to_ps_1/depth_2"),
    ]
    assert skips(result) == {}
    for graph in result.after.values():
        assert not nodes_of(graph, "_Recv")


def test_chain_worker_server_worker_is_split_by_depth():
    # The lookup of an embedding: keys go to the server, rows come back. The weights that the server
    # sends at once must not wait for the rows.
    def build():
        weights = [source(PS0, name) for name in ("w0", "w1")]
        keys = [source(W0, name) for name in ("k0", "k1")]
        rows = [use(PS0, f"r{i}", k) for i, k in enumerate(keys)]
        use(W0, "loss", *weights, *rows)

    result = rewrite(trace(build))
    found = {tuple(g): r.depth for g, r in zip(groups(result), result.report.groups, strict=True)}
    assert found == {("w0", "w1"): 1, ("k0", "k1"): 1, ("r0", "r1"): 2}


def test_receives_within_a_task_are_no_rpcs():
    other = "/job:worker/replica:0/task:0/device:CPU:1"
    result = rewrite(partitions(*two(other, W0)))
    assert result.report.local_receives == 2
    assert not result.report.groups
    assert not result.report.skips
    assert result.after == result.before


def test_control_edges_go_to_the_fused_receive_and_on_from_it():
    nodes = [
        *two()[:3],
        send("y", "y", PS0, W0),
        const("first", W0),
        const("second", W0),
        recv("x", PS0, W0, control=("first",)),
        recv("y", PS0, W0, control=("first", "second")),
        node("after_x", "NoOp", ["^recv_x"], W0),
        node("after_y", "Identity", ["recv_y", "^recv_x"], W0, T=tf.float32),
    ]
    result = rewrite(partitions(*nodes))
    name = "tf_fuse/ps_0_to_worker_0/depth_1"
    assert structure(result.after[W0]) == [
        f"after_x = NoOp(^{name})",
        f"after_y = Identity({name}:1, ^{name})",
        "first = Placeholder()",
        "second = Placeholder()",
        f"{name} = _FuseRecv(^first, ^second)",
    ]


def test_control_edges_across_tasks_are_received_together():
    def build():
        with tf.device(PS0):
            first, second = v1.placeholder(tf.float32, (), "p"), v1.placeholder(tf.float32, (), "q")
        with tf.device(W0):
            for i, value in enumerate((first, second)):
                with tf.control_dependencies([value]):
                    tf.no_op(f"after{i}")

    result = rewrite(trace(build))
    assert list(map(len, groups(result))) == [2]
    assert skips(result) == {}


def test_values_of_different_types_share_a_group():
    nodes = two()
    nodes += [const("z", PS0, tf.int64), *pair("z", "z", PS0, W0, dtype=tf.int64)]
    result = rewrite(partitions(*nodes))
    assert groups(result) == [["x", "y", "z"]]
    assert [s.dtype for s in result.report.groups[0].slots] == ["float", "float", "int64"]


def test_depth_counts_control_edges_too():
    # y is received only after b came, which the server sends only after x has arrived there.
    nodes = [
        const("x", W0),
        *pair("x", "x", W0, PS0),
        const("y", PS0),
        const("z", PS0),
        node("b", "Identity", ["recv_x"], PS0, T=tf.float32),
        *pair("b", "b", PS0, W0),
        send("y", "y", PS0, W0),
        recv("y", PS0, W0, control=("recv_b",)),
        *pair("z", "z", PS0, W0),
    ]
    assert verdicts(rewrite(partitions(*nodes))) == dict.fromkeys("bxyz", "alone")


def test_names_that_are_taken_are_not_used_again():
    name = "tf_fuse/ps_0_to_worker_0/depth_1"
    result = rewrite(partitions(*two(), const(name, PS0)))
    assert [g.node for g in result.report.groups] == [f"{name}_1"]


def test_order_of_nodes_in_the_file_does_not_matter():
    def build():
        weights = [source(on, f"w{t}{i}") for t, on in enumerate((PS0, PS1)) for i in range(3)]
        results = [use(W0, f"r{i}", w) for i, w in enumerate(weights)]
        use(PS0, "back", *results)

    graph = trace(build)
    first = rewrite(graph)
    rng = random.Random(0)
    for _ in range(5):
        shuffled = rng.sample(list(graph.node), len(graph.node))
        again = rewrite(graph_pb2.GraphDef(versions=graph.versions, node=shuffled))
        assert sorted_groups(again) == sorted_groups(first)
        assert [g.node for g in again.report.groups] == [g.node for g in first.report.groups]


def test_incarnations_are_kept_apart():
    nodes = two()
    for n in nodes:
        if n.name in ("send_y", "recv_y"):
            n.attr["send_device_incarnation"].i = 2
    assert skips(rewrite(partitions(*nodes))) == {"alone": ["x", "y"]}


@pytest.mark.parametrize(
    ("graph", "error", "text"),
    [
        ("text", TypeError, "graph must be a tf.compat.v1.GraphDef or a mapping .*, got str"),
        ({}, ValueError, "there is no partition: the mapping is empty"),
        (graph_pb2.GraphDef(), ValueError, "no node of the graph names a device of a job"),
        (partitions(const("x", W0), const("x", W0)), ValueError, "'x'"),
        (partitions(send("x", "none", PS0, W0)), ValueError, "'none'"),
    ],
)
def test_graphs_that_cannot_be_read(graph, error, text):
    with pytest.raises(error, match=text):
        rewrite(graph)


def test_options_that_are_not_known():
    with pytest.raises(ValueError, match="'depth', 'all' or 'any_frame', got 'size'"):
        rewrite(partitions(*two()), grouping="size")
    graph = graph_pb2.GraphDef(node=[const("x", PS0)])
    with pytest.raises(ValueError, match="default_device is 'CPU:0', which names no device of a"):
        rewrite(graph, default_device="CPU:0")
    with pytest.raises(ValueError, match="default_device is '/job:ps', but a graph that is part"):
        rewrite(partitions(*two()), default_device="/job:ps")


def test_receive_without_an_attribute_that_it_needs():
    nodes = two()
    (broken,) = (n for n in nodes if n.name == "recv_x")
    del broken.attr["tensor_name"]
    with pytest.raises(ValueError, match="tensor_name"):
        rewrite(partitions(*nodes))
