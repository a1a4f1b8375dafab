# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Places for variables that are not there yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tf_fuse.parameter_server.balance import Item, Servers, assign
from tf_fuse.parameter_server.partition import Decision, rows_of_pieces
from tf_fuse.parameter_server.traffic import Costs, Variable

# Into how many pieces along axis 0 variables are split; of those that it has nothing about: 1.
Split = Callable[[Sequence[Variable], Servers], dict[Variable, Decision]]


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

    variable: Variable
    server: int | None = None
    may_be_split: bool = True
    whole: str = ""
    in_pieces: bool = False


@dataclass(frozen=True)
class Place:
    """One place of a plan.

    Attributes:
      variable: that it is for: a whole one, or a piece.
      item: what it is to `balance.assign`.
      server: where.
      share: of a piece, its part of the whole.
    """

    variable: Variable
    item: Item
    server: int
    share: float = 1.0


class Plan:
    """Places of variables, by name, shape and type.

    Of variables that have all three in common, those that are made first take the places that come
    first; which one is which makes no difference to the servers.

    Attributes:
      servers: how many there are.
      places: all of them, in order of the variables' names.
      decisions: what was decided about splitting, by name, shape and type of the whole variable.
      reason: why there are no places; "" if there are.
    """

    def __init__(
        self,
        servers: int,
        places: Iterable[Place] = (),
        decisions: Iterable[Decision] = (),
        reason: str = "",
    ):
        """Keeps places; see `make_plan`."""
        self.servers = servers
        self.places = tuple(sorted(places, key=lambda p: (p.variable, p.item.whole, p.server)))
        self.decisions = {_key(one.variable): one for one in decisions}
        self.reason = reason
        self._split = {one.variable.name for one in self.decisions.values() if one.pieces > 1}
        self._free: dict[tuple[str, tuple[int, ...], str], list[Place]] = {}
        for place in self.places:
            self._free.setdefault(_key(place.variable), []).append(place)

    def copy(self) -> Plan:
        """One whose places are all free."""
        return Plan(self.servers, self.places, self.decisions.values(), self.reason)

    def may_split(self, name: str) -> bool:
        """Whether a variable of that name is to be in pieces."""
        return name in self._split

    def take(self, variable: Variable, explicit: int | None = None) -> Place | None:
        """Takes a place; each is for one variable.

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

    def left(self) -> list[Place]:
        """The places that no variable has taken, in order of the variables' names."""
        left = [place for places in self._free.values() for place in places]
        return sorted(left, key=lambda p: (p.variable, p.item.whole, p.server))


def make_plan(
    expected: Sequence[Expected], costs: Costs, servers: Servers, split: Split | None = None
) -> Plan:
    """Chooses a server for each variable that is expected.

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
    # (A device scope around a variable that is split says where all of its pieces are.)
    asked = [one.variable for one in expected if one.may_be_split and one.server is None]
    decisions = split(asked, base) if split is not None else {}
    pieces: list[tuple[Variable, Item, float]] = []
    for number, one in enumerate(sorted(expected, key=lambda e: (e.variable, e.server or 0))):
        decision = decisions.get(one.variable) if one.may_be_split else None
        if decision is None or decision.pieces < 2:
            item = item_of(one.variable, costs, one.whole, server=one.server)
            pieces.append((one.variable, item, 1.0))
        else:
            pieces += _pieces(one, decision.pieces, costs, number)
    chosen = assign([item for _, item, _ in pieces], servers)
    places = [
        Place(variable, item, server, share)
        for (variable, item, share), server in zip(pieces, chosen, strict=True)
    ]
    return Plan(count, places, decisions.values())


def item_of(
    variable: Variable,
    costs: Costs,
    whole: str = "",
    share: float = 1.0,
    server: int | None = None,
) -> Item:
    """What a variable is to `balance.assign`."""
    slots = -1 if variable.slots is None else variable.slots
    key = (variable.name, variable.shape, variable.dtype, variable.trainable, slots)
    return Item(key, variable.load(costs, share).balanced(), server, whole)


def _pieces(
    one: Expected, count: int, costs: Costs, number: int
) -> list[tuple[Variable, Item, float]]:
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


def _key(variable: Variable) -> tuple[str, tuple[int, ...], str]:
    return variable.name, variable.shape, variable.dtype
