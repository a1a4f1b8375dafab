# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the variables whose rows are gathered and updated where they lie.

An update of a few rows would otherwise copy the whole shard: the values that a program reads at its
beginning share the variable's memory. Here the program reads rows by the variable's handle, and the
update comes at its end, after all other reads and after checks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from tf_fuse.layout.execution.device_program import DeviceProgram, Instruction
from tf_fuse.layout.trace.records import Origin
from tf_fuse.layout.types.control_flow import OUTSIDE

_PASSED_ON: Final = ("Identity", "ReadVariableOp")
_GATHERS: Final = ("Gather", "GatherV2", "ResourceGather")
_UPDATES: Final = ("ResourceScatter", "ResourceSparseApply")


@dataclasses.dataclass(frozen=True)
class TablesInPlace:
    """Variables that a program reads by rows alone, and updates once.

    Attributes:
      variables: their names.
      updates: names of the operations that update them.
    """

    variables: frozenset[str] = frozenset()
    updates: frozenset[str] = frozenset()


NOT_IN_PLACE: Final = TablesInPlace()


def find(program: DeviceProgram, origins: Mapping[str, Origin]) -> TablesInPlace:
    """Return the variables of a program that can be updated in place.

    Args:
      program: of all devices.
      origins: by name of an operation, what it was in TensorFlow's graph.
    """
    readers: dict[str, list[Instruction]] = {}
    relayouted = {one.tensor for one in program.writes.values() if one.relayout}
    for one in program.instructions:
        for read in one.reads:
            readers.setdefault(read.tensor, []).append(one)
            if read.relayout:
                relayouted.add(read.tensor)
    seen_elsewhere = {one.tensor for one in (*program.results.values(), *program.observed.values())}
    seen_elsewhere.update(one.tensor for one in program.carried.values())
    by_update: dict[str, set[str]] = {}
    for name, write in program.writes.items():
        update = _update_of(program, origins, readers, name, relayouted | seen_elsewhere)
        if update is None or readers.get(write.tensor):
            continue
        if write.tensor in {one.name for one in update.operation.outputs}:
            by_update.setdefault(update.operation.name, set()).add(name)
    whole = {
        update: names
        for update, names in by_update.items()
        if set(origins[update].written) == names == set(origins[update].handles.values())
    }
    return TablesInPlace(frozenset().union(*whole.values()), frozenset(whole))


def _update_of(
    program: DeviceProgram,
    origins: Mapping[str, Origin],
    readers: Mapping[str, list[Instruction]],
    variable: str,
    barred: set[str],
) -> Instruction | None:
    """Return the one update of a variable, if beside it only gathers read it."""
    found = None
    waiting = [variable]
    while waiting:
        tensor = waiting.pop()
        if tensor in barred:
            return None
        for one in readers.get(tensor, ()):
            operation = one.operation
            places = [i for i, read in enumerate(one.reads) if read.tensor == tensor]
            if program.control_flow.block(operation.name) != OUTSIDE:
                return None
            if operation.kind in _PASSED_ON:
                waiting += [each.name for each in operation.outputs]
            elif operation.kind in _GATHERS and places == [0]:
                continue
            elif operation.kind.startswith(_UPDATES) and operation.name in origins:
                if found is not None:
                    return None
                origin = origins[operation.name]
                if [origin.handles.get(origin.numbers[i]) for i in places] != [variable]:
                    return None
                found = one
            else:
                return None
    return found
