# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What became of updates on parameter servers, for people and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tf_fuse.shard_update.compiled import Compiled
from tf_fuse.shard_update.cones import Cone, Left
from tf_fuse.shard_update.graph_view import ASSIGNS
from tf_fuse.shard_update.outline import REASONS
from tf_fuse.shard_update.rows import SCATTERS, variable_of

# A single assignment is one operation already.
SINGLE = "too_few"


def server_functions() -> list[dict[str, Any]]:
    """What `fuse_weight_update` has done to updates on servers so far.

    Returns:
      Of each function with assignments of variables that was called with the option on while this
      process had servers (one that is traced several times, or that others call, is several), a
      dict:

      * `function`: its name;
      * `updates`: of each operation, in place of several: `variables` (that it assigns), `device`
        ("" for the one that calls the function), `elements` (of each variable), `operations` (in
        its place), `exact` (whether it has the bits of those) and `by_row` (whether rows of a
        variable are updated);
      * `left`: of each other assignment `variable`, `node`, `reason` (a key of `REASONS`),
        `meaning` (the same in words) and `detail` (the node or tensor that is the reason).
    """
    return [_function(one) for one in decisions() if one.has_servers]


def decisions() -> list[Compiled]:
    """What was decided about each function."""
    from tensorflow.python.eager import context

    fuser = getattr(context.context(), "_tf_fuse_fuser", None)
    return [] if fuser is None else list(fuser.decisions)


def assignments_left(decision: Compiled) -> list[Left]:
    """What of a function is left alone, but for what is one operation anyway."""
    return [left for left in decision.outline.left if left.reason != SINGLE]


def lines(functions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What to print of functions, as `server_functions` returns them."""
    for function in functions:
        updates, left = function["updates"], function["left"]
        before = sum(one["operations"] for one in updates)
        yield function["function"]
        yield f"  {len(updates)} updates are one operation each, in place of {before}"
        for one in updates:
            note = "" if one["exact"] else "; last bits may be others"
            where = f" on {one['device']}" if one["device"] else ""
            rows = ", by rows" if one["by_row"] else ""
            yield f"    {', '.join(one['variables'])}{where}{rows}{note}"
        for one in left:
            yield f"  left: {one['variable']}: {one['meaning']} ({one['node']}: {one['detail']})"


def _function(decision: Compiled) -> dict[str, Any]:
    outline = decision.outline
    pairs = zip(outline.cones, outline.exact, strict=True)
    return {
        "function": decision.function,
        "updates": [_update(decision, cone, exact) for cone, exact in pairs],
        "left": [_left(decision, left) for left in outline.left],
    }


def _update(decision: Compiled, cone: Cone, exact: bool) -> dict[str, Any]:
    nodes = [decision.view.nodes[name] for name in cone.nodes]
    assigns = [node for node in nodes if node.op in ASSIGNS | SCATTERS]
    variables = dict.fromkeys(variable_of(decision.view, node) for node in assigns)
    return {
        "variables": [decision.variables.get(name, name) for name in variables],
        "device": cone.device if "/task:" in cone.device else "",
        "elements": cone.size,
        "operations": len(nodes),
        "exact": exact,
        "by_row": any(node.op in SCATTERS for node in nodes),
    }


def _left(decision: Compiled, left: Left) -> dict[str, Any]:
    variable = variable_of(decision.view, decision.view.nodes[left.node])
    return {
        "variable": decision.variables.get(variable, variable),
        "node": left.node,
        "reason": left.reason,
        "meaning": REASONS[left.reason],
        "detail": left.detail,
    }
