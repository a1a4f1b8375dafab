# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Report how the weight updates of a program were sharded, for people and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tf_fuse._console import open_console
from tf_fuse._deprecated.former_keys import FormerKeys
from tf_fuse._deprecated.former_reports import FUNCTION_KEYS, with_new_names
from tf_fuse.shard_update.cost_figures import UpdateCosts
from tf_fuse.shard_update.decision import FUNCTION_REASONS, Decision
from tf_fuse.shard_update.fusion_report import lines, operations
from tf_fuse.shard_update.plan import GATHER_REASONS, REASONS, Bucket, UpdateCluster
from tf_fuse.shard_update.replicas import name_of, width_of

# The reason of what is reduced for people, as a loss or a metric: it is not a gradient.
NO_UPDATE = "no_update"
# Of what is left on purpose.
_NO_WARNING = "no_profit"

_OFF = "the option shard_weight_update is off"


def weight_update_report() -> dict[str, Any]:
    """Return what the option `shard_weight_update` has done in this process so far.

    It reads nothing from other replicas, and puts no values together.

    Returns:
      A dict, which can be written as JSON:

      * `sharded`: whether the update of any function is sharded;
      * `reason`: why none was looked at, in words; "" if some were;
      * `functions`: of each function with an all-reduce that was called with the option on, in that
        order (a `tf.function` that was traced several times is several), and that the program still
        has, a dict:

        * `function`: its name, and `replicas`, how many train together (0: not known), in how many
          `groups`; each group keeps the whole state;
        * `sharded`, and if it is not: `reason` (a key of `FUNCTION_REASONS`, else ""), `meaning`
          (the same in words) and `detail` (the operation, or what is wrong);
        * `variables`: how many variables of the optimizer are in shards, and `weights`, how many
          weights are, since they are gathered right before their first use;
        * `state_bytes`: bytes of the shards of those here, and `whole_state_bytes`, of whole ones,
          both with the weights that are in shards;
        * `costs`: the figures by which it was weighed whether sharding saves time, by name, and
          their `origin`, in words; null if there was nothing to weigh;
        * `steps`: how many have ended well, with all functions that share the shards;
        * `state_is_sharded`: whether the values are in the shards now;
        * `joins`: how often they were put together: `count`, `bytes` that were read from other
          replicas, `seconds` it took in all, and `by`, how often for whom: the place in the program
          ("train.py:42") or the function ("function NAME");
        * `sent_bytes_per_step`: what its all-reduces make each replica send in a step, on average,
          sharded or not: twice the bytes of the gradients, but for its own shard of them, and less
          where weights travel in a narrower type;
        * `buckets`: of each all-reduce a dict with `node` (its name), `bytes` (of the gradients in
          it), `sharded`, `reason` (a key of `REASONS`, else ""), `meaning`, `detail`, `profit` (an
          estimate of what sharding it saves in a step: `saved_s`, `cost_s` and `arithmetic`, in
          words; null if there is none) and `gradients`. Of each gradient: `variable` (that it
          updates; "" if that is not known), `gradient` (name of the tensor), `shape`, `bytes`,
          `slots` (the optimizer's variables that are in shards), `exact` (whether the result has
          the bits of a whole update), `gather` (where the new weight is put together: "end" of the
          step, right before its "first_use" in the next one, or "" if it is not sharded),
          `gather_type` (the type that travels, or ""), `gather_reason` (a key of `GATHER_REASONS`,
          why not at its first use, though that was asked for; else ""), `gather_meaning`,
          `gather_detail`, `gather_wide` (the operation that keeps a narrower type from travelling,
          though that was asked for; else ""), and again `sharded`, `reason`, `meaning` and
          `detail`.

      * `operations`: of each function whose updates were to be one operation each, by
        `fuse_weight_update` or `compile_weight_update`, a dict: `function` (its name), `way`
        ("fused" or "compiled"), `updates` (how many are one operation), `variables` (how many these
        read or assign), `each`: of each update a dict with `variables` (that it assigns), `device`
        ("" for the one that calls the function), `elements` (of each variable), `operations` (in
        whose place it is), `exact` (whether it has their bits) and `by_row` (whether rows of a
        variable are updated); and `left`: of each assignment that is not in one, a dict with
        `assignment` (its name), `variable`, `reason` (a key of `outline.REASONS`), `meaning` and
        `detail`.
    """
    from tensorflow.python.eager import context as context_module

    context = context_module.context()
    updates, ones = getattr(context, "_tf_fuse_updates", None), operations(context)
    if updates is None:
        return {"sharded": False, "reason": _OFF, "functions": [], "operations": ones}
    functions = [_function(one) for one in updates.decisions]
    return {
        "sharded": any(function["sharded"] for function in functions),
        "reason": "",
        "functions": functions,
        "operations": ones,
    }


def print_weight_update_report(report: Mapping[str, Any] | None = None) -> None:
    """Print what the option `shard_weight_update` has done, as tables.

    Args:
      report: of `weight_update_report`, perhaps of another process; None for one of now.
    """
    report = weight_update_report() if report is None else with_new_names(report)
    # (A report of an earlier version has none.)
    operations = list(lines(report.get("operations", ())))
    console = open_console()
    if report["reason"]:
        console.print(f"Weight updates are not sharded: {report['reason']}.", markup=False)
    elif not report["functions"] and not operations:
        console.print("No function with an all-reduce has been called yet.")
    for function in report["functions"]:
        for line in _lines(function):
            console.print(line, markup=False, highlight=False)
        console.print(_table(function))
        for bucket in function["buckets"]:
            if bucket["profit"]:
                line = f"  {bucket['node']}: sharding it {bucket['profit']['arithmetic']}."
                console.print(line, markup=False, highlight=False, soft_wrap=True)
        if function["costs"] is not None and any(
            bucket["profit"] for bucket in function["buckets"]
        ):
            line = f"  Estimated by {UpdateCosts(**function['costs'])}."
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    for line in operations:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def summary(decision: Decision) -> tuple[bool, str]:
    """Return a line about a function, for the log.

    Returns:
      Whether an update was left alone, and the line; "" if the function reduces what it has, and
      updates nothing with it, as an evaluation does.
    """
    data = _function(decision)
    left = _left(data)
    is_left = any(one["reason"] != _NO_WARNING for one in _alone(data["buckets"]))
    if decision.reason is not None:
        if decision.reason == "nothing_to_shard" and data["buckets"] and not left:
            return False, ""
        detail = f": {data['detail']}" if data["detail"] else ""
        line = f"not sharded: {data['meaning']}{detail}" + (f"; {left}" if left else "")
        return is_left or decision.reason != "nothing_to_shard", line
    gradients = [
        one
        for bucket in data["buckets"]
        for one in bucket["gradients"]
        if NO_UPDATE not in (one["reason"], bucket["reason"])
    ]
    sharded = sum(one["sharded"] for one in gradients)
    here, whole = data["state_bytes"], data["whole_state_bytes"]
    line = (
        f"sharded over {_replicas(data)}: {sharded} of {len(gradients)} gradients, and "
        f"{_held(data)}, which take {here} bytes here in place of {whole} ({whole - here} saved)"
    )
    return is_left, line + (f"; {left}" if left else "")


def _replicas(function: Mapping[str, Any]) -> str:
    """Return how many replicas, and how they share the work."""
    count, groups = function["replicas"], function.get("groups", 1)
    return f"{count} replicas" + (f" in {groups} groups" if groups > 1 else "")


def _held(data: Mapping[str, Any]) -> str:
    """Return what is in shards."""
    weights = f" and {data['weights']} weights" if data["weights"] else ""
    return f"{data['variables']} variables of the optimizer{weights}"


def _left(data: Mapping[str, Any]) -> str:
    """Return how many gradients of a function are left alone, and why."""
    counts = Counter(one["reason"] for one in _alone(data["buckets"]))
    if not counts:
        return ""
    listed = [f"{count} {reason} ({REASONS[reason]})" for reason, count in sorted(counts.items())]
    return f"left alone: {', '.join(listed)}"


def _alone(buckets: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what is left alone: gradients, or buckets as a whole; not what updates nothing."""
    for bucket in buckets:
        for one in [bucket] if bucket["reason"] else bucket["gradients"]:
            if one["reason"] not in ("", NO_UPDATE):
                yield one


def _function(decision: Decision) -> dict[str, Any]:
    shard_group = decision.shard_group
    here, whole = shard_group.bytes() if shard_group is not None else (0, 0)
    weights = sum(one.is_weight for one in shard_group.held) if shard_group is not None else 0
    buckets = [
        _bucket(bucket, decision) for bucket in (decision.plan.buckets if decision.plan else [])
    ]
    total = sum(bucket["bytes"] for bucket in buckets) + _gathered(decision)
    report = {
        "function": decision.function,
        "replicas": decision.replicas,
        "groups": decision.groups,
        "sharded": decision.reason is None,
        **_why(decision.reason, FUNCTION_REASONS, decision.detail),
        "variables": len(shard_group.held) - weights if shard_group is not None else 0,
        "weights": weights,
        "state_bytes": here,
        "whole_state_bytes": whole,
        "steps": shard_group.version if shard_group is not None else 0,
        "state_is_sharded": shard_group is not None and shard_group.is_sharded,
        "joins": shard_group.joins.as_dict() if shard_group is not None else None,
        "sent_bytes_per_step": total * (decision.replicas - 1) // (decision.replicas or 1),
        "costs": _costs(decision),
        "buckets": buckets,
    }
    return FormerKeys(report, FUNCTION_KEYS)


def _costs(decision: Decision) -> dict[str, Any] | None:
    costs = decision.costs
    return None if costs is None else {**costs.figures(), "origin": costs.origin}


def _gathered(decision: Decision) -> int:
    """Return bytes of what all-gathers bring, or the second halves of all-reduces."""
    total = 0
    for bucket in decision.plan.buckets if decision.plan else []:
        size = decision.facts.element_bytes.get(bucket.node, 0)
        for cluster in bucket.clusters:
            narrow = cluster.gather.dtype if decision.reason is None else 0
            total += math.prod(cluster.shape) * (width_of(narrow) if narrow else size)
    return total


def _bucket(bucket: Bucket, decision: Decision) -> dict[str, Any]:
    size = decision.facts.element_bytes.get(bucket.node, 0)
    is_whole = decision.reason is not None or bucket.reason is not None
    gradients = [
        _gradient(cluster, decision, bucket.node, size, is_whole) for cluster in bucket.clusters
    ]
    return {
        "node": bucket.node,
        "bytes": sum(one["bytes"] for one in gradients),
        "sharded": any(one["sharded"] for one in gradients),
        **_why(bucket.reason, REASONS, bucket.detail),
        "profit": _profit(bucket.profit),
        "gradients": gradients,
    }


def _profit(profit: Any) -> dict[str, Any] | None:
    if profit is None:
        return None
    return {
        "saved_s": profit.saved,
        "cost_s": profit.cost,
        "arithmetic": profit.arithmetic(),
    }


def _gradient(
    cluster: UpdateCluster, decision: Decision, node: str, size: int, is_whole: bool
) -> dict[str, Any]:
    names = decision.facts.names
    return {
        "variable": ", ".join(names.get(weight, weight) for weight in cluster.updated),
        "gradient": cluster.root,
        "shape": list(cluster.shape),
        "bytes": math.prod(cluster.shape) * size,
        "slots": [] if is_whole else [names.get(slot, slot) for slot in cluster.kept],
        "exact": bool(getattr(cluster, "exact", True)),
        **_gather(cluster, decision.facts.element_types.get(node, ""), is_whole),
        "sharded": cluster.reason is None and not is_whole,
        **_why(cluster.reason, REASONS, cluster.detail),
    }


def _gather(cluster: UpdateCluster, dtype: str, is_whole: bool) -> dict[str, str]:
    gather = cluster.gather
    is_sharded_here = cluster.reason is None and not is_whole
    has_weight = is_sharded_here and bool(cluster.weights or cluster.branches)
    where = "first_use" if gather.is_first else "end"
    return {
        "gather": where if has_weight else "",
        "gather_type": (name_of(gather.dtype) if gather.dtype else dtype) if has_weight else "",
        "gather_reason": gather.reason if is_sharded_here else "",
        "gather_meaning": GATHER_REASONS[gather.reason]
        if is_sharded_here and gather.reason
        else "",
        "gather_detail": gather.detail if is_sharded_here else "",
        "gather_wide": gather.wide if is_sharded_here else "",
    }


def _why(reason: str | None, meanings: Mapping[str, str], detail: str) -> dict[str, str]:
    return {
        "reason": reason or "",
        "meaning": "" if reason is None else meanings[reason],
        "detail": detail,
    }


# --- Tables --------------------------------------------------------------------------------------


def _lines(function: Mapping[str, Any]) -> Iterator[str]:
    yield function["function"]
    if not function["sharded"]:
        detail = f" ({function['detail']})" if function["detail"] else ""
        yield f"  not sharded: {function['meaning']}{detail}"
        return
    yield (
        f"  sharded over {_replicas(function)}: {_held(function)}, "
        f"{function['state_bytes']:,} of {function['whole_state_bytes']:,} bytes here; "
        f"{function['steps']} steps"
    )
    joins = function["joins"]
    if joins["count"]:
        yield (
            f"  put together {_times(joins['count'])}, in {joins['seconds']:.3f} s, with "
            f"{joins['bytes']:,} bytes of other replicas, for:"
        )
        for who, count in sorted(joins["by"].items(), key=lambda item: (-item[1], item[0])):
            yield f"    {who} ({count})"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _gathering(one: Mapping[str, Any]) -> str:
    """Return the table's text about the gather of a weight, or "" if that ends the step."""
    if one["gather"] == "first_use":
        wide = f" for {one['gather_wide']}" if one["gather_wide"] else ""
        return f", gathered before its first use, in {one['gather_type']}{wide}"
    if one["gather_reason"]:
        return f", gathered at the end ({one['gather_meaning']}: {one['gather_detail']})"
    return ""


def _table(function: Mapping[str, Any]) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE)
    for column in ("all-reduce", "variable or gradient", "shape", "bytes", "update"):
        table.add_column(column, justify="right" if column == "bytes" else "left", overflow="fold")
    for bucket in function["buckets"]:
        if bucket["reason"]:
            table.add_row(
                escape(bucket["node"]),
                "",
                "",
                "",
                escape(f"{bucket['meaning']}: {bucket['detail']}"),
            )
        for one in bucket["gradients"]:
            update = "in shards" if one["sharded"] else "whole"
            if one["sharded"] and not one["exact"]:
                update += ", not to the bit"
            update += _gathering(one)
            if one["reason"]:
                where = "" if one["reason"] == NO_UPDATE else f": {one['detail']}"
                update = f"{one['meaning']}{where}"
            name = one["variable"] or one["gradient"]
            shape = " x ".join(map(str, one["shape"]))
            cells = (bucket["node"], name, shape, f"{one['bytes']:,}", update)
            table.add_row(*map(escape, cells))
    return table
