# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Track the variables of one strategy's servers, and choose the server of the next one."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

from tf_fuse.parameter_server.balance import Item, ServerLoads
from tf_fuse.parameter_server.costs import Costs, Load, VariableSpec
from tf_fuse.parameter_server.partitioning.partitioner import PartitionDecision
from tf_fuse.parameter_server.placement.planned_places import PlacementPlan, PlannedPlace, item_of
from tf_fuse.parameter_server.placement.update_spreading import Spread

#: Why a variable is where it is, to a sentence for people.
PLACES = {
    "explicit": "A device scope names the server.",
    "online": "No plan has it: the server that balanced best with it when it was created.",
    "planned": "As planned before the variables were made.",
    "unsized": "Its size was not known when it was made: the server that was best off.",
}


@dataclass
class PlacedVariable:
    """A variable and its place.

    Attributes:
      variable: its name, shape and type; of a piece, those of the piece.
      server: number of its server.
      why: a key of `PLACES`.
      item: what it is to the servers.
      share: of a piece, its part of the whole.
      slots: how many variables were put beside it.
      slot_bytes: how many bytes those take.
    """

    variable: VariableSpec
    server: int
    why: str
    item: Item
    share: float = 1.0
    slots: int = 0
    slot_bytes: int = 0


class Placer:
    """The servers of one strategy, or of one graph.

    Several threads may create variables. The server of a planned one does not depend on the order.
    """

    def __init__(self, servers: int, costs: Costs):
        """Start with empty servers.

        Args:
          servers: how many there are.
          costs: the figures by which it decides.

        Raises:
          ValueError: there is no server.
        """
        if servers < 1:
            raise ValueError(f"there are {servers} parameter servers, at least 1 is needed")
        self.costs = costs
        self._servers = ServerLoads(servers, len(Load().balanced()))
        self._placed: list[PlacedVariable] = []
        self._plans: list[PlacementPlan] = []
        self._ended: list[dict[str, Any]] = []
        self._by_key: dict[str, PlacedVariable] = {}
        self._lock = threading.RLock()

    @property
    def servers(self) -> int:
        """How many there are."""
        return len(self._servers.counts)

    def placed(self) -> list[PlacedVariable]:
        """Return all variables so far in the order of creation, without slots."""
        with self._lock:
            return list(self._placed)

    def loads(self) -> ServerLoads:
        """Return a copy of what the servers have, with what is planned for them."""
        with self._lock:
            return self._servers.copy()

    def add_plan(self, plan: PlacementPlan) -> None:
        """Keep the places of a plan for variables that are made from now on.

        Raises:
          ValueError: it is for another number of servers; the text has both.
        """
        if plan.servers != self.servers:
            raise ValueError(
                f"the plan is for {plan.servers} parameter servers, and there are {self.servers}: "
                "make it again"
            )
        with self._lock:
            self._plans.append(plan)
            for place in plan.places:
                self._servers.add(place.item, place.server)

    def remove_plan(self, plan: PlacementPlan) -> list[PlannedPlace]:
        """Remove and return the places of a plan that no variable has taken."""
        with self._lock:
            self._plans.remove(plan)
            left = plan.left()
            self._ended.append(_describe(plan))
            for place in left:
                self._servers.remove(place.item, place.server)
            return left

    def place(
        self, variable: VariableSpec, explicit: int | None = None, whole: str = "",
        share: float = 1.0, is_sized: bool = True,
    ) -> PlacedVariable:  # fmt: skip
        """Choose a server, and counts the variable as being there.

        Args:
          variable: that is about to be made.
          explicit: the server that the program names; None for none.
          whole: what it is a piece of, by a text that no other variable has; "" for a whole one.
          share: of a piece, its part of the whole.
          is_sized: whether its shape is known.

        Returns:
          Its place.
        """
        with self._lock:
            taken = (plan.take(variable, explicit) for plan in self._plans if is_sized)
            place = next((one for one in taken if one is not None), None)
            if place is not None:
                why = "planned" if explicit is None else "explicit"
                found = PlacedVariable(place.variable, place.server, why, place.item, share)
            else:
                item = item_of(variable, self.costs, whole, share)
                server = self._servers.best(item) if explicit is None else explicit
                why = "online" if is_sized else "unsized"
                why = why if explicit is None else "explicit"
                found = PlacedVariable(variable, server, why, item, share)
                self._servers.add(item, server)
            self._placed.append(found)
            return found

    def made(self, placed: PlacedVariable, variable: VariableSpec, key: str) -> None:
        """Record the variable as it was created.

        Args:
          placed: what `place` returned.
          variable: as it was made; of another size than was thought, perhaps.
          key: by which slots will name it.
        """
        with self._lock:
            self._by_key[key] = placed
            if variable.shape != placed.variable.shape or variable.dtype != placed.variable.dtype:
                self._servers.remove(placed.item, placed.server)
                placed.variable = variable
                placed.item = item_of(variable, self.costs, placed.item.whole, placed.share)
                self._servers.add(placed.item, placed.server)

    def forget(self, placed: PlacedVariable) -> None:
        """Take back what `place` did, of a variable that could not be made."""
        with self._lock:
            # (Not the first one that is equal to it.)
            self._placed = [one for one in self._placed if one is not placed]
            self._servers.remove(placed.item, placed.server)

    def decision(self, variable: VariableSpec) -> PartitionDecision | None:
        """Return what a plan decides about splitting a whole variable; the last plan's."""
        with self._lock:
            found = (plan.decision(variable) for plan in reversed(self._plans))
            return next((one for one in found if one is not None), None)

    def may_split(self, name: str) -> bool:
        """Return whether a plan has a variable of that name in pieces."""
        with self._lock:
            return any(plan.may_split(name) for plan in self._plans)

    def plans(self) -> list[dict[str, Any]]:
        """Return the figures of all plans so far that `placement_report` shows."""
        with self._lock:
            return [*self._ended, *map(_describe, self._plans)]

    def add_slot(self, key: str, size: int) -> None:
        """Count a variable that TensorFlow has put beside another one.

        Args:
          key: of the other one, as for `made`; if there was none, nothing is known of its server.
          size: bytes of the new one.
        """
        with self._lock:
            placed = self._by_key.get(key)
            if placed is None:
                return
            # (By bytes: an optimizer keeps smaller ones, too, as the powers of Adam's betas.)
            expected = self._expected_bytes(placed.variable)
            before = max(0, placed.slot_bytes - expected)
            placed.slots += 1
            placed.slot_bytes += size
            more = max(0, placed.slot_bytes - expected) - before
            if more:
                self._servers.add(Item((), (float(more), 0.0, 0.0)), placed.server)
                self._servers.counts[placed.server] -= 1

    def _expected_bytes(self, variable: VariableSpec) -> int:
        """Return the bytes of the slots that a variable was counted with."""
        if not variable.is_trained:
            return 0
        slots = self.costs.slots if variable.slots is None else variable.slots
        return slots * variable.bytes

    def measured(self) -> list[tuple[PlacedVariable, Load]]:
        """Return all variables, and what they cost by the slots that they have.

        While there are no slots yet, variables count with the expected ones.
        """
        with self._lock:
            placed = list(self._placed)
            has_slots = any(one.slots for one in placed)
            result = []
            for one in placed:
                slots = round(one.slot_bytes / (one.variable.bytes or 1))
                variable = replace(one.variable, slots=slots) if has_slots else one.variable
                load = variable.load(self.costs, one.share)
                kept = float(one.variable.bytes + one.slot_bytes)
                result.append((one, replace(load, kept=kept) if has_slots else load))
            return result


def _describe(plan: PlacementPlan) -> dict[str, Any]:
    return {
        "variables": len(plan.places),
        "not_made": [place.variable.name for place in plan.left()],
        "reason": plan.reason,
        "spread": [_told(one) for one in plan.decisions.values() if isinstance(one, Spread)],
    }


def _told(one: Spread) -> dict[str, Any]:
    return {
        "variable": one.variable.name,
        "shape": list(one.variable.shape),
        "pieces": one.pieces,
        "verdict": one.verdict,
        "update_s": one.update_s,
        "wire_s": one.wire_s,
        "share_s": one.share_s,
        "seconds": list(one.seconds),
        "arithmetic": one.arithmetic(),
    }
