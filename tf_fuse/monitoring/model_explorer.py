# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Export the graph before and after the fuse_recv pass in the JSON of Model Explorer.

Of a file, Model Explorer (the package ai-edge-model-explorer) shows the graphs "before" and
"after", also side by side. A layer is a device, then a part of a node's name. No constant's value
is written, and no attribute that is text, but for the names of transferred tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SENDS = ("_Send", "_HostSend")
_RECEIVES = ("_Recv", "_HostRecv")
_FUSED = "_FuseRecv"
# Backgrounds: of what is fused, and of what is left alone.
_FUSED_COLOR, _LEFT_COLOR = "#b7e1cd", "#fce8b2"


def graph_collection(result: Any) -> dict[str, Any]:
    """Return both graphs as plain data.

    Args:
      result: a `tf_fuse.explain.Rewrite`.

    Returns:
      A Model Explorer graph collection, with `label` and `graphs`; write it as JSON.
    """
    report = result.report
    group_of, reason_of = {}, {}
    for group in report.groups:
        for slot in group.slots:
            group_of[group.recv_device, slot.recv_node] = group.node
    for skip in report.skips:
        reason_of[skip.recv_device, skip.slot.recv_node] = skip.reason
    receives = len(group_of) + len(reason_of)
    numbers = {
        "before": {"receives between tasks": receives + len(report.dropped)},
        "after": {"receives between tasks": len(report.groups) + len(reason_of)},
    }
    return {
        "label": "tf_fuse",
        "graphs": [
            _graph(name, partitions, numbers[name], group_of, reason_of)
            for name, partitions in (("before", result.before), ("after", result.after))
        ],
    }


def _graph(
    name: str,
    partitions: Mapping[str, Any],
    numbers: Mapping[str, int],
    group_of: Mapping[tuple[str, str], str],
    reason_of: Mapping[tuple[str, str], str],
) -> dict[str, Any]:
    sends = {
        (*_devices(node), _text(node, "tensor_name")): _id(device, node.name)
        for device, graph in partitions.items()
        for node in graph.node
        if node.op in _SENDS
    }
    nodes = []
    for device, graph in partitions.items():
        for node in graph.node:
            one = _node(device, node)
            tensors = _received(node)
            for index, tensor in enumerate(tensors):
                source = sends.get((*_devices(node), tensor))
                if source is not None:
                    one["incomingEdges"].append(_edge(source, "0", f"tensor {index}"))
            group, reason = group_of.get((device, node.name)), reason_of.get((device, node.name))
            if node.op == _FUSED or group is not None:
                one["style"] = {"backgroundColor": _FUSED_COLOR}
            if group is not None:
                one["attrs"].append(_attribute("becomes a part of", group))
            if reason is not None:
                one["style"] = {"backgroundColor": _LEFT_COLOR}
                one["attrs"].append(_attribute("left alone", reason))
            if tensors:
                one["attrs"].append(_attribute("tensors", "\n".join(tensors)))
            nodes.append(one)
    attributes = {key: str(value) for key, value in {"nodes": len(nodes), **numbers}.items()}
    return {"id": name, "nodes": nodes, "groupNodeAttributes": {"": attributes}}


def _node(device: str, node: Any) -> dict[str, Any]:
    scope = node.name.rpartition("/")[0]
    edges = []
    for index, text in enumerate(node.input):
        source, _, output = text.removeprefix("^").partition(":")
        is_control = text.startswith("^")
        edges.append(
            _edge(_id(device, source), "control" if is_control else output or "0", str(index))
        )
    return {
        "id": _id(device, node.name),
        "label": node.op,
        "namespace": "/".join([_layer(device), *filter(None, scope.split("/"))]),
        "attrs": [_attribute("name", node.name), _attribute("device", device), *_attributes(node)],
        "incomingEdges": edges,
        "outputsMetadata": _outputs(node),
    }


def _edge(source: str, output: str, to: str) -> dict[str, str]:
    return {"sourceNodeId": source, "sourceNodeOutputId": output, "targetNodeInputId": to}


def _attribute(key: str, value: str) -> dict[str, str]:
    return {"key": key, "value": value}


def _attributes(node: Any) -> list[dict[str, str]]:
    """Return the attributes that are types, numbers or truth values."""
    from tensorflow.python.framework import dtypes

    found = []
    for key in sorted(node.attr):
        attribute = node.attr[key]
        kind = attribute.WhichOneof("value")
        if kind == "type":
            found.append(_attribute(key, dtypes.as_dtype(attribute.type).name))
        elif kind in ("i", "f", "b"):
            found.append(_attribute(key, str(getattr(attribute, kind))))
    return found


def _outputs(node: Any) -> list[dict[str, Any]]:
    """Return the static shape of each output, where the graph has it."""
    from tensorflow.python.framework import tensor_shape

    if "_output_shapes" not in node.attr:
        return []
    return [
        {"id": str(i), "attrs": [_attribute("shape", str(tensor_shape.TensorShape(shape)))]}
        for i, shape in enumerate(node.attr["_output_shapes"].list.shape)
    ]


def _received(node: Any) -> list[str]:
    """Return the names of the tensors that a node receives from another device."""
    if node.op == _FUSED:
        names = node.attr["tensor_names"].list.s
        return [name.decode(errors="replace") for name in names]
    return [_text(node, "tensor_name")] if node.op in _RECEIVES else []


def _devices(node: Any) -> tuple[str, str]:
    return _text(node, "send_device"), _text(node, "recv_device")


def _text(node: Any, key: str) -> str:
    value: str = node.attr[key].s.decode(errors="replace")
    return value


def _id(device: str, name: str) -> str:
    return f"{device};{name}"


def _layer(device: str) -> str:
    """Return a device's name as one layer: "ps:1", "worker:0 GPU:1"."""
    from tensorflow.python.framework import device_spec

    spec = device_spec.DeviceSpecV2.from_string(device)
    task = f"{spec.job}:{spec.task}"
    if (spec.device_type, spec.device_index) == ("CPU", 0):
        return task
    return f"{task} {spec.device_type}:{spec.device_index}"
