# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plan the servers of variables before they are created."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tf_fuse.parameter_server.balance import Item, ServerLoads, assign
from tf_fuse.parameter_server.costs import Costs, VariableSpec
from tf_fuse.parameter_server.partitioning.partitioner import PartitionDecision, rows_of_pieces

# A function that returns how many pieces along axis 0 variables are split into; 1 by default.
Split = Callable[[Sequence[VariableSpec], ServerLoads], dict[VariableSpec, PartitionDecision]]


@dataclass(frozen=True)
class Expected:
    """A variable that a program will make.

    Attributes:
      variable: its name, shape and type.
      server: that the program names; None for none.
      may_be_split: whether the strategy's partitioner will be asked.
      whole: name of the variable that it is a piece of, where the program itself makes pieces; ""
        for a whole one.
      in_pieces: whether the program asked for its pieces.
    """

    variable: VariableSpec
    server: int | None = None
    may_be_split: bool = True
    whole: str = ""
    in_pieces: bool = False


@dataclass(frozen=True)
class PlannedPlace:
    """One place of a plan.

    Attributes:
      variable: that it is for: a whole one, or a piece.
      item: what it is to `balance.assign`.
      server: where.
      share: of a piece, its part of the whole.
    """

    variable: VariableSpec
    item: Item
    server: int
    share: float = 1.0


class PlacementPlan:
    """PlannedPlace of variables, by name, shape and type.

    Variables that share all three take the places in the order of creation; to the servers they are
    alike.

    Attributes:
      servers: how many there are.
      places: all of them, in order of the variables' names.
      decisions: what was decided about splitting, by name, shape and type of the whole variable.
      reason: why there are no places; "" if there are.
    """

    def __init__(
        self,
        servers: int,
        places: Iterable[PlannedPlace] = (),
        decisions: Iterable[PartitionDecision] = (),
        reason: str = "",
    ):
        """Keep places; see `make_plan`."""
        self.servers = servers
        self.places = tuple(sorted(places, key=lambda p: (p.variable, p.item.whole, p.server)))
        self.decisions = {_key(one.variable): one for one in decisions}
        self.reason = reason
        self._split = {one.variable.name for one in self.decisions.values() if one.pieces > 1}
        self._free: dict[tuple[str, tuple[int, ...], str], list[PlannedPlace]] = {}
        for place in self.places:
            self._free.setdefault(_key(place.variable), []).append(place)

    def copy(self) -> PlacementPlan:
        """Return a copy in which all places are free."""
        return PlacementPlan(self.servers, self.places, self.decisions.values(), self.reason)

    def decision(self, variable: VariableSpec) -> PartitionDecision | None:
        """Return what was decided about splitting a variable; None if it was not planned."""
        return self.decisions.get(_key(variable))

    def may_split(self, name: str) -> bool:
        """Return whether a variable of that name is to be in pieces."""
        return name in self._split

    def take(self, variable: VariableSpec, explicit: int | None = None) -> PlannedPlace | None:
        """Take a place; each is for one variable.

        Args:
          variable: that is about to be made.
          explicit: the server that the program names; None for none.

        Returns:
          The place; None if there is none for it, or on another server than the explicit one.
        """
        free = self._free.get(_key(variable), [])
        for index, place in enumerate(free):
            if explicit == place.item.server or explicit == place.server:
                return free.pop(index)
        return None

    def left(self) -> list[PlannedPlace]:
        """Return the places that no variable has taken, in order of the variables' names."""
        left = [place for places in self._free.values() for place in places]
        return sorted(left, key=lambda p: (p.variable, p.item.whole, p.server))


def make_plan(
    expected: Sequence[Expected], costs: Costs, servers: ServerLoads, split: Split | None = None
) -> PlacementPlan:
    """Choose a server for each variable that is expected.

    Args:
      expected: the variables, in any order.
      costs: the figures.
      servers: what they have already; is not changed.
      split: what the strategy's partitioner will do; None where there is none.

    Returns:
      The plan. It does not depend on the order of the variables.
    """
    count = len(servers.counts)
    base = servers.copy()
    for one in expected:
        if one.server is not None:
            base.add(item_of(one.variable, costs), one.server)
    # (A device scope around a split variable applies to all of its pieces.)
    asked = [one.variable for one in expected if one.may_be_split and one.server is None]
    decisions = split(asked, base) if split is not None else {}
    pieces: list[tuple[VariableSpec, Item, float]] = []
    for number, one in enumerate(sorted(expected, key=lambda e: (e.variable, e.server or 0))):
        decision = decisions.get(one.variable) if one.may_be_split else None
        if decision is None or decision.pieces < 2:
            item = item_of(one.variable, costs, one.whole, server=one.server)
            pieces.append((one.variable, item, 1.0))
        else:
            pieces += _pieces(one, decision.pieces, costs, number)
    chosen = assign([item for _, item, _ in pieces], servers)
    places = [
        PlannedPlace(variable, item, server, share)
        for (variable, item, share), server in zip(pieces, chosen, strict=True)
    ]
    return PlacementPlan(count, places, decisions.values())


def item_of(
    variable: VariableSpec,
    costs: Costs,
    whole: str = "",
    share: float = 1.0,
    server: int | None = None,
) -> Item:
    """Return a variable as an item of `balance.assign`."""
    slots = -1 if variable.slots is None else variable.slots
    key = (variable.name, variable.shape, variable.dtype, variable.trainable, slots)
    return Item(key, variable.load(costs, share).balanced(), server, whole)


def _pieces(
    one: Expected, count: int, costs: Costs, number: int
) -> list[tuple[VariableSpec, Item, float]]:
    made = []
    rows = one.variable.shape[0]
    for index, part in enumerate(rows_of_pieces(rows, min(count, rows))):
        shape = (part, *one.variable.shape[1:])
        piece = replace(one.variable, name=f"{one.variable.name}/part_{index}", shape=shape)
        share = part / rows
        # (The number keeps the pieces of variables of one name apart.)
        whole = f"{one.variable.name}#{number}"
        made.append((piece, item_of(piece, costs, whole, share, one.server), share))
    return made


def _key(variable: VariableSpec) -> tuple[str, tuple[int, ...], str]:
    return variable.name, variable.shape, variable.dtype
