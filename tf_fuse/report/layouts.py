# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Describe layout plans: operations, relayouts with bytes, and data parallelism beside them."""

from __future__ import annotations

from typing import Any

from tf_fuse.report.records.model import LaidOut, LayoutPlan, PlanSums, Relayout


def described(plan: Any) -> LayoutPlan:
    """Describe a plan.

    Args:
      plan: a `tf_fuse.layout.FunctionPlan`.
    """
    from tf_fuse.layout.optimize.plans import alternatives

    found = plan.plan
    data = alternatives.data_parallel(found)
    others = {} if isinstance(data, str) else data.plan.strategies
    return LayoutPlan(
        function=plan.function.name,
        mesh=str(plan.graph.problem.mesh),
        mode=found.mode,
        found=_sums(found),
        data=None if isinstance(data, str) else _sums(data.plan),
        data_reason=data if isinstance(data, str) else "",
        operations=tuple(
            LaidOut(
                one.name,
                one.strategy,
                others.get(one.name, ""),
                one.compute_seconds,
                one.communication_seconds,
                one.relayout_seconds,
                int(one.memory_bytes + one.transient_bytes),
            )
            for one in found.operations
        ),
        relayouts=tuple(_relayouts(plan)),
    )


def _sums(plan: Any) -> PlanSums:
    return PlanSums(
        plan.seconds,
        plan.compute_seconds,
        plan.communication_seconds,
        plan.relayout_seconds,
        int(plan.memory_bytes),
    )


def _relayouts(plan: Any) -> list[Relayout]:
    """Return the relayouts that take time, as the problem's edges have them."""
    from tf_fuse.layout.types.notation import to_sbp

    operations = {one.name: one for one in plan.graph.operations}
    chosen = dict(zip(operations, plan.graph.chosen(plan.plan), strict=True))
    made = plan.graph.layouts(plan.plan)
    found = []
    for edge, seconds in zip(plan.plan.problem.edges, plan.plan.relayouts, strict=True):
        if not seconds:
            continue
        target = operations[edge.target]
        # (Of a variable that is written, the edge leads to the variable itself.)
        tensor = edge.tensor.removesuffix(" kept")
        names = [one.name for one in target.inputs]
        wanted = (
            chosen[edge.target].inputs[names.index(tensor)]
            if tensor in names
            else made.get(edge.target)
        )
        layout = made.get(tensor)
        items = [one.item_bytes for one in operations[edge.source].outputs if one.name == tensor]
        found.append(
            Relayout(
                edge.source,
                edge.target,
                tensor,
                "" if layout is None else ", ".join(to_sbp(layout)),
                "" if wanted is None else ", ".join(to_sbp(wanted)),
                seconds,
                _bytes(plan, layout, wanted, items),
            )
        )
    return found


def _bytes(plan: Any, layout: Any, wanted: Any, items: list[int]) -> int | None:
    """Return the bytes that a device receives, on average."""
    from tf_fuse.layout.relayout.redistribution import plan_relayout
    from tf_fuse.layout.types.errors import LayoutError

    if layout is None or wanted is None or not items:
        return None
    try:
        steps = plan_relayout(layout, wanted, items[0], plan.rates.links, plan.steps)
    except LayoutError:
        return None
    return round(steps.received_bytes_per_device)
