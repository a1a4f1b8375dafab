# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Takes groups of operations apart again, to compare them with the graph that they were made of."""

from collections.abc import Iterator, Mapping

from tensorflow.core.framework import graph_pb2, node_def_pb2

GROUP = "TfFuse>OperationGroup"


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


def edges(graph: graph_pb2.GraphDef) -> dict[str, tuple]:
    """Each node's operation, data inputs, and all nodes that it waits for by a control edge.

    A data input is (node, output).
    """
    return {
        n.name: (
            n.op,
            [_parsed(text) for text in n.input if not text.startswith("^")],
            {text[1:] for text in n.input if text.startswith("^")},
        )
        for n in graph.node
    }


def _parsed(text: str) -> tuple[str, int]:
    name, _, output = text.partition(":")
    return name, int(output or 0)


def flattened(graphs: Mapping[str, graph_pb2.GraphDef]) -> dict[str, graph_pb2.GraphDef]:
    return {device: taken_apart(graph) for device, graph in graphs.items()}
