# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find clusters that cannot become one node each, since other nodes lie between their nodes.

A function of several steps assigns a variable once in each, and computes gradients in between. Its
cluster is split into one for each step.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tf_fuse.function_graph.view import ASSIGNS, GraphView
from tf_fuse.fuse_update.analysis.fusion_clusters import FusionCluster


def split_by_step(view: GraphView, clusters: Sequence[FusionCluster]) -> list[FusionCluster]:
    """Split each cluster that would wait for itself because it assigns a variable several times.

    A node's step is the largest number of times that a path to it leaves the cluster and comes
    back. A node that assigns nothing moves to the step of its first consumer if only that waits.
    """
    repeated = {i for i, cluster in enumerate(clusters) if _assigns_again(view, cluster)}
    if not repeated:
        return list(clusters)
    cluster_of = {name: i for i in repeated for name in clusters[i].nodes}
    order = list(view.in_order())
    step_of = steps(order, cluster_of)
    # The clusters that nodes after each node belong to, one bit for each.
    after: dict[str, int] = {}
    for node in reversed(order):
        users = _users(view, node)
        after[node.name] = 0
        for user in users:
            mine = cluster_of.get(user)
            after[node.name] |= after[user] | (0 if mine is None else 1 << mine)
        mine = cluster_of.get(node.name)
        if mine is not None and node.op not in ASSIGNS:
            inside = {user for user in users if cluster_of.get(user) == mine}
            if inside and not any(after[user] >> mine & 1 for user in users - inside):
                step_of[node.name] = min(step_of[user] for user in inside)
    return [
        part
        for i, cluster in enumerate(clusters)
        for part in (_parts(view, cluster, step_of) if i in repeated else [cluster])
    ]


def _assigns_again(view: GraphView, cluster: FusionCluster) -> bool:
    nodes = (view.nodes[name] for name in cluster.nodes)
    count = Counter(view.variable_of(node) for node in nodes if node.op in ASSIGNS)
    return max(count.values(), default=0) > 1


def steps(order: Sequence[Any], cluster_of: Mapping[str, int]) -> dict[str, int]:
    """Return the step of each node of a cluster, as `split_by_step` says.

    Args:
      order: all nodes in topological order.
      cluster_of: the number of its cluster, by the name of a node.
    """
    step_of: dict[str, int] = {}
    # For each node, by step: the clusters with nodes of that step before it, one bit for each.
    before: dict[str, list[int]] = {}
    for node in order:
        inputs = {tensor.lstrip("^").partition(":")[0] for tensor in node.input} & before.keys()
        masks: list[int] = []
        for name in inputs:
            masks += [0] * (len(before[name]) - len(masks))
            masks[: len(before[name])] = map(operator.or_, masks, before[name])
        mine = cluster_of.get(node.name)
        if mine is not None:
            found = [step_of[name] for name in inputs if cluster_of.get(name) == mine]
            for name in inputs:
                if cluster_of.get(name) != mine:
                    found += [i + 1 for i, mask in enumerate(before[name]) if mask >> mine & 1]
            step_of[node.name] = step = max(found, default=0)
            masks += [0] * (step + 1 - len(masks))
            masks[step] |= 1 << mine
        before[node.name] = masks
    return step_of


def _users(view: GraphView, node: Any) -> set[str]:
    data = {use.node for tensor in view.outputs(node) for use in view.uses(tensor)}
    return data | set(view.followers(node.name))


def _parts(
    view: GraphView, cluster: FusionCluster, step_of: Mapping[str, int]
) -> list[FusionCluster]:
    parts: dict[int, list[str]] = defaultdict(list)
    for name in cluster.nodes:
        parts[step_of[name]].append(name)
    found = []
    for _, nodes in sorted(parts.items()):
        made = [view.variable_of(view.nodes[name]) for name in nodes]
        variables = sorted({one for one in made if one is not None})
        found.append(replace(cluster, nodes=tuple(nodes), variables=tuple(variables)))
    return found


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
