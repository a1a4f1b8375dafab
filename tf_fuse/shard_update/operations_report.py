# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which updates are one operation each, and why others are not: a part of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tf_fuse.shard_update.compiled import Compiled
from tf_fuse.shard_update.cones import Cone, Left
from tf_fuse.shard_update.graph_view import ASSIGNS
from tf_fuse.shard_update.outline import REASONS
from tf_fuse.shard_update.rewrite import SCOPE
from tf_fuse.shard_update.rows import SCATTERS, variable_of

# A single assignment is one operation already.
SINGLE = "too_few"
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


def fused() -> list[Compiled]:
    """What was decided about each function by `fuse_weight_update`."""
    from tensorflow.python.eager import context

    fuser = getattr(context.context(), _KEEPERS["fused"], None)
    return [] if fuser is None else list(fuser.decisions)


def assignments_left(decision: Compiled) -> list[Left]:
    """What of a function is left alone, but for what is one operation anyway."""
    return [left for left in decision.outline.left if left.reason != SINGLE]


def _operation(way: str, decision: Compiled) -> dict[str, Any]:
    found = decision.outline
    pairs = zip(found.cones, found.exact, strict=True)
    return {
        "function": decision.function,
        "way": way,
        "updates": len(found.cones),
        "variables": sum(len(cone.variables) for cone in found.cones),
        "each": [_update(decision, cone, exact) for cone, exact in pairs],
        "left": [_left(decision, left) for left in found.left],
    }


def _update(decision: Compiled, cone: Cone, exact: bool) -> dict[str, Any]:
    nodes = [decision.view.nodes[name] for name in cone.nodes]
    assigns = [node for node in nodes if node.op in ASSIGNS | SCATTERS]
    variables = dict.fromkeys(variable_of(decision.view, node) for node in assigns)
    # (A node may be on "/device:CPU:0" and run where its variable is.)
    places = [cone.device, *map(decision.view.place_of, assigns)]
    return {
        "variables": [_name(decision, name) for name in variables],
        "device": next((place for place in places if "/task:" in place), ""),
        "elements": cone.size,
        "operations": len(nodes),
        "exact": exact,
        "by_row": any(node.op in SCATTERS for node in nodes),
    }


def _left(decision: Compiled, left: Left) -> dict[str, Any]:
    variable = variable_of(decision.view, decision.view.nodes[left.node])
    return {
        "variable": _name(decision, variable),
        "assignment": left.node,
        "reason": left.reason,
        "meaning": REASONS[left.reason],
        "detail": left.detail,
    }


def _name(decision: Compiled, variable: str) -> str:
    """The name of a variable in the program, as far as it is known.

    Args:
      decision: about the function that uses it.
      variable: as `GraphView` has it: an argument, or the handle that a part of a slot has in a
        function that is cut, which is called after the slot's argument.
    """
    own = variable.removeprefix(f"{SCOPE}/").partition(":")[0]
    argument = variable if own == variable else own
    return decision.variables.get(argument, argument)


def lines(told: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The same in words.

    Args:
      told: of `operations`.
    """
    for one in told:
        count = f"{one['updates']} updates, of {one['variables']} variables"
        yield f"{one['function']}: {count}, are one operation each ({one['way']})"
        for update in one["each"]:
            # (Of a program's own process, the table of the function has them.)
            if update["device"]:
                rows = ", by rows" if update["by_row"] else ""
                bits = "" if update["exact"] else "; last bits may be others"
                names = ", ".join(update["variables"])
                yield f"  {names} on {update['device']}, of {update['operations']}{rows}{bits}"
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
