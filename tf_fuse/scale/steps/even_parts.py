# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A step whose variables lie in equal parts on all servers."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from tf_fuse.scale.steps.step_graph import (
    WORKER,
    Segment,
    StepGraph,
    Transfer,
    Work,
    server_names,
)


def in_even_parts(graph: StepGraph) -> StepGraph:
    """Return a step as if each server had an equal part of each variable.

    Bytes are divided; each server has an operation and a tensor for each variable, and as many
    calls as the one that had most.
    """
    servers = server_names(graph.servers)
    segments = [one for one in graph.segments if one.task == WORKER]
    works: dict[int, list[Work]] = defaultdict(list)
    for segment in graph.segments:
        if segment.task != WORKER:
            works[segment.depth].append(segment.work)
    for depth, own in works.items():
        part = _part(own, len(servers))
        segments += [Segment(server, depth, part) for server in servers]
    transfers = [one for one in graph.transfers if WORKER not in (one.source, one.target)]
    groups: dict[tuple[int, bool], list[Transfer]] = defaultdict(list)
    for transfer in graph.transfers:
        if WORKER in (transfer.source, transfer.target):
            groups[transfer.depth, transfer.source == WORKER].append(transfer)
    for (_, is_sent), alike in groups.items():
        for server in servers:
            transfers.append(_share(alike, len(servers), server, is_sent))
    handles = dict(graph.handles)
    total = sum(handles.values())
    return dataclasses.replace(
        graph,
        segments=tuple(sorted(segments, key=lambda one: (one.task, one.depth))),
        transfers=tuple(sorted(transfers, key=lambda one: one.depth)),
        handles=tuple((server, total) for server in servers),
    )


def _part(works: Sequence[Work], servers: int) -> Work:
    total = sum(works, start=Work())
    return dataclasses.replace(
        total,
        operations=max(one.operations for one in works),
        bytes=total.bytes / servers,
        flops=total.flops / servers,
        variable_bytes=total.variable_bytes / servers,
    )


def _share(alike: Sequence[Transfer], servers: int, server: str, is_sent: bool) -> Transfer:
    """Return what one server has of transfers of one depth and direction."""

    def total(name: str) -> int:
        return sum(int(getattr(one, name)) for one in alike)

    def part(name: str) -> float:
        return float(sum(getattr(one, name) for one in alike)) / servers

    return Transfer(
        WORKER if is_sent else server,
        server if is_sent else WORKER,
        alike[0].depth,
        total("calls"),
        max(one.fused_calls for one in alike),
        total("tensors"),
        total("fused_tensors"),
        part("bytes"),
        part("fused_bytes"),
        part("large_bytes"),
    )
