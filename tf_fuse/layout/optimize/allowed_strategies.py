# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""List the strategies that a search's mode and constraints allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tf_fuse.layout.optimize.problem import DATA, Problem, listed
from tf_fuse.layout.types.errors import LayoutError, raise_if

AUTO = "auto"
PROPAGATE = "propagate"
MODES = (DATA, AUTO, PROPAGATE)

ShardingConstraints = Mapping[str, str | Sequence[str]]


def allowed_in(
    problem: Problem, mode: str, constraints: ShardingConstraints
) -> dict[int, tuple[int, ...]]:
    """Return, by number of an operation, the strategies that mode and constraints leave.

    Raises:
      LayoutError: as of `search`.
    """
    if mode not in MODES:
        raise LayoutError(f"mode is one of {', '.join(MODES)}, got {mode!r}")
    if mode == PROPAGATE and not constraints:
        raise LayoutError(
            "mode 'propagate' needs constraints: give the strategy of one operation at least, or "
            "take mode 'auto'"
        )
    given = problem.allowed(constraints)
    if mode != DATA:
        return given
    found: dict[int, tuple[int, ...]] = {}
    problems = []
    for i, node in enumerate(problem.nodes):
        tagged = [s for s, one in enumerate(node.candidates) if DATA in one.tags]
        found[i] = tuple(s for s in tagged if s in given.get(i, tagged))
        if not tagged:
            problems.append(
                f"operation {node.name!r} has no strategy with the tag {DATA!r}, which mode 'data' "
                f"needs; it has: {listed(node.names)}"
            )
        elif not found[i]:
            wanted = constraints[node.name]
            several = [wanted] if isinstance(wanted, str) else sorted(wanted)
            problems.append(
                f"operation {node.name!r} is constrained to {', '.join(several)}, but mode 'data' "
                f"allows {listed([node.names[s] for s in tagged])}; drop the constraint, or take "
                "mode 'propagate'"
            )
    raise_if(problems)
    return found
