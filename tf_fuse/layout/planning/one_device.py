# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compare a plan with one device that runs the whole function while the others do nothing."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from tf_fuse.layout.cost.memory import memory
from tf_fuse.layout.cost.model import operation_cost
from tf_fuse.layout.strategies.insert_forks import SUFFIX
from tf_fuse.layout.strategies.strategy import Strategy, strategies

if TYPE_CHECKING:
    from tf_fuse.layout.planning.pipeline import FunctionPlan


def one_device_seconds(plan: FunctionPlan) -> float:
    """Return the seconds of a call on one device, by the rates of one that works alone."""
    operations, rates = plan.graph.operations, plan.rates.of_one_device()
    flow = plan.function.control_flow.of(operations, SUFFIX)
    return rates.seconds_per_call + math.fsum(
        flow.repeats(one.name) * operation_cost(whole, rates, plan.graph.training).seconds
        for one, whole in zip(operations, _unsplit(plan), strict=True)
    )


def comparison(plan: FunctionPlan) -> str:
    """Return a sentence about a plan and one device."""
    alone, own = plan.one_device_seconds, plan.seconds
    by = "" if plan.rates.alone else " (by rates that were not measured for it)"
    if not _fits(plan):
        return "one device alone cannot hold it"
    gain = "faster" if _gains(plan) else "no faster"
    share = f", {alone / own:.2f} times the plan's" if own else ""
    return f"one device alone: {alone * 1e3:.3f} ms{share}; the plan is {gain}{by}"


def warn_without_gain(plan: FunctionPlan) -> None:
    """Warn if one device alone is as fast as the plan, in measured rates, and can hold it all."""
    alone, own = plan.one_device_seconds, plan.seconds
    if plan.rates.alone is None or _gains(plan) or not _fits(plan):
        return
    warnings.warn(
        f"no layout of {plan.function.name!r} on mesh {str(plan.rates.mesh)!r} is faster than one "
        f"device alone, by measured rates: {own * 1e3:.3f} ms with the best plan, "
        f"{alone * 1e3:.3f} ms without; run the function without a layout, or on devices that "
        "share no cores",
        stacklevel=4,
    )


def _gains(plan: FunctionPlan) -> bool:
    # A plan's times are whole picoseconds.
    return plan.seconds < (1 - 1e-6) * plan.one_device_seconds


def _fits(plan: FunctionPlan) -> bool:
    limit, graph = plan.graph.problem.memory_limit_bytes, plan.graph
    if limit is None:
        return True
    return memory(graph.operations, _unsplit(plan), graph.training).peak_bytes <= limit


def _unsplit(plan: FunctionPlan) -> list[Strategy]:
    """Return the strategy of each operation that splits nothing, also where layouts exclude it."""
    return [strategies(one, plan.rates.mesh)[0] for one in plan.graph.operations]
