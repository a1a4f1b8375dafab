# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes one operation of an update that changes rows of variables, and whole ones.

A gradient of some rows of a table is scattered to a slot between two elementwise parts, as an
optimizer of tf_keras does it:

    m += (beta - 1) * m  ··►  m[rows] += (1 - beta) * g  ··►  w -= rate * m / (sqrt(v) + epsilon)

So the operation, TfFuse>StagedUpdate, has stages: the whole variables', each of which is a program
as of `program.py`, and the rows'. All of them are under one lock.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tf_fuse.shard_update.cones import Cone, Finder, IsHere
from tf_fuse.shard_update.graph_view import ASSIGNS, READS, GraphView, control_inputs, data_inputs
from tf_fuse.shard_update.origins import Site
from tf_fuse.shard_update.outline import Maker, Operation, results_of
from tf_fuse.shard_update.rows import (
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
from tf_fuse.shard_update.staged_writer import Writer


@dataclass
class _Group:
    """An update: variables that have to change together.

    Attributes:
      variables: by name.
      cones: what is done to whole ones.
      scatters: names of nodes that change rows, in an order in which they can run, and of those
        that add up what joined rows are made of.
      rows: what their values are made of; none of those that are made outside.
      joins: of rows that others join, by the name of the node that joins.
    """

    variables: set[str]
    cones: list[Cone] = field(default_factory=list)
    scatters: list[str] = field(default_factory=list)
    rows: dict[str, Rows] = field(default_factory=dict)
    joins: dict[str, Join] = field(default_factory=dict)

    def nodes(self) -> set[str]:
        found = {name for cone in self.cones for name in cone.nodes} | set(self.scatters)
        found = found.union(*(rows.nodes | rows.hands for rows in self.rows.values()))
        return found.union(*(join.nodes() for join in self.joins.values()))


class Stager:
    """Makes the operations of one function."""

    def __init__(
        self,
        view: GraphView,
        finder: Finder,
        partial: PartialShape,
        is_here: IsHere,
        maker: Maker,
        site: Site,
    ):
        """Takes the function, and what `outline.outline` has found of it."""
        self._view, self._shapes = view, finder.shapes
        self._maker, self._site = maker, site
        self._order = list(view.in_order())
        self._is_here = is_here
        assigns = {n.name for n in self._order if n.op in ASSIGNS}
        self._updated = {variable_of(view, view.nodes[name]) for name in assigns}
        scatters = [node for node in self._order if node.op in SCATTERS]
        self._updated |= {variable_of(view, node) for node in scatters}
        self._rows = RowFinder(view, self._shapes, partial, finder.is_compiled, self._updated)
        #: Names of scatters that are left as they are.
        self.left: list[str] = [node.name for node in scatters]

    def take(self, cones: Sequence[Cone]) -> tuple[list[tuple[Cone, Operation]], list[Cone]]:
        """Makes operations of all updates that change rows.

        Args:
          cones: all of the function.

        Returns:
          The operations, each with all nodes that it stands for; and the cones of other updates.
        """
        made, others = [], list(cones)
        for group in self._groups(cones):
            operation = self._make(group)
            if operation is None:
                continue
            others = [cone for cone in others if cone not in group.cones]
            nodes = group.nodes()
            order = [node.name for node in self._order if node.name in nodes]
            device = self._view.nodes[group.scatters[0]].device
            made.append((Cone(order, sorted(group.variables), 0, device), operation))
            self.left = [name for name in self.left if name not in nodes]
        return made, others

    def _groups(self, cones: Sequence[Cone]) -> list[_Group]:
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
            if not is_sum and not self._is_here(node.device, variable_of(view, node)):
                continue
            found = self._rows.rows(node)
            if is_sum and found is None:
                continue
            scatters.append(node)
            if found is not None:
                rows[node.name] = found
        for cone in cones:
            for variable in cone.variables[1:]:
                one_with[find(variable)] = find(cone.variables[0])
        changed = {node.name: self._changed(node, cones, rows.get(node.name)) for node in scatters}
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
        for cone in cones:
            if cone.variables and find(cone.variables[0]) in groups:
                groups[find(cone.variables[0])].cones.append(cone)
        return [group for _, group in sorted(groups.items())]

    def _changed(self, node: Any, cones: Sequence[Cone], rows: Rows | None) -> list[str]:
        """The variables that a scatter is of, and those that have to change together with it."""
        found: dict[str, None] = {}
        if node.op == SUM:
            readers = {use.node for use in self._view.uses(self._view.outputs(node)[0])}
            for cone in cones:
                if readers & set(cone.nodes):
                    found |= dict.fromkeys(cone.variables)
        else:
            found[variable_of(self._view, node)] = None
        if rows is not None:
            found |= dict.fromkeys(rows.gathers.values())
            for name in sorted(rows.joins):
                join = self._rows.join(name)
                found |= dict.fromkeys(sorted(join.variables()) if join is not None else ())
        return list(found)

    def _make(self, group: _Group) -> Operation | None:
        nodes = group.nodes()
        devices = {self._view.nodes[name].device for name in group.scatters}
        devices |= {cone.device for cone in group.cones}
        missing = [
            node
            for node in self._order
            if node.op in ASSIGNS | SCATTERS
            and variable_of(self._view, node) in group.variables
            and node.name not in nodes
        ]
        if len(devices) != 1 or missing:
            return None
        levels = self._levels(group)
        if group.joins and not (self._is_closed(group) and self._is_in_time(group, levels)):
            return None
        make = functools.partial(self._maker.make, site=self._site)
        writer = Writer(self._view, self._shapes, min(devices), make)
        for level in sorted(set(levels.values())):
            for cone in group.cones:
                part = [name for name in cone.nodes if levels[name] == level]
                if part and not self._write_whole(writer, cone, part):
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
        """Whether nothing else reads what is made of rows."""
        view, nodes = self._view, group.nodes()
        whole = {name for cone in group.cones for name in cone.nodes}
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
        """Whether what is gathered is not changed before the stage that gathers it."""
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

    def _write_whole(self, writer: Writer, cone: Cone, part: list[str]) -> bool:
        view = self._view
        variables = {variable_of(view, view.nodes[n]) for n in part if self._has_variable(n)}
        small = Cone(part, sorted(variables), cone.size, cone.device)
        if results_of(view, small) or not variables:
            return False  # (What is in between two stages is not kept.)
        made = self._maker.make(view, small, self._shapes, self._site)
        if not isinstance(made, Operation):
            return False
        writer.add_whole(made)
        return True

    def _has_variable(self, name: str) -> bool:
        return self._view.nodes[name].op in READS | ASSIGNS

    def _levels(self, group: _Group) -> dict[str, int]:
        """When each node runs: whole variables and rows take turns."""
        view, nodes = self._view, group.nodes()
        kinds = {name: "whole" for cone in group.cones for name in cone.nodes}
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
        # What changes nothing runs when it is needed, so that no value waits for another stage.
        for node in reversed(self._order):
            if kinds.get(node.name) == "whole" and node.op not in ASSIGNS:
                after = {use.node for t in view.outputs(node) for use in view.uses(t)}
                after |= set(view.followers(node.name))
                later = [levels[n] - (kinds[n] != "whole") for n in after if n in levels]
                levels[node.name] = max(levels[node.name], min(later, default=0))
        return levels


def _is_apart(group: _Group, by_rows: Mapping[str, list[str]], view: GraphView) -> bool:
    """Whether scatters to different rows, at one time, read nothing that others of them change."""
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
