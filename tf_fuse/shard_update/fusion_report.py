# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Report which updates are one operation each, and why others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tf_fuse.function_graph.view import ASSIGNS
from tf_fuse.fuse_update.analysis.fusion_clusters import FusionCluster, UnfusedAssignment
from tf_fuse.fuse_update.analysis.rows import SCATTERS, variable_of
from tf_fuse.fuse_update.fusion_decision import FusionDecision
from tf_fuse.fuse_update.outline import REASONS
from tf_fuse.shard_update.plan import SCOPE

_KEEPERS = {"compiled": "_tf_fuse_compiler", "fused": "_tf_fuse_fuser"}


def operations(context: Any) -> list[dict[str, Any]]:
    """Return what became of the functions of a context whose updates were to be one operation each.

    Args:
      context: the eager context.

    Returns:
      A list for `weight_update_report`, by the way that was taken, in the order of the first calls.
    """
    keepers = {way: getattr(context, name, None) for way, name in _KEEPERS.items()}
    return [
        _operation(way, one)
        for way, keeper in sorted(keepers.items())
        for one in (keeper.decisions if keeper is not None else ())
    ]


def fused() -> list[FusionDecision]:
    """Return what was decided about each function by `fuse_weight_update`."""
    from tensorflow.python.eager import context

    fuser = getattr(context.context(), _KEEPERS["fused"], None)
    return [] if fuser is None else fuser.decisions


def _operation(way: str, decision: FusionDecision) -> dict[str, Any]:
    found = decision.outline
    pairs = zip(found.clusters, found.exact, strict=True)
    return {
        "function": decision.function,
        "way": way,
        "updates": len(found.clusters),
        "variables": sum(len(cluster.variables) for cluster in found.clusters),
        "each": [_update(decision, cluster, exact) for cluster, exact in pairs],
        "left": [_left(decision, left) for left in found.left],
    }


def _update(decision: FusionDecision, cluster: FusionCluster, exact: bool) -> dict[str, Any]:
    nodes = [decision.view.nodes[name] for name in cluster.nodes]
    assigns = [node for node in nodes if node.op in ASSIGNS | SCATTERS]
    variables = dict.fromkeys(variable_of(decision.view, node) for node in assigns)
    # (A node may be on "/device:CPU:0" and run where its variable is.)
    places = (
        [cluster.device, *map(decision.view.device_of, assigns)] if decision.has_servers else []
    )
    return {
        "variables": [_name(decision, name) for name in variables],
        "device": next((place for place in places if "/task:" in place), ""),
        "elements": cluster.size,
        "operations": len(nodes),
        "exact": exact,
        "by_row": any(node.op in SCATTERS for node in nodes),
    }


def _left(decision: FusionDecision, left: UnfusedAssignment) -> dict[str, Any]:
    variable = variable_of(decision.view, decision.view.nodes[left.node])
    return {
        "variable": _name(decision, variable),
        "assignment": left.node,
        "reason": left.reason,
        "meaning": REASONS[left.reason],
        "detail": left.detail,
    }


def _name(decision: FusionDecision, variable: str) -> str:
    """Return the name of a variable in the program, as far as it is known.

    Args:
      decision: about the function that uses it.
      variable: as `GraphView` has it: an argument, or the handle that a shard of a slot has in a
        function that is sharded, which is called after the slot's argument.
    """
    own = variable.removeprefix(f"{SCOPE}/").partition(":")[0]
    argument = variable if own == variable else own
    return decision.variables.get(argument, argument)


def lines(told: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the same in words.

    Args:
      told: of `operations`.
    """
    for one in told:
        count = f"{_count(one['updates'], 'update')}, of {_count(one['variables'], 'variable')}"
        yield f"{one['function']}: {count}, in one operation each ({one['way']})"
        for update in one["each"]:
            # (Of a program's own process, the table of the function has them.)
            if update["device"]:
                rows = ", by rows" if update["by_row"] else ""
                bits = "" if update["exact"] else "; last bits may be others"
                names = ", ".join(update["variables"])
                made_of = _count(update["operations"], "operation")
                yield f"  {names} on {update['device']}, of {made_of}{rows}{bits}"
        counts = Counter((left["reason"], left["meaning"]) for left in one["left"])
        for (reason, meaning), number in sorted(counts.items()):
            places = sorted({_where(left) for left in one["left"] if left["reason"] == reason})
            more = f" and {len(places) - 1} more" if len(places) > 1 else ""
            yield f"  {number} left, {reason}: {meaning} ({places[0]}{more})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _where(left: Mapping[str, Any]) -> str:
    """Return the variable of an unfused assignment, and the node that is the reason."""
    own = ("", left["variable"], left["assignment"])
    return str(left["variable"]) + (f" by {left['detail']}" if left["detail"] not in own else "")


def left(told: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many assignments are left, by reason.

    Args:
      told: of `operations`.
    """
    counts = Counter(one["reason"] for function in told for one in function["left"])
    return dict(sorted(counts.items()))
