# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Graphs for groups of operations, and groups taken apart, to compare them with those."""

import random
from collections.abc import Iterator, Mapping

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tests.unit.passes.pass_testing import PS0, PS1, W0, trace
from tests.unit.passes.pass_testing import node as new_node

GROUP = "TfFuse>OperationGroup"
DEVICES = [PS0, PS1, W0]


def body_of(group: node_def_pb2.NodeDef) -> graph_pb2.GraphDef:
    return graph_pb2.GraphDef.FromString(group.attr["body"].s)


def taken_apart(graph: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """The graph without groups: each operation of a body is a node again.

    Which operation a control edge of a group came from, or led to, is not to be seen, so each of
    the body has those that lead to the group, and what waits for the group waits for all of them.
    """
    bodies = {n.name: body_of(n) for n in graph.node if n.op == GROUP}
    results = {n.name: [r.decode() for r in n.attr["results"].list.s] for n in graph.node}
    flat = graph_pb2.GraphDef()

    def outside(text: str) -> Iterator[str]:
        name, _, output = text.removeprefix("^").partition(":")
        if name not in bodies:
            yield text
        elif text.startswith("^"):
            yield from (f"^{n.name}" for n in bodies[name].node)
        else:
            yield results[name][int(output or 0)]

    for node in graph.node:
        if node.op != GROUP:
            copy = flat.node.add()
            copy.CopyFrom(node)
            copy.input[:] = [one for text in node.input for one in outside(text)]
            continue
        data = [text for text in node.input if not text.startswith("^")]
        control = [text for text in node.input if text.startswith("^")]
        for inner in bodies[node.name].node:
            copy = flat.node.add()
            copy.CopyFrom(inner)
            inputs = [data[int(t[1:])] if t.startswith(":") else t for t in inner.input]
            copy.input[:] = [one for text in [*inputs, *control] for one in outside(text)]
    return flat


def at_once(graph: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """The graph with groups that start when all that they need is there.

    A node in place of the group has its inputs; the operations of its body wait for that one.
    """
    whole = graph_pb2.GraphDef()
    for node in graph.node:
        if node.op == GROUP:
            whole.node.add(name=f"{node.name}/start", op="NoOp").input.extend(_names(node.input))
    flat = taken_apart(graph)
    start_of = {
        inner.name: f"^{node.name}/start"
        for node in graph.node
        if node.op == GROUP
        for inner in body_of(node).node
    }
    for node in flat.node:
        if node.name in start_of:
            node.input.append(start_of[node.name])
    members = {
        node.name: [f"^{n.name}" for n in body_of(node).node]
        for node in graph.node
        if node.op == GROUP
    }
    for start in whole.node:
        start.input[:] = [
            one for text in start.input for one in members.get(text.removeprefix("^"), [text])
        ]
    whole.node.extend(flat.node)
    return whole


def _names(inputs: list[str]) -> list[str]:
    """As control inputs."""
    return [f"^{text.removeprefix('^').partition(':')[0]}" for text in inputs]


def check_joint_sends(graphs: Mapping[str, graph_pb2.GraphDef]) -> int:
    """Check that each slot of a `_FuseRecv` gets its own tensor; return how many come jointly.

    A joint send stands in the rendezvous under the name of its first tensor, and has its tensors by
    their places. It leaves when all of them are there, so it must be of one group, and all must go
    to one request.
    """
    sent: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
    for graph in graphs.values():
        for group in graph.node:
            if group.op != GROUP:
                assert "_tf_fuse_joint_send" not in group.attr, group.name
                continue
            for inner in body_of(group).node:
                if "_tf_fuse_joint_send" in inner.attr:
                    key = (inner.attr["_tf_fuse_joint_send"].s.decode(), group.name)
                    place = inner.attr["_tf_fuse_joint_place"].i
                    devices = inner.attr["send_device"].s + inner.attr["recv_device"].s
                    name = inner.attr["tensor_name"].s.decode()
                    sent.setdefault(key, []).append((place, name, devices.decode()))
    by_name = {name: parts for (name, _), parts in sent.items()}
    assert len(by_name) == len(sent), "two groups send under one key"
    count = 0
    for graph in graphs.values():
        for receive in graph.node:
            begin = 0
            names = [name.decode() for name in receive.attr["tensor_names"].list.s]
            devices = (receive.attr["send_device"].s + receive.attr["recv_device"].s).decode()
            for size in receive.attr["joint_sends"].list.i:
                wanted = names[begin : begin + size]
                found = sorted(by_name.pop(wanted[0]))
                assert found == [(i, name, devices) for i, name in enumerate(wanted)], receive.name
                begin += size
                count += size
    assert not by_name, f"nobody receives {sorted(by_name)}"
    return count


def edges(graph: graph_pb2.GraphDef) -> dict[str, tuple]:
    """Each node's operation, data inputs, and all nodes that it waits for by a control edge.

    A data input is (node, output). The outputs of a `_FuseRecv` may have any order, so instead of
    their numbers stand the names of the tensors, or ("alive", name) for the bit of one that may be
    dead; and so in the name of a Switch on such a bit.
    """
    received = {n.name: _outputs_of(n) for n in graph.node if n.op == "_FuseRecv"}
    switches = {
        f"{name}/alive_{i}": f"{name}/alive {tensor[0]}"
        for name, tensors in received.items()
        for i, tensor in enumerate(tensors)
    }

    def source(text: str) -> tuple:
        name, output = _parsed(text)
        of_receive = received[name][output] if name in received else (output,)
        return (switches.get(name, name), *of_receive)

    return {
        switches.get(n.name, n.name): (
            n.op,
            [source(text) for text in n.input if not text.startswith("^")],
            {switches.get(text[1:], text[1:]) for text in n.input if text.startswith("^")},
        )
        for n in graph.node
    }


def _outputs_of(receive: node_def_pb2.NodeDef) -> list[tuple[str, ...]]:
    names = [name.decode() for name in receive.attr["tensor_names"].list.s]
    may_be_dead = receive.attr["may_be_dead"].list.b
    alive = [("alive", name) for name, may in zip(names, may_be_dead, strict=False) if may]
    return [*((name,) for name in names), *alive]


def _parsed(text: str) -> tuple[str, int]:
    name, _, output = text.partition(":")
    return name, int(output or 0)


def flattened(graphs: Mapping[str, graph_pb2.GraphDef]) -> dict[str, graph_pb2.GraphDef]:
    return {device: taken_apart(graph) for device, graph in graphs.items()}


def lookups(tables):
    """A worker asks for rows of tables on a server, and changes them."""

    def build():
        with tf.device(PS0):
            handles = [
                tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[9, 2], shared_name=f"table_{i}")
                for i in range(tables)
            ]
        with tf.device(W0):
            batch = tf.compat.v1.placeholder(tf.int32, [3, tables], name="batch")
            ids = [batch[:, i] for i in range(tables)]
        for i, (handle, of_table) in enumerate(zip(handles, ids, strict=True)):
            with tf.device(PS0):
                rows = tf.raw_ops.ResourceGather(
                    resource=handle, indices=of_table, dtype=tf.float32
                )
            with tf.device(W0):
                change = tf.math.square(rows, name=f"change_{i}")
            with tf.device(PS0):
                tf.raw_ops.ResourceScatterSub(
                    resource=handle, indices=of_table, updates=change, name=f"update_{i}"
                )

    return trace(build)


def groups_of(result):
    return [(g.device, dict(g.operations)) for g in result.report.operation_groups]


def random_exchange(seed):
    """An acyclic graph on three tasks: half of its nodes can be put together."""
    rng = random.Random(seed)
    graph = graph_pb2.GraphDef()
    names = []
    for i in range(rng.randint(20, 60)):
        on, name = rng.choice(DEVICES), f"n{i}"
        inputs = rng.sample(names, min(len(names), rng.randint(0, 2)))
        control = ["^" + c for c in rng.sample(names, 1)] if names and rng.random() < 0.2 else []
        if not inputs:
            kind = rng.choice(["Const", "Placeholder", "VariableV2"])
            made = new_node(name, kind, control, on, dtype=tf.float32)
            if kind == "VariableV2":
                made.attr["shape"].shape.CopyFrom(tf.TensorShape([]).as_proto())
            if made.op == "Const":  # Waits for nothing, unless a control edge leads to it.
                made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0.5))
        elif rng.random() < 0.6:
            made = new_node(name, "Identity", [*inputs[:1], *control], on, T=tf.float32)
        else:
            made = new_node(name, "AddN", [*inputs, *control], on, T=tf.float32, N=len(inputs))
        graph.node.append(made)
        names.append(name)
    return graph


def compare(with_groups, without):
    """Each operation has its inputs, and waits for at least what it waited for."""
    for group in (n for g in with_groups.after.values() for n in g.node if n.op == GROUP):
        types = [tf.as_dtype(t) for t in group.attr["Tinputs"].list.type]
        assert not [t for t in types if t._is_ref_dtype], group.name
    taken_apart = flattened(with_groups.after)
    assert taken_apart.keys() == without.after.keys()
    for device, graph in without.after.items():
        before = edges(graph)
        after = edges(taken_apart[device])
        assert after.keys() == before.keys()
        for name, (op, data, control) in before.items():
            assert after[name][:2] == (op, data), name
            assert control <= after[name][2], name
    return check_joint_sends(with_groups.after)


def members_of(result):
    return {
        inner.name
        for graph in result.after.values()
        for group in graph.node
        if group.op == GROUP
        for inner in body_of(group).node
    }
