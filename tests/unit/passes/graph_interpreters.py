# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Interpreters of partitioned graphs, which share no code and no idea with the pass.

`evaluate` computes each node's value for one choice of all predicates; `stuck` runs partitions
until nothing can fire any more. Both look at graphs only.
"""

from tensorflow.core.framework import graph_pb2

DEAD = "dead"


def _joined(before: dict[str, graph_pb2.GraphDef]) -> dict[str, list[str]]:
    """All nodes of all partitions by name, and the Sends of each receive as further data inputs."""
    nodes = {n.name: n for graph in before.values() for n in graph.node}
    sends = {n.attr["tensor_name"].s: n.name for n in nodes.values() if n.op.endswith("Send")}
    inputs = {name: list(n.input) for name, n in nodes.items()}
    for name, n in nodes.items():
        if n.op == "_FuseRecv":
            inputs[name] += [sends[tensor] for tensor in n.attr["tensor_names"].list.s]
        elif n.op.endswith("Recv"):
            inputs[name].append(sends[n.attr["tensor_name"].s])
    return inputs


def deadness(graphs: dict[str, graph_pb2.GraphDef], choice: dict[str, bool]) -> set[str]:
    """The nodes that are dead in a step in which the predicates have these values."""
    return {name for name, value in evaluate(graphs, choice).items() if value is DEAD}


def evaluate(graphs: dict[str, graph_pb2.GraphDef], choice: dict[str, bool]) -> dict[str, object]:
    """Each node's value in a step in which the predicates have these values.

    The executor's rules: a node with a dead input, data or control, is dead; a Merge is dead when
    all its data inputs are; a Switch's untaken output is dead. Only a Recv hands a dead value on.
    """
    nodes = {n.name: n for graph in graphs.values() for n in graph.node}
    inputs = _joined(graphs)
    values: dict[str, object] = {}
    pending = list(nodes)
    while pending:
        rest = [name for name in pending if not _fire(nodes[name], inputs[name], values, choice)]
        assert len(rest) < len(pending), f"cyclic: {rest}"
        pending = rest
    return values


def _fire(n, inputs: list[str], values: dict[str, object], choice: dict[str, bool]) -> bool:
    """Evaluates one node if all its inputs are there."""
    names = [i.removeprefix("^").split(":")[0] for i in inputs]
    if any(name not in values for name in names):
        return False
    data = []
    for i, name in zip(inputs, names, strict=True):
        if i.startswith("^"):
            continue
        value = values[name]
        if isinstance(value, tuple):  # a Switch: (taken output, value)
            output = int(i.split(":")[1]) if ":" in i else 0
            value = value[1] if value[0] == output else DEAD
        elif isinstance(value, list):  # a _FuseRecv: tensors, which are live
            value = value[int(i.split(":")[1]) if ":" in i else 0]
        data.append(value)
    control_dead = any(
        values[name] is DEAD for i, name in zip(inputs, names, strict=True) if i.startswith("^")
    )
    live = [value for value in data if value is not DEAD]
    if n.op == "_FuseRecv":
        values[n.name] = DEAD if control_dead else _fused_outputs(n, data)
    elif n.op == "Merge":
        values[n.name] = live[0] if live else DEAD
    elif control_dead or len(live) < len(data):
        values[n.name] = DEAD
    elif n.op == "Switch":
        values[n.name] = (int(data[1]), data[0])
    elif n.op == "LogicalNot":
        values[n.name] = not data[0]
    elif n.op == "Placeholder":
        values[n.name] = choice.get(n.name, 0.0)
    else:
        values[n.name] = data[0] if data else 0.0
    return True


def _fused_outputs(n, data: list[object]) -> list[object]:
    may_be_dead = list(n.attr["may_be_dead"].list.b) or [False] * len(data)
    assert not any(
        value is DEAD for value, may in zip(data, may_be_dead, strict=True) if not may
    ), f"{n.name} was told that this one is never dead"
    alive = [value is not DEAD for value, may in zip(data, may_be_dead, strict=True) if may]
    return ["empty" if value is DEAD else value for value in data] + alive


def stuck(after: dict[str, graph_pb2.GraphDef], together: list[list[str]] = ()) -> set[str]:
    """Runs all partitions at once; returns the nodes that never fire.

    A receive fires when its control inputs have, and every Send of every tensor it names.

    Args:
      after: the partitions.
      together: names of receives that are to fire as one, each when all of them can.
    """
    nodes = {n.name: n for graph in after.values() for n in graph.node}
    partner = {name: group for group in together for name in group}
    sends = {n.attr["tensor_name"].s: n.name for n in nodes.values() if n.op.endswith("Send")}
    fired: set[str] = set()

    def ready(name: str) -> bool:
        n = nodes[name]
        needed = {i.removeprefix("^").split(":")[0] for i in n.input}
        if n.op == "_FuseRecv":
            needed |= {sends[t] for t in n.attr["tensor_names"].list.s}
        elif n.op.endswith("Recv"):
            needed.add(sends[n.attr["tensor_name"].s])
        return needed <= fired

    while True:
        new = {name for name in nodes.keys() - fired if all(map(ready, partner.get(name, [name])))}
        if not new:
            return nodes.keys() - fired
        fired |= new
