# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Encode an update that changes rows of variables, and whole ones, as TfFuse>StagedUpdate.

An optimizer of tf_keras scatters the gradient of some rows of a table to a slot, between two
elementwise parts:

    m += (beta - 1) * m  ··►  m[rows] += (1 - beta) * g  ··►  w -= rate * m / (sqrt(v) + epsilon)

So the operation has stages: stages on whole variables, each a program as in `elementwise.py`, and
stages on rows. One lock covers all of them.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tf_fuse.function_graph.view import ASSIGNS, READS, GraphView, control_inputs, data_inputs
from tf_fuse.fuse_update.analysis.cycles import steps
from tf_fuse.fuse_update.analysis.fusion_clusters import (
    CanFuseOn,
    Finder,
    FusionCluster,
    results_of,
)
from tf_fuse.fuse_update.analysis.grappler_inputs import CallSite
from tf_fuse.fuse_update.analysis.rows import (
    SCATTERS,
    SUM,
    Join,
    PartialShape,
    RowFinder,
    Rows,
    indices_of,
    source_of,
    variable_of,
)
from tf_fuse.fuse_update.encode.encoder_interface import Encoder, FusedOperation
from tf_fuse.fuse_update.encode.staged_writer import Writer


@dataclass(frozen=True)
class StagedUpdates:
    """The updates of a function that change rows.

    Attributes:
      made: the operations, each with the nodes that it replaces.
      others: the clusters of other updates.
      left: names of scatters that are in none of the operations.
    """

    made: tuple[tuple[FusionCluster, FusedOperation], ...]
    others: tuple[FusionCluster, ...]
    left: tuple[str, ...]


@dataclass
class _Group:
    """An update: variables that must change together.

    Attributes:
      variables: by name.
      clusters: the operations on whole variables.
      scatters: names of nodes that change rows, and of nodes that sum joined rows, in topological
        order.
      rows: the operations that compute their values, unless these stay outside.
      joins: by name of the node that joins rows.
      others: the nodes of other steps that change the same variables.
    """

    variables: set[str]
    clusters: list[FusionCluster] = field(default_factory=list)
    scatters: list[str] = field(default_factory=list)
    rows: dict[str, Rows] = field(default_factory=dict)
    joins: dict[str, Join] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)

    def nodes(self) -> set[str]:
        found = {name for cluster in self.clusters for name in cluster.nodes} | set(self.scatters)
        found = found.union(*(rows.nodes | rows.hands for rows in self.rows.values()))
        return found.union(*(join.nodes() for join in self.joins.values()))


class StagedEncoder:
    """Encodes the updates of rows of one function."""

    def __init__(
        self,
        view: GraphView,
        finder: Finder,
        partial: PartialShape,
        can_fuse_on: CanFuseOn,
        encoder: Encoder,
        site: CallSite,
    ):
        """Store the function, and what `outline.outline` has found in it."""
        self._view, self._shapes = view, finder.shapes
        self._encoder, self._site = encoder, site
        self._order = list(view.in_order())
        self._can_fuse_on = can_fuse_on
        assigns = {n.name for n in self._order if n.op in ASSIGNS}
        self._updated = {variable_of(view, view.nodes[name]) for name in assigns}
        self._scatters = [node for node in self._order if node.op in SCATTERS]
        self._updated |= {variable_of(view, node) for node in self._scatters}
        self._rows = RowFinder(view, self._shapes, partial, finder.is_compiled, self._updated)

    def take(self, clusters: Sequence[FusionCluster]) -> StagedUpdates:
        """Encode all updates that change rows.

        Args:
          clusters: all clusters of the function.
        """
        made, others = [], list(clusters)
        left = [node.name for node in self._scatters]
        for group in self._by_step(self._groups(clusters)):
            operation = self._make(group)
            if operation is None:
                continue
            others = [cluster for cluster in others if cluster not in group.clusters]
            nodes = group.nodes()
            order = [node.name for node in self._order if node.name in nodes]
            device = self._view.nodes[group.scatters[0]].device
            made.append(
                (FusionCluster(tuple(order), tuple(sorted(group.variables)), 0, device), operation)
            )
            left = [name for name in left if name not in nodes]
        return StagedUpdates(tuple(made), tuple(others), tuple(left))

    def _groups(self, clusters: Sequence[FusionCluster]) -> list[_Group]:
        view, one_with = self._view, {name: name for name in self._updated}

        def find(name: str) -> str:
            while one_with[name] != name:
                name = one_with[name]
            return name

        scatters, rows = [], {}
        for node in self._order:
            is_sum = node.op == SUM and self._rows.can_sum(node)
            if not is_sum and not self._rows.can_scatter(node):
                continue
            if not is_sum and not self._can_fuse_on(node.device, variable_of(view, node)):
                continue
            found = self._rows.rows(node)
            if is_sum and found is None:
                continue
            scatters.append(node)
            if found is not None:
                rows[node.name] = found
        for cluster in clusters:
            for variable in cluster.variables[1:]:
                one_with[find(variable)] = find(cluster.variables[0])
        changed = {
            node.name: self._changed(node, clusters, rows.get(node.name)) for node in scatters
        }
        for variables in changed.values():
            for variable in variables[1:]:
                one_with[find(variable)] = find(variables[0])
        groups: dict[str, _Group] = {}
        for node in scatters:
            key = find(changed[node.name][0])
            group = groups.setdefault(key, _Group({v for v in one_with if find(v) == key}))
            group.scatters.append(node.name)
            if node.name in rows:
                group.rows[node.name] = rows[node.name]
                joins = {name: self._rows.join(name) for name in rows[node.name].joins}
                group.joins |= {name: join for name, join in joins.items() if join is not None}
        for cluster in clusters:
            if cluster.variables and find(cluster.variables[0]) in groups:
                groups[find(cluster.variables[0])].clusters.append(cluster)
        return [group for _, group in sorted(groups.items())]

    def _by_step(self, groups: Sequence[_Group]) -> Iterator[_Group]:
        """Split groups that would wait for themselves, as `split_by_step` splits clusters."""
        group_of = {name: i for i, group in enumerate(groups) for name in group.nodes()}
        step_of = steps(self._order, group_of)
        for group in groups:
            parts: dict[int, _Group] = {}
            for name in group.scatters:
                part = parts.setdefault(step_of[name], _Group(group.variables))
                part.scatters.append(name)
                if name in group.rows:
                    part.rows[name] = group.rows[name]
                    joins = group.rows[name].joins
                    part.joins |= {one: group.joins[one] for one in joins if one in group.joins}
            for cluster in group.clusters:
                step = max(step_of[name] for name in cluster.nodes)
                parts.setdefault(step, _Group(group.variables)).clusters.append(cluster)
            nodes = {step: part.nodes() for step, part in parts.items()}
            is_split = all(
                part.scatters and max(step_of[name] for name in nodes[step]) == step
                for step, part in parts.items()
            )
            for step, part in sorted(parts.items()) if is_split else ():
                part.others = group.nodes() - nodes[step]
                yield part
            if not is_split:
                yield group

    def _changed(
        self, node: Any, clusters: Sequence[FusionCluster], rows: Rows | None
    ) -> list[str]:
        """Return the variable of a scatter, and those that must change together with it."""
        found: dict[str, None] = {}
        if node.op == SUM:
            readers = {use.node for use in self._view.uses(self._view.outputs(node)[0])}
            for cluster in clusters:
                if readers & set(cluster.nodes):
                    found |= dict.fromkeys(cluster.variables)
        else:
            found[variable_of(self._view, node)] = None
        if rows is not None:
            found |= dict.fromkeys(rows.gathers.values())
            for name in sorted(rows.joins):
                join = self._rows.join(name)
                found |= dict.fromkeys(sorted(join.variables()) if join is not None else ())
        return list(found)

    def _make(self, group: _Group) -> FusedOperation | None:
        nodes = group.nodes()
        devices = {self._view.nodes[name].device for name in group.scatters}
        devices |= {cluster.device for cluster in group.clusters}
        missing = [
            node
            for node in self._order
            if node.op in ASSIGNS | SCATTERS
            and variable_of(self._view, node) in group.variables
            and node.name not in nodes | group.others
        ]
        if len(devices) != 1 or missing:
            return None
        levels = self._levels(group)
        if group.joins and not (self._is_closed(group) and self._is_in_time(group, levels)):
            return None
        make = functools.partial(self._encoder.encode, site=self._site)
        writer = Writer(self._view, self._shapes, min(devices), make)
        for level in sorted(set(levels.values())):
            for cluster in group.clusters:
                part = [name for name in cluster.nodes if levels[name] == level]
                if part and not self._write_whole(writer, cluster, part):
                    return None
            for name, join in sorted(group.joins.items()):
                if levels[name] == level:
                    writer.add_join(join)
            by_rows: dict[str, list[str]] = defaultdict(list)
            for name in group.scatters:
                if levels[name] == level:
                    indices = indices_of(self._view.nodes[name])
                    by_rows[source_of(self._view, indices)].append(name)
            if not _is_apart(group, by_rows, self._view):
                return None
            for _, names in sorted(by_rows.items()):
                writer.add_rows(names, group.rows)
        return writer.operation()

    def _is_closed(self, group: _Group) -> bool:
        """Return whether no other node reads results that are computed from rows."""
        view, nodes = self._view, group.nodes()
        whole = {name for cluster in group.clusters for name in cluster.nodes}
        tensors = [
            tensor
            for name in nodes - whole
            if view.nodes[name].op not in SCATTERS
            for tensor in view.outputs(view.nodes[name])
        ]
        return not set(tensors) & set(view.results) and all(
            use.node in nodes for tensor in tensors for use in view.uses(tensor)
        )

    def _is_in_time(self, group: _Group, levels: Mapping[str, int]) -> bool:
        """Return whether no stage changes rows before the stage that gathers them."""
        view = self._view
        stages = [(levels[name], join.flags) for name, join in group.joins.items()]
        stages += [(levels[n], join.before) for n, join in group.joins.items() if join.before]
        stages += [(levels[name], rows) for name, rows in group.rows.items()]
        written: dict[str, list[tuple[int, bool]]] = defaultdict(list)
        for name in group.nodes():
            if view.nodes[name].op in ASSIGNS | SCATTERS:
                is_whole = view.nodes[name].op in ASSIGNS
                written[variable_of(view, view.nodes[name])].append((levels[name], is_whole))
        for stage, rows in stages:
            for tensor, variable in rows.gathers.items():
                read = levels[tensor.partition(":")[0]]
                for level, is_whole in written[variable]:
                    if read <= level < stage or (level == stage and is_whole):
                        return False
        return True

    def _write_whole(self, writer: Writer, cluster: FusionCluster, part: list[str]) -> bool:
        view = self._view
        variables = {variable_of(view, view.nodes[n]) for n in part if self._has_variable(n)}
        small = FusionCluster(tuple(part), tuple(sorted(variables)), cluster.size, cluster.device)
        if results_of(view, small) or not variables:
            return False  # (A stage cannot pass such results to another stage.)
        made = self._encoder.encode(view, small, self._shapes, self._site)
        if not isinstance(made, FusedOperation):
            return False
        writer.add_whole(made)
        return True

    def _has_variable(self, name: str) -> bool:
        return self._view.nodes[name].op in READS | ASSIGNS

    def _levels(self, group: _Group) -> dict[str, int]:
        """Return the stage of each node: stages on whole variables and on rows alternate."""
        view, nodes = self._view, group.nodes()
        kinds = {name: "whole" for cluster in group.clusters for name in cluster.nodes}
        kinds |= {name: "gather" for rows in group.rows.values() for name in rows.nodes}
        kinds |= {name: "gather" for rows in group.rows.values() for name in rows.hands}
        kinds |= {name: "gather" for join in group.joins.values() for name in join.nodes()}
        kinds |= dict.fromkeys(group.joins, "join")
        kinds |= dict.fromkeys(group.scatters, "scatter")
        levels: dict[str, int] = {}
        for node in self._order:
            if node.name not in nodes:
                continue
            read = [tensor.partition(":")[0] for tensor in data_inputs(node)]
            before = [name for name in [*read, *control_inputs(node)] if name in nodes]
            levels[node.name] = max(
                (levels[name] + (kinds[name] != kinds[node.name]) for name in before), default=0
            )
        # A node that changes nothing runs as late as possible, so that stages need not keep values.
        for node in reversed(self._order):
            if kinds.get(node.name) == "whole" and node.op not in ASSIGNS:
                after = {use.node for t in view.outputs(node) for use in view.uses(t)}
                after |= set(view.followers(node.name))
                later = [levels[n] - (kinds[n] != "whole") for n in after if n in levels]
                levels[node.name] = max(levels[node.name], min(later, default=0))
        return levels


def _is_apart(group: _Group, by_rows: Mapping[str, list[str]], view: GraphView) -> bool:
    """Return whether scatters of one stage, to different rows, read nothing that others change."""
    if len(by_rows) < 2:
        return True
    for names in by_rows.values():
        others = {n for other in by_rows.values() if other is not names for n in other}
        changed = {variable_of(view, view.nodes[n]) for n in others if view.nodes[n].op != SUM}
        mine = {variable_of(view, view.nodes[n]) for n in names if view.nodes[n].op != SUM}
        for name in names:
            if name in group.rows:
                mine |= set(group.rows[name].gathers.values())
        if mine & changed:
            return False
    return True
