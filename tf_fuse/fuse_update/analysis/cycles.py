# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find clusters that cannot become one node each, since other nodes lie between their nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tf_fuse.function_graph.view import GraphView
from tf_fuse.fuse_update.analysis.fusion_clusters import FusionCluster


def without_cycles(view: GraphView, clusters: Sequence[FusionCluster]) -> list[FusionCluster]:
    """Return the clusters that would wait for themselves if each became one node."""
    if not has_cycle(view, clusters):
        return []
    good: list[FusionCluster] = []
    for cluster in clusters:
        if not has_cycle(view, [*good, cluster]):
            good.append(cluster)
    return [cluster for cluster in clusters if cluster not in good]


def has_cycle(view: GraphView, clusters: Sequence[FusionCluster]) -> bool:
    """Return whether nodes wait for each other once each cluster is one node."""
    group = {name: f"^{i}" for i, cluster in enumerate(clusters) for name in cluster.nodes}
    before: dict[str, set[str]] = {group.get(name, name): set() for name in view.nodes}
    after: dict[str, list[str]] = defaultdict(list)
    for name, node in view.nodes.items():
        mine = group.get(name, name)
        for tensor in node.input:
            other = tensor.lstrip("^").partition(":")[0]
            other = group.get(other, other)
            if other in before and other != mine and other not in before[mine]:
                before[mine].add(other)
                after[other].append(mine)
    missing = {name: len(others) for name, others in before.items()}
    ready = [name for name, count in missing.items() if count == 0]
    done = 0
    while ready:
        done += 1
        for name in after[ready.pop()]:
            missing[name] -= 1
            if missing[name] == 0:
                ready.append(name)
    return done < len(missing)
