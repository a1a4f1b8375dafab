# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One case for each reason to leave a receive alone; docs/fuse_recv.md describes each."""

import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from tests.unit.passes.pass_testing import (
    PS0,
    PS1,
    W0,
    W1,
    const,
    device,
    groups,
    node,
    nodes_of,
    pair,
    partitions,
    recv,
    send,
    skips,
    sorted_groups,
    structure,
    trace,
    two,
    v1,
    verdicts,
)
from tf_fuse.explain import rewrite


def test_a_receive_that_is_alone_stays():
    # One goes to each of two tasks.
    nodes = [const("x", PS0), const("y", PS0)]
    result = rewrite(partitions(*nodes, *pair("x", "x", PS0, W0), *pair("y", "y", PS0, W1)))
    assert skips(result) == {"alone": ["x", "y"]}
    assert not any(nodes_of(graph, "_FuseRecv") for graph in result.after.values())


def test_client_terminated():
    result = rewrite(partitions(*two(client_terminated=True)))
    assert skips(result) == {"client_terminated": ["x", "y"]}


@pytest.mark.parametrize(
    ("from_", "to"), [(device("ps", 0, "GPU"), W0), (PS0, device("worker", 0, "GPU"))]
)
def test_not_cpu(from_, to):
    assert skips(rewrite(partitions(*two(from_, to)))) == {"not_cpu": ["x", "y"]}


GPU_PS, GPU_W = device("ps", 0, "GPU"), device("worker", 0, "GPU")


@pytest.mark.parametrize(("from_", "to"), [(GPU_PS, W0), (PS0, GPU_W), (GPU_PS, GPU_W)])
def test_gpus_are_fused_on_request(from_, to):
    result = rewrite(partitions(*two(from_, to)), fuse_gpu=True)
    assert groups(result) == [["x", "y"]]
    assert len(nodes_of(result.after[to], "_FuseRecv")) == 1


@pytest.mark.parametrize(
    ("from_", "to"), [(device("ps", 0, "TPU"), W0), (PS0, device("ps", 1, "TPU"))]
)
def test_other_accelerators_are_left_alone(from_, to):
    result = rewrite(partitions(*two(from_, to)), fuse_gpu=True)
    assert skips(result) == {"not_cpu": ["x", "y"]}


@pytest.mark.parametrize("dtype", [tf.string, tf.variant, tf.resource], ids=lambda d: d.name)
def test_what_is_no_plain_bytes_is_not_copied_between_memories(dtype):
    result = rewrite(partitions(*two(GPU_PS, W0, dtype=dtype)), fuse_gpu=True)
    assert skips(result) == {"not_cpu": ["x", "y"]}


def test_memory_of_the_host_is_a_group_of_its_own():
    names = ["a", "b", "c", "d"]
    nodes = [
        *[const(name, PS0) for name in names],
        *[send(name, name, PS0, GPU_W) for name in names],
        *[recv(name, PS0, GPU_W) for name in names],
    ]
    for n in nodes:
        if n.op == "_Recv" and n.attr["tensor_name"].s in (b"a", b"c"):
            n.op = "_HostRecv"
    result = rewrite(partitions(*nodes), fuse_gpu=True)
    assert sorted(groups(result)) == [["a", "c"], ["b", "d"]]
    (in_host,) = nodes_of(result.after[GPU_W], "_HostFuseRecv")
    (in_device,) = nodes_of(result.after[GPU_W], "_FuseRecv")
    assert list(in_host.attr["tensor_names"].list.s) == [b"a", b"c"]
    assert list(in_device.attr["tensor_names"].list.s) == [b"b", b"d"]


# All that a tensor can have. A _Recv of a reference is not made: the partitioner refuses it.
_TYPES = sorted(
    (
        tf.dtypes.as_dtype(number)
        for name, number in types_pb2.DataType.items()
        if not name.endswith("_REF") and name != "DT_INVALID"
    ),
    key=lambda dtype: dtype.as_datatype_enum,
)


@pytest.mark.parametrize("dtype", _TYPES, ids=lambda dtype: dtype.name)
def test_all_types_are_fused(dtype):
    result = rewrite(partitions(*two(dtype=dtype)))
    assert groups(result) == [["x", "y"]]
    (fused,) = nodes_of(result.after[W0], "_FuseRecv")
    assert list(fused.attr["tensor_types"].list.type) == [dtype.as_datatype_enum] * 2


def test_host_memory():
    nodes = two()
    for n in nodes:
        if n.op == "_Recv":
            n.op = "_HostRecv"
            n.attr["_hostmem_sendrecv"].b = True
    assert skips(rewrite(partitions(*nodes))) == {"host_memory": ["x", "y"]}


@pytest.fixture
def tf1_loops():
    """For tests that name nodes of a loop."""
    was_on = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    yield
    if was_on:
        v1.enable_control_flow_v2()


def test_loop_frame(tf1_loops):
    def build():
        def body(i, a):
            with tf.device(PS0):
                b, c = tf.tanh(a, name="b"), tf.sin(a, name="c")
            return i + 1, b + c

        with tf.device(W0):
            v1.while_loop(lambda i, _: i < 3, body, [tf.constant(0), tf.zeros([2])])

    found = rewrite(trace(build))
    assert [v for name, v in verdicts(found).items() if name.endswith(("/b", "/c"))] == [
        "fused"
    ] * 2
    # In the last iteration the body is dead; the partitioner lets no receive wait for it.
    for n in nodes_of(found.before[W0], "_Recv"):
        n.input[:] = ["^while/Identity"]
    graphs = dict(found.before)
    assert skips(rewrite(graphs)) == {"loop_frame": ["while/b", "while/c"]}


def test_may_be_dead():
    nodes = [
        const("p", PS0, tf.bool),
        const("x", PS0),
        node("switch", "Switch", ["x", "p"], PS0, T=tf.float32),
        *pair("no", "switch", PS0, W0),
        *pair("yes", "switch:1", PS0, W0),
    ]
    assert groups(rewrite(partitions(*nodes))) == [["switch", "switch"]]
    # With an input that may itself be dead the receives must go on as what they are.
    for n in nodes:
        if n.op == "_Recv":
            n.input.append("^there")
    nodes += [
        *pair("p", "p", PS0, W0, dtype=tf.bool),
        node("here", "Switch", ["y", "recv_p"], W0, T=tf.float32),
        node("there", "Identity", ["here"], W0, T=tf.float32),
        const("y", W0),
    ]
    assert skips(rewrite(partitions(*nodes)))["may_be_dead"] == ["switch", "switch"]


def test_sender_not_visible():
    # More than one would share requests: test_dynamic_groups.py.
    seen = partitions(*pair("x", "x", PS0, W0), const("x", PS0))
    assert skips(rewrite(seen)) == {"alone": ["x"]}
    del seen[PS0]
    result = rewrite(seen)
    assert not result.report.groups
    assert [(s.reason, s.slot.tensor_name) for s in result.report.skips] == [
        ("sender_not_visible", "x")
    ]


def test_peer_without_plugin():
    nodes = [*two(), *two(PS1, W1)]
    for n in nodes[6:]:
        n.name = n.name.replace("x", "a").replace("y", "b")
        n.input[:] = [i.replace("x", "a").replace("y", "b") for i in n.input]
    graphs = partitions(*nodes)
    assert sorted_groups(rewrite(graphs)) == [["a", "b"], ["x", "y"]]
    result = rewrite(graphs, plain_tasks=["/job:worker/replica:0/task:1"])
    assert verdicts(result) == {
        "a": "peer_without_plugin",
        "b": "peer_without_plugin",
        "x": "fused",
        "y": "fused",
    }
    # A sending task that lacks it answers one by one, at run time.
    assert (
        rewrite(graphs, plain_tasks=["/job:ps/replica:0/task:0"]).report == rewrite(graphs).report
    )


def test_would_cycle():
    # a goes to the worker and comes back as b, without which c is not sent: a and c together would
    # wait for themselves.
    nodes = [
        const("a", PS0),
        *pair("a", "a", PS0, W0),
        node("b", "Identity", ["recv_a"], W0, T=tf.float32),
        *pair("b", "b", W0, PS0),
        node("c", "Identity", ["recv_b"], PS0, T=tf.float32),
        *pair("c", "c", PS0, W0),
    ]
    result = rewrite(partitions(*nodes), grouping="all")
    assert verdicts(result) == {"a": "would_cycle", "b": "alone", "c": "would_cycle"}
    assert structure(result.after[W0]) == structure(result.before[W0])
    assert verdicts(rewrite(partitions(*nodes))) == dict.fromkeys("abc", "alone")


def test_cyclic_graph():
    nodes = [
        node("a", "Identity", ["recv_b"], PS0, T=tf.float32),
        *pair("a", "a", PS0, W0),
        node("b", "Identity", ["recv_a"], W0, T=tf.float32),
        *pair("b", "b", W0, PS0),
        const("x", PS0),
        const("y", PS0),
        *pair("x", "x", PS0, W0),
        *pair("y", "y", PS0, W0),
    ]
    result = rewrite(partitions(*nodes))
    assert skips(result) == {"cyclic_graph": ["a", "b", "x", "y"]}
    assert not result.report.groups


def test_receives_left_alone_are_marked():
    result = rewrite(partitions(*two(client_terminated=True)))
    marks = [n.attr["_tf_fuse_skip"].s for n in nodes_of(result.after[W0], "_Recv")]
    assert marks == [b"client_terminated"] * 2
    assert not any("_tf_fuse_skip" in n.attr for n in nodes_of(result.before[W0], "_Recv"))
