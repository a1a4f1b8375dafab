# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Replace the elementwise operations of each weight's update by one operation.

An optimizer needs to read and write each element of its variables once. Run one by one, its
operations read and write a whole tensor each time. So the operations before the assignments become
one operation: a call of a function that XLA compiles (`encode/xla.py`), or our own operation, which
has TensorFlow's bits (`encode/elementwise.py`):

    g ─► Sub ─► Mul ─► AssignAdd(m) ··► Read(m) ─► Mul ─► AssignSub(w)
          ▲ Read(m)                                  ▲ rate
                          becomes    call(g, rate, &m, &w)

`analysis/fusion_clusters.py` finds such clusters, an encoder encodes each of them, and
`rewrite/function_builder.py` builds the function that runs the operations. The operation reads and
assigns the variables itself. No module here knows an optimizer by its name, or replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import ASSIGNS, READS, GraphView, data_inputs
from tf_fuse.fuse_update.analysis.cycles import split_by_step, without_cycles
from tf_fuse.fuse_update.analysis.devices import ArgumentDevices
from tf_fuse.fuse_update.analysis.fusion_clusters import (
    CONTROL_FLOW,
    FREE,
    CanFuseOn,
    ChosenClusters,
    Finder,
    FusionCluster,
    Rules,
    UnfusedAssignment,
    narrowed,
)
from tf_fuse.fuse_update.analysis.grappler_inputs import CallSite
from tf_fuse.fuse_update.analysis.rows import SCATTERS, PartialShape
from tf_fuse.fuse_update.encode.encoder_interface import Encoder, FusedOperation
from tf_fuse.fuse_update.encode.row_sums import take_rows
from tf_fuse.fuse_update.encode.staged import StagedEncoder
from tf_fuse.fuse_update.rewrite.function_builder import OutlinedFunction

# The fewest operations and assignments to fuse: each passes over a whole tensor if it runs alone.
MIN_PASSES = 2
_HANDED_ON = frozenset({"Cast", "Identity", "Reshape"})
_OWN_CALL = CallSite()

# Why an assignment is not fused.
REASONS = {
    "too_small": "the variable has fewer elements than are worth a call",
    "too_many": "there are more operations than one operation can have",
    "too_few": f"fewer than {MIN_PASSES} operations and assignments make one fusion cluster",
    "type": "of the types of the operations, one is not computed alike in one operation",
    "device": "the assignment or the variable is not on a CPU where it can run, as far as is known",
    "no_plugin": "the server that has the variable cannot run operations of tf_fuse",
    "several_devices": "the operations are on different devices",
    "unknown_shape": "a shape is not known when the function is traced, or not the variable's",
    "optimizer": "TensorFlow's graph optimizer makes something else of the operations",
    "not_read": "the variable may have no value before: it is assigned first",
    "not_elementwise": "the assigned value is made by an operation that is not elementwise",
    "read_elsewhere": "the assigned value is read by something else, too",
    "waits_for_itself": "something in between waits for a part of the operations",
    "rows": "what is done to rows of the variable is not all that is known to be done by rows",
    "control_flow": "the function has conditionals or loops of TensorFlow 1",
}


@dataclass(frozen=True)
class Outline:
    """The result for one function.

    Attributes:
      clusters: the fused clusters, in the order of their operations' numbers.
      exact: for each cluster, whether its operation computes TensorFlow's bits.
      left: the assignments that are not fused.
      function: the `FunctionDef` to run instead; None if no cluster is fused.
      bodies: the functions that it calls, by name.
    """

    clusters: tuple[FusionCluster, ...] = ()
    exact: tuple[bool, ...] = ()
    left: tuple[UnfusedAssignment, ...] = ()
    function: Any | None = None
    bodies: Mapping[str, Any] = field(default_factory=dict)


def outline(
    view: GraphView,
    shapes: Mapping[str, Shape | None],
    can_fuse_on: CanFuseOn,
    encoder: Encoder,
    site: CallSite = _OWN_CALL,
    partial: PartialShape | None = None,
) -> Outline:
    """Replace the operations before a function's assignments by fused operations.

    Args:
      view: of the function.
      shapes: of its tensors and, by argument, of its variables, as far as they are known.
      can_fuse_on: decides which assignments may be fused, by device and variable.
      encoder: encodes clusters.
      site: how the function is called.
      partial: shapes of tensors, with None for unknown sizes, if updates of rows are fused, too.
    """
    old = sorted(node.name for node in view.nodes.values() if node.op in CONTROL_FLOW)
    if old:
        assigns = sorted(name for name, node in view.nodes.items() if node.op in ASSIGNS)
        return Outline(
            left=tuple(UnfusedAssignment(name, "control_flow", old[0]) for name in assigns)
        )
    finder = Finder(view, shapes, can_fuse_on, encoder.rules)
    found = finder.find()
    clusters = tuple(split_by_step(view, found.clusters))
    staged = _Staged((), clusters)
    if partial is not None:
        staged_encoder = StagedEncoder(view, finder, partial, can_fuse_on, encoder, site)
        staged = _staged(view, staged_encoder, clusters)
    worth = _worthwhile(view, staged.others, finder, encoder.rules)
    apart = _apart(view, (*(cluster for cluster, _ in staged.made), *worth.clusters))
    ready = {id(cluster): made for cluster, made in staged.made}
    encoded = _encoded(view, apart.clusters, ready, finder, encoder, site)
    phases = (found, staged, worth, apart, encoded)
    left = [
        can_fuse_on.explain(one) if isinstance(can_fuse_on, ArgumentDevices) else one
        for phase in phases
        for one in phase.left
        if not _is_gathered(view, one.node)
    ]
    fused = [cluster for cluster, _ in encoded.made]
    operations = [made for _, made in encoded.made]
    # (Only servers count updates.)
    builder = OutlinedFunction(view, is_counted=partial is not None)
    return Outline(
        clusters=tuple(fused),
        exact=tuple(made.is_exact for made in operations),
        left=tuple(sorted(left, key=lambda one: one.node)),
        function=builder.build(fused, operations) if operations else None,
        bodies=builder.bodies,
    )


@dataclass(frozen=True)
class _Staged:
    """The operations of updates that change rows, each with the nodes that it replaces.

    Attributes:
      made: the operations.
      others: the clusters of other updates.
      left: the scatters that are not fused, and assignments that would wait for them.
    """

    made: tuple[tuple[FusionCluster, FusedOperation], ...]
    others: tuple[FusionCluster, ...]
    left: tuple[UnfusedAssignment, ...] = ()


@dataclass(frozen=True)
class _Encoded:
    """The operations of all updates, each with the cluster that it replaces.

    Attributes:
      made: the operations.
      left: the assignments of clusters that the encoder leaves alone.
    """

    made: tuple[tuple[FusionCluster, FusedOperation], ...]
    left: tuple[UnfusedAssignment, ...]


def _worthwhile(
    view: GraphView, clusters: Sequence[FusionCluster], finder: Finder, rules: Rules
) -> ChosenClusters:
    """Choose the clusters that are worth an operation."""
    kept: list[FusionCluster] = []
    left: list[UnfusedAssignment] = []
    for cluster in clusters:
        cluster = narrowed(view, cluster) if cluster.size == 1 else cluster
        reason = _reason(view, cluster, finder, rules)
        if reason is None:
            kept.append(cluster)
        else:
            left += _assignments_of(view, cluster, *reason)
    return ChosenClusters(tuple(kept), tuple(left))


def _apart(view: GraphView, clusters: Sequence[FusionCluster]) -> ChosenClusters:
    """Choose the clusters that do not wait for themselves if each becomes one operation."""
    waiting = without_cycles(view, clusters)
    return ChosenClusters(
        tuple(cluster for cluster in clusters if cluster not in waiting),
        tuple(
            one for cluster in waiting for one in _assignments_of(view, cluster, "waits_for_itself")
        ),
    )


def _encoded(
    view: GraphView,
    clusters: Sequence[FusionCluster],
    ready: Mapping[int, FusedOperation],
    finder: Finder,
    encoder: Encoder,
    site: CallSite,
) -> _Encoded:
    """Encode clusters, but for those with an operation that is ready, by `id`."""
    operations: list[tuple[FusionCluster, FusedOperation]] = []
    left: list[UnfusedAssignment] = []
    for cluster in clusters:
        made = ready.get(id(cluster)) or encoder.encode(view, cluster, finder.shapes, site)
        if isinstance(made, FusedOperation):
            take_rows(view, cluster, finder.shapes, made)
            operations.append((cluster, made))
        else:
            left += _assignments_of(view, cluster, made)
    return _Encoded(tuple(operations), tuple(left))


def _assignments_of(
    view: GraphView, cluster: FusionCluster, reason: str, detail: str = ""
) -> list[UnfusedAssignment]:
    """Return the assignments of a cluster that is not fused; by default each is its own detail."""
    return [
        UnfusedAssignment(name, reason, detail or name)
        for name in cluster.nodes
        if view.nodes[name].op in ASSIGNS
    ]


def _staged(
    view: GraphView, staged_encoder: StagedEncoder, clusters: Sequence[FusionCluster]
) -> _Staged:
    """Encode updates that change rows; leave alone what would wait for itself."""
    found = staged_encoder.take(clusters)
    bad = without_cycles(view, [cluster for cluster, _ in found.made])
    nodes = {name for cluster in bad for name in cluster.nodes}
    left = [UnfusedAssignment(n, "rows", n) for n in found.left]
    left += [
        UnfusedAssignment(n, "waits_for_itself", n)
        for n in sorted(nodes)
        if view.nodes[n].op in SCATTERS
    ]
    again = [
        cluster
        for cluster in clusters
        if cluster not in found.others and set(cluster.nodes) & nodes
    ]
    made = tuple((cluster, one) for cluster, one in found.made if cluster not in bad)
    return _Staged(made, (*found.others, *again), tuple(left))


def _is_gathered(view: GraphView, name: str) -> bool:
    """Return whether a node assigns a weight that was gathered from its shards.

    Such an assignment ends a sharded update; the clusters of the slots have its operations.
    """
    node = view.nodes[name]
    while node is not None and node.op in ASSIGNS | _HANDED_ON:
        node = view.producer(data_inputs(node)[1 if node.op in ASSIGNS else 0])
    return node is not None and node.op == "TfFuse>AllGather"


def _reason(
    view: GraphView, cluster: FusionCluster, finder: Finder, rules: Rules
) -> tuple[str, str] | None:
    """Return the reason not to fuse a cluster and its detail, or None."""
    assigned = finder.assigned(cluster)
    if cluster.size < rules.least_elements:
        return "too_small", cluster.nodes[-1]
    passes = [n for n in cluster.nodes if view.nodes[n].op not in FREE | READS]
    if any(view.nodes[n].op not in ASSIGNS for n in passes) and len(passes) >= MIN_PASSES:
        return None
    if assigned is not None and len(passes) == 1 and cluster.size > 1:
        producer = view.producer(assigned)
        if producer is not None and finder.is_compiled(producer):
            return "read_elsewhere", assigned
        return "not_elementwise", assigned
    return "too_few", cluster.nodes[-1]
