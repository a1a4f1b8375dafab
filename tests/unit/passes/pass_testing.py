# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of the fuse_recv pass: graphs made by hand, and what came out."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2

from tf_fuse.explain import Rewrite, rewrite

v1 = tf.compat.v1

# Options of `rewrite` with which groups by level are divided; small tensors would not be worth it
# at what a call really costs.
SPLITTINGS: dict[str, dict[str, Any]] = {
    "consumer": {"splitting": "consumer"},
    "cost": {"splitting": "cost", "rpc_us": 1.0, "bytes_per_us": 1.0},
}

# The same, but a call costs so much that no group is divided.
UNDIVIDED: dict[str, dict[str, Any]] = {
    "consumer": {},
    "cost": {"splitting": "cost", "rpc_us": 1e9, "bytes_per_us": 1.0},
}


def device(job: str, task: int = 0, kind: str = "CPU") -> str:
    return f"/job:{job}/replica:0/task:{task}/device:{kind}:0"


PS0, PS1, PS2 = (device("ps", i) for i in range(3))
W0, W1 = (device("worker", i) for i in range(2))


def trace(build: Callable[[], Any]) -> graph_pb2.GraphDef:
    """Returns the GraphDef of what `build` makes as TF1 graph code."""
    with tf.Graph().as_default() as graph:
        build()
    return graph.as_graph_def()


def source(on: str, name: str, dtype: tf.DType = tf.float32, shape: Any = (2,)) -> tf.Tensor:
    with tf.device(on):
        return v1.placeholder(dtype, shape, name=name)


def use(on: str, name: str, *values: tf.Tensor) -> tf.Tensor:
    """A node that consumes the values on a device (float32 only)."""
    with tf.device(on):
        return tf.add_n([tf.identity(v, name=f"{name}_in{i}") for i, v in enumerate(values)], name)


def outputs(*values):
    """Sends every value from the worker to a server, under the names out0, out1, ..."""
    for i, value in enumerate(values):
        with tf.device(W0):
            out = tf.identity(value, name=f"out{i}")
        with tf.device(PS0):
            tf.identity(out, name=f"sink{i}")


def switch(value, predicate, on=W0):
    """The two outputs of a Switch, the one for False first."""
    with tf.device(on):
        result = tf.raw_ops.Switch(data=value, pred=predicate)
        return result.output_false, result.output_true


def node(name: str, op: str, inputs: list[str], on: str, /, **attrs: Any) -> node_def_pb2.NodeDef:
    """A NodeDef; attributes are a DType, bool, int, str, or a list of DTypes."""
    result = node_def_pb2.NodeDef(name=name, op=op, input=inputs, device=on)
    for key, value in attrs.items():
        attr = attr_value_pb2.AttrValue()
        if isinstance(value, tf.DType):
            attr.type = value.as_datatype_enum
        elif isinstance(value, bool):
            attr.b = value
        elif isinstance(value, int):
            attr.i = value
        elif isinstance(value, str):
            attr.s = value.encode()
        else:
            attr.list.type.extend(v.as_datatype_enum for v in value)
        result.attr[key].CopyFrom(attr)
    return result


def send(tensor: str, value: str, from_: str, to: str, dtype: tf.DType = tf.float32, **more: Any):
    """A _Send of the tensor with this rendezvous name."""
    attrs = _pair_attrs(tensor, from_, to, more)
    return node(f"send_{tensor}", "_Send", [value], from_, T=dtype, **attrs)


def recv(
    tensor: str,
    from_: str,
    to: str,
    dtype: tf.DType = tf.float32,
    control: tuple[str, ...] = (),
    **more: Any,
):
    """The _Recv of the same; its node is called recv_TENSOR."""
    attrs = _pair_attrs(tensor, from_, to, more)
    inputs = [f"^{name}" for name in control]
    return node(f"recv_{tensor}", "_Recv", inputs, to, tensor_type=dtype, **attrs)


def pair(tensor: str, value: str, from_: str, to: str, **more: Any) -> list[Any]:
    """A _Send of `value` and its _Recv."""
    return [send(tensor, value, from_, to, **more), recv(tensor, from_, to, **more)]


def two(from_: str = PS0, to: str = W0, **more: Any) -> list[Any]:
    """Two values, "x" and "y", that one task sends to another."""
    dtype = more.get("dtype", tf.float32)
    return [
        const("x", from_, dtype),
        const("y", from_, dtype),
        *pair("x", "x", from_, to, **more),
        *pair("y", "y", from_, to, **more),
    ]


def _pair_attrs(tensor: str, from_: str, to: str, more: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "tensor_name": tensor,
        "send_device": from_,
        "recv_device": to,
        "send_device_incarnation": 1,
        "client_terminated": False,
        **more,
    }


def const(name: str, on: str, dtype: tf.DType = tf.float32) -> node_def_pb2.NodeDef:
    return node(name, "Placeholder", [], on, dtype=dtype)


def partitions(*nodes: node_def_pb2.NodeDef) -> dict[str, graph_pb2.GraphDef]:
    """The nodes by their devices, in the order given."""
    result: dict[str, graph_pb2.GraphDef] = {}
    for one in nodes:
        result.setdefault(one.device, graph_pb2.GraphDef()).node.append(one)
    return result


def analysed(graph: Any, **kwargs: Any) -> Rewrite:
    """As `rewrite`, but receives that may be dead are left alone: what the analysis found."""
    return rewrite(graph, leave_may_be_dead=True, **kwargs)


def groups(result: Rewrite) -> list[list[str]]:
    """The nodes whose values each group brings, in the order of its slots."""
    return [[slot.sender_node for slot in group.slots] for group in result.report.groups]


def parts_of_groups(whole: Rewrite, divided: Rewrite) -> int:
    """How many groups are parts of a larger one of the other rewrite; none may be anything else."""
    wholes, parts = (
        [{slot.recv_node for slot in group.slots} for group in result.report.groups]
        for result in (whole, divided)
    )
    assert [part for part in parts if not any(part <= other for other in wholes)] == []
    return sum(part not in wholes for part in parts)


def sorted_groups(result: Rewrite) -> list[list[str]]:
    """The same for comparisons that do not care for order."""
    return sorted(sorted(group) for group in groups(result))


def skips(result: Rewrite) -> dict[str, list[str]]:
    """The nodes whose values are still received singly, by reason."""
    found: dict[str, list[str]] = {}
    for skip in result.report.skips:
        found.setdefault(skip.reason, []).append(skip.slot.sender_node)
    return {reason: sorted(nodes) for reason, nodes in sorted(found.items())}


def nodes_of(graph: graph_pb2.GraphDef, op: str) -> list[node_def_pb2.NodeDef]:
    return sorted((n for n in graph.node if n.op == op), key=lambda n: n.name)


def structure(graph: graph_pb2.GraphDef) -> list[str]:
    """One line per node, "name = Op(inputs)", sorted: for before and after side by side."""
    lines = []
    for n in graph.node:
        data = [i for i in n.input if not i.startswith("^")]
        control = sorted(i for i in n.input if i.startswith("^"))
        lines.append(f"{n.name} = {n.op}({', '.join(data + control)})")
    return sorted(lines)


def verdicts(result: Rewrite) -> dict[str, str]:
    """Node whose value is received -> "fused", or the reason why it is received singly."""
    found = {slot: "fused" for group in groups(result) for slot in group}
    for skip in result.report.skips:
        found[skip.slot.sender_node] = skip.reason
    return dict(sorted(found.items()))
