# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Count what partitions run and send, by task and depth: from a `Rewrite` to a `StepGraph`."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tf_fuse.scale.errors import ScaleError
from tf_fuse.scale.steps.operation_work import NOT_COUNTED, tensor_bytes, tensor_of, work_of
from tf_fuse.scale.steps.step_graph import (
    WORKER,
    Segment,
    StepGraph,
    Transfer,
    Work,
)

_GROUP = "TfFuse>OperationGroup"
_SENDS = frozenset({"_Send", "_HostSend"})
_RECEIVES = frozenset({"_Recv", "_HostRecv"})
_DEVICE = re.compile(r"/job:(\w+)(?:/replica:\d+)?(?:/task:(\d+))?")
# TF_FUSE_CHANNEL_FRAME_BYTES: frames of this size and more take a
# data channel, if both tasks are on one host.
_CHANNEL_BYTES = 1 << 20
# TF_FUSE_MAX_PACKED_TENSOR_BYTES: larger tensors travel beside their frame, as in stock.
_PACKED_BYTES = 1 << 20
# A tensor by sending device, receiving device and name.
Key = tuple[str, str, str]


def step_graph(rewrite: Any, servers: int, fused: bool, one_host: bool = False) -> StepGraph:
    """Count what a step runs and sends.

    Args:
      rewrite: what `tf_fuse.explain.rewrite` returned.
      servers: number of tasks of the job ps; those without variables count.
      fused: whether to count the graphs after the pass, or those before it.
      one_host: whether large frames travel through shared memory.

    Returns:
      The step of one worker.

    Raises:
      ScaleError: a device belongs to neither job "worker" nor job "ps".
    """
    depths = _Depths(rewrite.before)
    partitions = rewrite.after if fused else rewrite.before
    work: dict[tuple[str, int], Work] = defaultdict(Work)
    for device, partition in partitions.items():
        task = _task(device)
        nodes = {node.name: node for node in rewrite.before[device].node}
        for node in partition.node:
            if node.op == _GROUP:
                members = _members(node)
                inside = [one for one in members if one.op not in NOT_COUNTED]
                at = max((depths.of(device, one.name) for one in members), default=0)
                total = sum(
                    (work_of(nodes[one.name], nodes, depths.received[device]) for one in inside),
                    start=Work(),
                )
                work[task, at] += dataclasses.replace(
                    total, operations=1, members=len(inside), variable_operations=0
                )
            elif node.op not in NOT_COUNTED:
                at = depths.of(device, node.name)
                original = nodes.get(node.name, node)
                work[task, at] += work_of(original, nodes, depths.received[device])
    return StepGraph(
        tuple(Segment(task, depth, one) for (task, depth), one in sorted(work.items())),
        tuple(_transfers(partitions, depths, one_host)),
        servers,
        _handles(rewrite.before),
    )


def _handles(partitions: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = defaultdict(int)
    for device, partition in partitions.items():
        counts[_task(device)] += sum(1 for node in partition.node if node.op == "_Arg")
    return tuple(sorted(counts.items()))


def _members(group: Any) -> list[Any]:
    from tensorflow.core.framework import graph_pb2

    return list(graph_pb2.GraphDef.FromString(group.attr["body"].s).node)


def _task(device: str) -> str:
    found = _DEVICE.match(device)
    if found and found[1] == "worker":
        return WORKER
    if found and found[1] == "ps":
        return f"ps:{int(found[2] or 0)}"
    raise ScaleError(f"the graph has operations on {device!r}, but expected jobs worker and ps")


def _key(node: Any) -> Key:
    source, target, name = (
        node.attr[one].s.decode() for one in ("send_device", "recv_device", "tensor_name")
    )
    return source, target, name


class _Depths:
    """How many messages lie before each node, at most, in the graphs before the pass."""

    def __init__(self, partitions: Mapping[str, Any]):
        """Join the partitions."""
        self._nodes = {
            (device, node.name): node
            for device, partition in partitions.items()
            for node in partition.node
        }
        self.sends = {_key(node): at for at, node in self._nodes.items() if node.op in _SENDS}
        by_device = {
            device: {node.name: node for node in partition.node}
            for device, partition in partitions.items()
        }
        self.bytes: dict[Key, float] = {}
        self.received: dict[str, dict[str, Any]] = defaultdict(dict)
        shapes = {}
        for key, (device, name) in self.sends.items():
            node = self._nodes[device, name]
            shapes[key] = tensor_of(node.input[0], by_device[device])
            self.bytes[key] = tensor_bytes(shapes[key])
        for (device, name), node in self._nodes.items():
            if node.op in _RECEIVES:
                self.received[device][name] = shapes.get(_key(node), (None, 0))
        self._depth: dict[tuple[str, str], int] = {}
        self._fill()

    def of(self, device: str, name: str) -> int:
        """Return the depth of a node; 0 for one that the pass has made."""
        return self._depth.get((device, name), 0)

    def _before(self, at: tuple[str, str]) -> Iterable[tuple[str, str]]:
        device, node = at[0], self._nodes[at]
        if node.op in _RECEIVES and (sender := self.sends.get(_key(node))):
            yield sender
        if node.op == "Merge":  # A loop would lead back.
            inputs: Iterable[str] = list(node.input)[:1]
        else:
            inputs = node.input
        for one in inputs:
            name = one.removeprefix("^").partition(":")[0]
            if (device, name) in self._nodes:
                yield device, name

    def _fill(self) -> None:
        for start in self._nodes:
            stack = [start]
            entered: set[tuple[str, str]] = set()
            while stack:
                at = stack[-1]
                if at in self._depth:
                    stack.pop()
                    continue
                before = list(self._before(at))
                if at not in entered:
                    entered.add(at)
                    waiting = [b for b in before if b not in self._depth and b not in entered]
                    if waiting:
                        stack.extend(waiting)
                        continue
                stack.pop()
                hop = 1 if self._nodes[at].op in _RECEIVES else 0
                self._depth[at] = max((self._depth.get(b, 0) for b in before), default=0) + hop


def _transfers(
    partitions: Mapping[str, Any], depths: _Depths, one_host: bool
) -> Iterable[Transfer]:
    """Yield the messages of the graphs, joined by source, target and depth."""
    found: dict[tuple[int, str, str], list[float]] = defaultdict(
        lambda: [0, 0, 0, 0, 0.0, 0.0, 0.0]
    )
    for partition in partitions.values():
        for node in partition.node:
            if node.op in _RECEIVES:
                keys, fused = [_key(node)], False
            elif node.op == "_FuseRecv":
                devices = [node.attr[one].s.decode() for one in ("send_device", "recv_device")]
                names = [name.decode() for name in node.attr["tensor_names"].list.s]
                keys, fused = [(devices[0], devices[1], name) for name in names], True
            else:
                continue
            source, target = _task(keys[0][0]), _task(keys[0][1])
            if source == target:
                continue
            depth = max(depths.of(*depths.sends[key]) for key in keys if key in depths.sends)
            sums = found[depth, source, target]
            sums[1 if fused else 0] += 1
            sums[2] += len(keys)
            sums[3] += len(keys) if fused else 0
            sizes = [depths.bytes.get(key, 0.0) for key in keys]
            packed = sum(size for size in sizes if size <= _PACKED_BYTES)
            sums[4] += sum(sizes)
            sums[5] += packed if fused else 0.0
            sums[6] += packed if fused and one_host and packed >= _CHANNEL_BYTES else 0.0
    for (depth, source, target), sums in sorted(found.items()):
        yield Transfer(source, target, depth, *map(int, sums[:4]), *sums[4:])
