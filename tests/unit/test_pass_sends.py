# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which groups the sender's graph packs (_FuseSend), which it does not and why, and the graphs."""

import functools
import re
from pathlib import Path

import pytest
import tensorflow as tf
from pass_testing import (
    PS0,
    PS1,
    W0,
    W1,
    const,
    node,
    nodes_of,
    partitions,
    recv,
    send,
    skips,
    source,
    structure,
    trace,
    v1,
)

from tf_fuse import cli, explain
from tf_fuse.cli import example_graphs
from tf_fuse.cli.explain import UNPACKED_REASONS

rewrite = functools.partial(explain.rewrite, pack_sends=True)
_ROOT = Path(__file__).resolve().parents[2]
_RECV = "tf_fuse/ps_0_to_worker_0/depth_1"
_SEND = f"{_RECV}/send"


def _pair(tensor, value, from_, to, **more):
    return [send(tensor, value, from_, to, **more), recv(tensor, from_, to, **more)]


def _two(from_=PS0, to=W0, **more):
    """Two values sent from one task to another."""
    dtype = more.get("dtype", tf.float32)
    values = [const("x", from_, dtype), const("y", from_, dtype)]
    return values + [n for name in "xy" for n in _pair(name, name, from_, to, **more)]


def _with_attr(nodes, names, key, **value):
    for n in nodes:
        if n.name in names:
            n.attr[key].MergeFrom(type(n.attr[key])(**value))
    return nodes


def _reason(nodes, **kwargs):
    """Why the handler packs the only group; "" if the graph does."""
    result = rewrite(partitions(*nodes), **kwargs)
    (group,) = result.report.groups
    sends = [n for graph in result.after.values() for n in nodes_of(graph, "_FuseSend")]
    (fused,) = [n for graph in result.after.values() for n in nodes_of(graph, "_FuseRecv")]
    assert (
        group.packed_by_sender == (group.unpacked_reason == "") == bool(fused.attr["packed_name"].s)
    )
    assert [n.name for n in sends] == ([group.send_node] if group.packed_by_sender else [])
    if not group.packed_by_sender:
        assert group.send_node == ""
        assert structure(result.after[group.send_device]) == structure(
            result.before[group.send_device]
        )
    return group.unpacked_reason


def test_graph_before_and_after():
    add = node("sum", "AddN", ["recv_x", "recv_y"], W0, T=tf.float32, N=2)
    result = rewrite(partitions(*_two(), add))
    assert {k: structure(g) for k, g in result.before.items()} == {
        PS0: ["send_x = _Send(x)", "send_y = _Send(y)", "x = Placeholder()", "y = Placeholder()"],
        W0: ["recv_x = _Recv()", "recv_y = _Recv()", "sum = AddN(recv_x, recv_y)"],
    }
    assert {k: structure(g) for k, g in result.after.items()} == {
        PS0: [f"{_SEND} = _FuseSend(x, y)", "x = Placeholder()", "y = Placeholder()"],
        W0: [f"sum = AddN({_RECV}, {_RECV}:1)", f"{_RECV} = _FuseRecv()"],
    }
    (sending,) = nodes_of(result.after[PS0], "_FuseSend")
    (receiving,) = nodes_of(result.after[W0], "_FuseRecv")
    assert sending.device == PS0
    assert sending.attr["packed_name"].s == receiving.attr["packed_name"].s == b"tf_fuse/x"
    assert list(sending.attr["tensor_types"].list.type) == [tf.float32.as_datatype_enum] * 2
    assert sending.attr["tensor_names"].list.s == [b"x", b"y"]
    assert sending.attr["send_device"].s.decode() == PS0
    assert sending.attr["recv_device"].s.decode() == W0
    assert sending.attr["send_device_incarnation"].i == 1
    # What this process reads, which stands for the receiver here.
    assert (sending.attr["frame_version"].i, sending.attr["max_frame_bytes"].i) == (2, 2**24)
    (group,) = result.report.groups
    assert (group.node, group.send_node) == (_RECV, _SEND)
    assert (group.packed_by_sender, group.unpacked_reason) == (True, "")


def test_control_edges_into_the_senders_go_to_the_fused_send():
    nodes = _two()
    nodes[2].input.append("^first")
    nodes[4].input.extend(["^first", "^second"])
    result = rewrite(partitions(*nodes, const("first", PS0), const("second", PS0)))
    assert f"{_SEND} = _FuseSend(x, y, ^first, ^second)" in structure(result.after[PS0])


def test_one_value_to_several_receivers():
    nodes = [const("x", PS0), const("y", PS0)]
    for to, task in ((W0, "w0"), (W1, "w1")):
        nodes += [n for v in "xy" for n in _pair(f"{v}_{task}", v, PS0, to)]
    # And the same value twice to one of them.
    nodes += _pair("x_again", "x", PS0, W1)
    result = rewrite(partitions(*nodes))
    assert structure(result.after[PS0]) == [
        "tf_fuse/ps_0_to_worker_0/depth_1/send = _FuseSend(x, y)",
        "tf_fuse/ps_0_to_worker_1/depth_1/send = _FuseSend(x, x, y)",
        "x = Placeholder()",
        "y = Placeholder()",
    ]


def test_what_is_received_may_be_sent_on():
    # From ps 0 by the worker to ps 1: the rewrite of one group changes the other's inputs.
    nodes = _two()
    nodes += [n for v in "xy" for n in _pair(f"on_{v}", f"recv_{v}", W0, PS1)]
    nodes += [node("sum", "AddN", ["recv_on_x", "recv_on_y"], PS1, T=tf.float32, N=2)]
    result = rewrite(partitions(*nodes))
    on = "tf_fuse/worker_0_to_ps_1/depth_2"
    assert structure(result.after[W0]) == [
        f"{_RECV} = _FuseRecv()",
        f"{on}/send = _FuseSend({_RECV}, {_RECV}:1)",
    ]
    (fused,) = nodes_of(result.after[W0], "_FuseRecv")
    assert list(fused.attr["copy_out"].list.b) == [], "sending keeps nothing"


def test_frames_have_names_of_their_own():
    # A tensor has the name that the frame would have.
    nodes = _two()
    nodes += [const("z", PS0), *_pair("tf_fuse/x", "z", PS0, W0)]
    result = rewrite(partitions(*nodes))
    (fused,) = nodes_of(result.after[W0], "_FuseRecv")
    assert fused.attr["tensor_names"].list.s == [b"tf_fuse/x", b"x", b"y"]
    assert fused.attr["packed_name"].s == b"tf_fuse/tf_fuse/x"
    taken = [const("q", PS0), *_pair("tf_fuse/x", "q", PS0, W1)]
    (fused,) = nodes_of(rewrite(partitions(*_two(), *taken)).after[W0], "_FuseRecv")
    assert fused.attr["packed_name"].s == b"tf_fuse/x_1"
    taken = rewrite(partitions(*_two(), const(_SEND, W0)))
    assert [g.send_node for g in taken.report.groups] == [f"{_SEND}_1"]


def test_may_be_dead():
    nodes = [
        const("p", PS0, tf.bool),
        *_two(),
        const("z", PS0),
        node("s", "Switch", ["z", "p"], PS0, T=tf.float32),
        *_pair("z", "s:1", PS0, W0),
    ]
    assert _reason(nodes) == "may_be_dead"


def test_dynamic():
    result = rewrite(partitions(*_two()), splitting="dynamic")
    (group,) = result.report.groups
    assert (group.packed_by_sender, group.unpacked_reason) == (False, "dynamic")
    assert {n.op for n in result.after[PS0].node} == {"Placeholder", "_Send"}


def test_session():
    nodes = [*_two(), node("sum", "AddN", ["recv_x", "recv_y"], W0, T=tf.float32, N=2)]
    graph = trace(lambda: [_sum(source(PS0, "x"), source(PS0, "y"))])
    (group,) = rewrite(graph, session=True).report.groups
    assert (group.packed_by_sender, group.unpacked_reason) == (False, "session")
    (group,) = rewrite(partitions(*nodes)).report.groups
    assert group.packed_by_sender


def _sum(*values):
    with tf.device(W0):
        return tf.add_n(values)


def test_gpus():
    gpu = W0.replace("CPU", "GPU")
    for from_, to in ((PS0, gpu), (PS0.replace("CPU", "GPU"), W0)):
        assert _reason(_two(from_, to), fuse_gpu=True) == "not_cpu"


def test_the_key_of_the_frame_may_be_too_long():
    # 37 and 41 bytes of devices, 1 of the name, 61 of the rest; the frame's name has 8 more, and
    # needs room for 12.
    key = len(PS0) + len(W0) + 1 + 61
    assert _reason(_two(), max_key_bytes=key) == "key_too_long"
    assert _reason(_two(), max_key_bytes=key + 19) == "key_too_long"
    assert _reason(_two(), max_key_bytes=key + 20) == ""


def test_loop_frame():
    result = rewrite(example_graphs.build("loop"))
    inside = [group for group in result.report.groups if group.frame]
    assert {(g.packed_by_sender, g.unpacked_reason) for g in inside} == {(False, "loop_frame")}


def test_off_unless_asked_for():
    (group,) = explain.rewrite(partitions(*_two())).report.groups
    assert (group.packed_by_sender, group.unpacked_reason) == (False, "")


def test_sender_without_the_plugin():
    assert _reason(_two(), plain_tasks=["/job:ps/replica:0/task:0"]) == "sender_without_plugin"
    assert _reason(_two(), plain_tasks=["/job:ps/replica:0/task:1"]) == ""


def _awaited():
    """One value is read after the other was sent: packed, that one would wait for itself."""
    nodes = _two()
    nodes[1].input.append("^send_x")
    return nodes


_UNUSUAL = {
    "something waits for it": _awaited,
    "of a client": lambda: _with_attr(_two(), {"send_x"}, "client_terminated", b=True),
    "of a call frame": lambda: _with_attr(_two(), {"send_y"}, "_hostmem_sendrecv", b=True),
}


@pytest.mark.parametrize("case", _UNUSUAL)
def test_unusual_send(case):
    assert _reason(_UNUSUAL[case]()) == "unusual_send"


def test_reference():
    # A variable's memory may change between the packing and the sending.
    variable = node("v", "VariableV2", [], PS0, dtype=tf.float32)
    variable.attr["shape"].shape.SetInParent()
    nodes = [variable, const("y", PS0), *_pair("v", "v", PS0, W0), *_pair("y", "y", PS0, W0)]
    assert _reason(nodes) == "unusual_send"


def test_strings():
    # The partitioner sends them by _HostSend.
    result = rewrite(trace(lambda: [_join(source(PS0, name, tf.string)) for name in ("x", "y")]))
    (group,) = result.report.groups
    assert [n.op for n in result.before[PS0].node if "Send" in n.op] == ["_HostSend"] * 2
    assert (group.packed_by_sender, group.unpacked_reason) == (True, "")
    assert not nodes_of(result.after[PS0], "_HostSend")


def _join(value):
    with tf.device(W0):
        return tf.strings.join([value, "!"])


def test_two_receives_of_one_sender():
    # No partitioner makes this; the sender must not be taken twice.
    again = recv("x", PS0, W0)
    again.name = "again"
    assert _reason([*_two(), again]) == "unusual_send"


def test_would_cycle():
    assert _reason(_awaited(), pack_awaited_sends=True) == "would_cycle"
    late = [const("z", PS0), *_two()]
    late[0].input.append("^send_x")
    assert _reason(late, pack_awaited_sends=True) == ""
    result = rewrite(partitions(*late), pack_awaited_sends=True)
    assert f"z = Placeholder(^{_SEND})" in structure(result.after[PS0])


def test_every_reason_is_explained():
    header = (_ROOT / "cc/passes/fuse_send_analysis.h").read_text()
    reasons = re.findall(r'constexpr char \w+\[\] = "(\w+)"', header)
    assert sorted(reasons) == sorted(UNPACKED_REASONS)
    docs = (_ROOT / "docs/fuse_recv.md").read_text()
    section = docs.partition("## Who packs")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == reasons


def test_explain_says_who_packs(capsys):
    assert cli.main(["explain", "--example", "cond"]) == 0
    assert "packed by" not in capsys.readouterr().out
    assert cli.main(["explain", "--example", "cond", "--pack-sends"]) == 0
    out = capsys.readouterr().out
    assert "packed by" in out
    assert "may_be_dead: packed by the handler, " in out


def test_a_whole_training_step_is_packed():
    def build():
        with tf.device(PS0):
            tables = [v1.get_variable(f"t{i}", (8, 2), use_resource=True) for i in range(3)]
        with tf.device(W0):
            ids = [v1.placeholder(tf.int32, (4,), f"ids{i}") for i in range(3)]
            rows = [tf.gather(t, i) for t, i in zip(tables, ids, strict=True)]
            loss = tf.reduce_sum(tf.concat(rows, 0) ** 2)
            for table, gradient in zip(tables, tf.gradients(loss, tables), strict=True):
                tf.raw_ops.ResourceScatterAdd(
                    resource=table.handle, indices=gradient.indices, updates=gradient.values
                )

    result = rewrite(trace(build))
    assert skips(result) == {}
    assert {group.depth for group in result.report.groups} == {1, 2, 3}
    assert all(group.packed_by_sender for group in result.report.groups)
    for graph in result.after.values():
        assert not nodes_of(graph, "_Send")
