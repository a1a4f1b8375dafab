# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which updates are one operation each, and why others are not: a part of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tf_fuse.shard_update.outline import REASONS

_KEEPERS = {"compiled": "_tf_fuse_compiler", "fused": "_tf_fuse_fuser"}


def operations(context: Any) -> list[dict[str, Any]]:
    """What became of the functions of a context whose updates were to be one operation each.

    Args:
      context: the eager context.

    Returns:
      A list for `weight_update_report`, by the way that was taken, in the order of the first calls.
    """
    keepers = {way: getattr(context, name, None) for way, name in _KEEPERS.items()}
    return [
        _operation(way, one)
        for way, keeper in sorted(keepers.items())
        for one in (list(keeper.decisions) if keeper is not None else ())
    ]


def _operation(way: str, decision: Any) -> dict[str, Any]:
    found = decision.outline
    return {
        "function": decision.function,
        "way": way,
        "updates": len(found.cones),
        "variables": sum(len(cone.variables) for cone in found.cones),
        "left": [
            {
                "assignment": left.node,
                "reason": left.reason,
                "meaning": REASONS[left.reason],
                "detail": left.detail,
            }
            for left in found.left
        ],
    }


def lines(told: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The same in words.

    Args:
      told: of `operations`.
    """
    for one in told:
        count = f"{one['updates']} updates, of {one['variables']} variables"
        yield f"{one['function']}: {count}, are one operation each ({one['way']})"
        counts = Counter((left["reason"], left["meaning"]) for left in one["left"])
        for (reason, meaning), number in sorted(counts.items()):
            details = sorted({left["detail"] for left in one["left"] if left["reason"] == reason})
            more = f" and {len(details) - 1} more" if len(details) > 1 else ""
            yield f"  {number} left, {reason}: {meaning} ({details[0]}{more})"


def left(told: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many assignments are left, by reason.

    Args:
      told: of `operations`.
    """
    counts = Counter(one["reason"] for function in told for one in function["left"])
    return dict(sorted(counts.items()))
