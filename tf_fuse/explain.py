# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Show what the fuse_recv pass does to a graph, in this process and without a cluster.

    import tf_fuse.explain

    result = tf_fuse.explain.explain_function(step.get_concrete_function(), device="/job:worker")
    for group in result.report.groups:
        print(group.send_device, "->", group.recv_device, len(group.slots))

The graph goes through TensorFlow's own placer and partitioner, and then through the same code that
runs in a worker. Three things differ from a run: Grappler has not optimized the graph; every task
except `plain_tasks` is taken to run the protocol "grpc+fuse"; and `splitting` groups receives by
level, where a run groups by cost.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_fuse import _native

#: Name of a NoOp in a saved graph whose device is where nodes without a device run.
DEFAULT_DEVICE_NODE = "tf_fuse_default_device"

# What the library takes for an empty `splitting`.
_DEFAULT_SPLITTING = "level"

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


@dataclass(frozen=True)
class Rewrite:
    """The graphs before and after the pass.

    Attributes:
      before: the `tf.compat.v1.GraphDef` of each device, from the partitioner; sorted by device.
      after: the same devices, after the pass.
      report: a `tf_fuse.v1.fuse_recv_pb2.FuseReport`: the groups, and the unfused receives.
      splitting: the `fuse_grouping` that was used.
    """

    before: dict[str, Any]
    after: dict[str, Any]
    report: Any
    splitting: str


def rewrite(
    graph: Any,
    plain_tasks: Iterable[str] = (),
    grouping: str = "depth",
    default_device: str | None = None,
    leave_may_be_dead: bool = False,
    splitting: str = "",
    rpc_us: float = 0.0,
    bytes_per_us: float = 0.0,
    max_keys_per_request: int | None = None,
    max_key_bytes: int | None = None,
    session: bool = False,
    fuse_gpu: bool = False,
    addresses: Mapping[str, str] | None = None,
    fuse_operations: bool = False,
    fuse_lookups_unique: bool = False,
    fuse_lookups_combine: bool = False,
) -> Rewrite:
    """Partition a graph by device, and run the fuse_recv pass on it.

    Args:
      graph: a `tf.compat.v1.GraphDef`; or a mapping from device to GraphDef, for a graph that is
        partitioned already. Devices name a job ("/job:ps/task:0"); replica 0, task 0 and CPU:0 are
        supplied where they are missing.
      plain_tasks: tasks ("/job:ps/replica:0/task:0") that are treated as lacking the plugin.
      grouping: "depth", as in a run; "all", which ignores depth, or "any_frame", which ignores
        loops: the verifier must reject these.
      default_device: where nodes without a device run, unless a resource or a colocation places
        them. None means, in this order: the device of a NoOp named `DEFAULT_DEVICE_NODE`, the
        first device of the job "worker", the first device in sorted order. Must be None for a
        mapping.
      leave_may_be_dead: do not fuse receives that may be dead, with that reason, to show what the
        analysis found for each of them.
      splitting: the option `fuse_grouping`: which of the tensors that may share a call share it.
        Empty for "level", which needs no estimates; the default of runs is "cost".
      rpc_us: for the splitting "cost": by how many microseconds a call delays those after it. 0 for
        the default.
      bytes_per_us: for the splitting "cost": how fast a tensor travels. 0 for the default.
      max_keys_per_request: the most tensors of one group, at least 2; None for what
        TF_FUSE_MAX_KEYS_PER_REQUEST says here.
      max_key_bytes: the most bytes of a rendezvous key, at least 1; None for 4096.
      session: as in a session (docs/sessions.md): its master stamps the graph, and each task
        rewrites its partition by the stamps alone. A mapping must be stamped already.
      fuse_gpu: the option `do_fuse_gpu`.
      addresses: for the splitting "cost": "host:port" of each task ("/job:ps/replica:0/task:0"). A
        task without an address has its own host; runs take the cluster's addresses. Between tasks
        of one host only tensors too large for a frame are split off.
      fuse_operations: the option `fuse_operations`, which is on in runs.
      fuse_lookups_unique: the option of this name; sessions and mappings ignore it.
      fuse_lookups_combine: the same.

    Returns:
      The graphs before and after, and the report.

    Raises:
      TypeError: `graph` is neither a GraphDef nor a mapping of them.
      ValueError: the graph cannot be read, placed or partitioned (with TensorFlow's message), or a
        limit is too small.
    """
    from tensorflow.core.framework import graph_pb2

    if max_keys_per_request is not None and max_keys_per_request < 2:
        raise ValueError(f"max_keys_per_request is {max_keys_per_request}, must be 2 or more")
    if max_key_bytes is not None and max_key_bytes < 1:
        raise ValueError(f"max_key_bytes is {max_key_bytes}, must be 1 or more")
    from tf_fuse.v1 import fuse_recv_pb2

    request = fuse_recv_pb2.RewriteRequest(
        plain_tasks=sorted(_checked(plain_tasks)),
        grouping=grouping,
        leave_may_be_dead=leave_may_be_dead,
        splitting=splitting,
        rpc_us=rpc_us,
        bytes_per_us=bytes_per_us,
        max_keys_per_request=max_keys_per_request or 0,
        max_key_bytes=max_key_bytes or 0,
        session=session,
        fuse_gpu=fuse_gpu,
        addresses=addresses or {},
        fuse_operations=fuse_operations,
        fuse_lookups_unique=fuse_lookups_unique,
        fuse_lookups_combine=fuse_lookups_combine,
    )
    if isinstance(graph, graph_pb2.GraphDef):
        inlined = _with_calls_to_inline(graph)
        request.graph_def = inlined.SerializeToString(deterministic=True)
        request.default_device = default_device or _default_device(graph)
    elif isinstance(graph, Mapping):
        if default_device is not None:
            raise ValueError(
                f"default_device is {default_device!r}, but a graph that is partitioned already "
                "has a device for every node"
            )
        if not graph:
            raise ValueError("there is no partition: the mapping is empty")
        for device, partition in sorted(graph.items()):
            request.partitions[device] = partition.SerializeToString(deterministic=True)
    else:
        raise TypeError(
            "graph must be a tf.compat.v1.GraphDef or a mapping from device to GraphDef, got "
            f"{type(graph).__name__}"
        )
    response = fuse_recv_pb2.RewriteResponse.FromString(_call(request.SerializeToString()))
    if response.error:
        raise ValueError(response.error)
    return Rewrite(
        before={k: graph_pb2.GraphDef.FromString(v) for k, v in sorted(response.before.items())},
        after={k: graph_pb2.GraphDef.FromString(v) for k, v in sorted(response.after.items())},
        report=response.report,
        splitting=splitting or _DEFAULT_SPLITTING,
    )


def _checked(tasks: Iterable[str]) -> Iterable[str]:
    if isinstance(tasks, str):
        raise ValueError(
            f"plain_tasks: give a sequence of tasks, got the text {tasks!r}; write [{tasks!r}]"
        )
    return tasks


def explain_function(
    concrete_function: Any,
    device: str | None = None,
    plain_tasks: Iterable[str] = (),
    **options: Any,
) -> Rewrite:
    """Run the pass on the graph of a traced `tf.function`.

    Args:
      concrete_function: what `get_concrete_function` returns.
      device: the device that the function is called under, e.g. "/job:worker/task:0"; see
        `placed_graph`.
      plain_tasks: see `rewrite`.
      **options: further arguments of `rewrite` for options of a run: `splitting`, `rpc_us`,
        `bytes_per_us`, `fuse_gpu`.

    Returns:
      See `rewrite`.

    Raises:
      ValueError: the graph cannot be placed or partitioned.
    """
    return rewrite(placed_graph(concrete_function, device), plain_tasks, **options)


def write_model_explorer(result: Rewrite, path: str | os.PathLike[str]) -> None:
    """Write the graphs before and after to a file that Model Explorer opens.

    Args:
      result: what `rewrite` or `explain_function` returned.
      path: the file, by convention *.json.

    Raises:
      OSError: the file cannot be written.
    """
    from tf_fuse.monitoring.model_explorer import graph_collection

    Path(path).write_text(json.dumps(graph_collection(result)) + "\n", encoding="utf-8")


def save_function(
    concrete_function: Any, path: str | os.PathLike[str], device: str | None = None
) -> None:
    """Write a traced function to a file that `python -m tf_fuse explain` reads.

    Args:
      concrete_function: what `get_concrete_function` returns.
      path: the file, by convention *.pb: one serialized GraphDef.
      device: see `explain_function`.

    Raises:
      OSError: the file cannot be written.
    """
    graph = placed_graph(concrete_function, device)
    Path(path).write_bytes(graph.SerializeToString(deterministic=True))


def placed_graph(concrete_function: Any, device: str | None = None) -> Any:
    """Build a GraphDef in which every variable is where the function's variables are.

    Args:
      concrete_function: what `get_concrete_function` returns.
      device: the device that the function is called under, which is where nodes without a device
        run; None to choose as `rewrite` does.

    Returns:
      A `tf.compat.v1.GraphDef`: inputs and captured values are nodes `_Arg`, outputs are nodes
      `_Retval`, and static shapes are in the attribute `_output_shapes`.
    """
    import tensorflow as tf

    from tf_fuse.parameter_server.lookups import mark_compressed

    graph = concrete_function.graph
    graph_def = graph.as_graph_def(add_shapes=True)
    by_name = {node.name: node for node in graph_def.node}
    captured = {internal.op.name: external for external, internal in graph.captures}
    for index, tensor in enumerate(graph.inputs):
        node = by_name[tensor.op.name]
        external = captured.get(node.name)
        if external is not None and tensor.dtype == tf.resource:
            node.device = external.device or ""
        kept = {
            key: node.attr[key].SerializeToString()
            for key in ("_output_shapes", mark_compressed.ATTRIBUTE)
            if key in node.attr
        }
        node.op = "_Arg"
        node.attr.clear()
        for key, value in kept.items():
            node.attr[key].ParseFromString(value)
        node.attr["T"].type = tensor.dtype.as_datatype_enum
        node.attr["index"].i = index
    for index, tensor in enumerate(graph.outputs):
        add_output(graph_def, tensor.name, tensor.dtype.as_datatype_enum, index)
    if device:
        graph_def.node.add(name=DEFAULT_DEVICE_NODE, op="NoOp", device=device)
    return graph_def


def add_output(graph_def: Any, tensor: str, dtype: int, index: int) -> None:
    """Add a node `_Retval` that takes a tensor out of a graph.

    Args:
      graph_def: the GraphDef, changed in place.
      tensor: the tensor's name, "node:output".
      dtype: its type, a `DataType` enum value.
      index: number of the output.
    """
    node = graph_def.node.add(name=f"tf_fuse_output_{index}", op="_Retval", input=[tensor])
    node.attr["T"].type = dtype
    node.attr["index"].i = index


def known_bytes(result: Rewrite) -> dict[tuple[str, str], int | None]:
    """Find the sizes of the tensors that cross between devices.

    Args:
      result: what `rewrite` returned.

    Returns:
      By sending device and tensor name, as in the report: the bytes of the value, or None if the
      graph does not contain its shape. (The attribute `_output_shapes` has it, which `placed_graph`
      and `as_graph_def(add_shapes=True)` write.)
    """
    sizes = {}
    for device, partition in result.before.items():
        nodes = {node.name: node for node in partition.node}
        for node in partition.node:
            if node.op in ("_Send", "_HostSend"):
                size = _bytes_of(nodes, node.input[0], node.attr["T"].type)
                sizes[device, node.attr["tensor_name"].s.decode()] = size
    return sizes


def _bytes_of(nodes: Mapping[str, Any], tensor: str, dtype: int) -> int | None:
    """Return the size of one output of a node, or None if it is unknown."""
    from tensorflow.python.framework import dtypes

    name, _, output = tensor.partition(":")
    node = nodes[name]
    if node.op == "Const":
        shape = node.attr["value"].tensor.tensor_shape
    else:
        shapes = _attr(node, "_output_shapes").list.shape
        if int(output or 0) >= len(shapes):
            return None
        shape = shapes[int(output or 0)]
    if shape.unknown_rank or any(dim.size < 0 for dim in shape.dim):
        return None
    item = dtypes.as_dtype(dtype)
    if item in (dtypes.string, dtypes.resource, dtypes.variant):
        return None
    return math.prod((dim.size for dim in shape.dim), start=item.size)


def _attr(message: Any, key: str) -> Any:
    """Read an attribute that may be missing; `message.attr[key]` would add it."""
    from tensorflow.core.framework import attr_value_pb2

    return message.attr[key] if key in message.attr else attr_value_pb2.AttrValue()


def _with_calls_to_inline(graph_def: Any) -> Any:
    """Return a copy in which function calls are marked as Grappler marks them in a run."""
    copy = type(graph_def)()
    copy.CopyFrom(graph_def)
    kept = {f.signature.name for f in copy.library.function if _attr(f, "_noinline").b}
    for nodes in (copy.node, *(function.node_def for function in copy.library.function)):
        for node in nodes:
            if node.op in _CALLS and node.attr["f"].func.name not in kept:
                node.attr["_lower_as_multi_device_function"].b = True
    return copy


def _default_device(graph_def: Any) -> str:
    """Return where nodes without a device run; "" for the first device in sorted order."""
    from tensorflow.python.framework import device_spec

    devices = {node.device for node in graph_def.node}
    for function in graph_def.library.function:
        devices.update(node.device for node in function.node_def)
    for node in graph_def.node:
        if node.name == DEFAULT_DEVICE_NODE and node.op == "NoOp":
            return node.device
    workers = [
        (spec.replica or 0, spec.task or 0)
        for spec in map(device_spec.DeviceSpecV2.from_string, sorted(devices))
        if spec.job == "worker"
    ]
    if not workers:
        return ""
    replica, task = min(workers)
    return f"/job:worker/replica:{replica}/task:{task}/device:CPU:0"


def _call(request: bytes) -> bytes:
    """Call tf_fuse_rewrite of the library."""
    library = _native.library()
    function = library.tf_fuse_rewrite
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
    library.tf_fuse_free.restype = None
    library.tf_fuse_free.argtypes = [ctypes.c_void_p]
    size = ctypes.c_size_t()
    result = function(request, len(request), ctypes.byref(size))
    if not result:
        raise MemoryError("tf_fuse_rewrite: no memory for the result")
    try:
        return ctypes.string_at(result, size.value)
    finally:
        library.tf_fuse_free(result)
