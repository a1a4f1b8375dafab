# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Show plans and their alternatives as tables, for the terminal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tf_fuse.layout.optimize.plans import alternatives
from tf_fuse.layout.optimize.plans.plan_figures import OperationPlan, PlanRecord
from tf_fuse.layout.optimize.solution import Limits
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.mesh import check_names

# Operations whose strategies an alternative's row names.
_NAMED = 3


def table(plan: PlanRecord, most: int | None = None) -> Any:
    """Return a plan with a row for each operation; see `Plan.table`."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    made = Table()
    for name in ("operation", "strategy"):
        made.add_column(name)
    for name in ("compute ms", "communication ms", "relayout ms", "bytes/device"):
        made.add_column(name, justify="right")
    rows = list(plan.operations)
    if most is not None and len(rows) > most:
        dear = sorted(range(len(rows)), key=lambda i: (-_seconds(rows[i]), i))[:most]
        rows = [rows[i] for i in sorted(dear)]
    for one in rows:
        made.add_row(
            one.name,
            one.strategy + (" (constrained)" if one.constrained else ""),
            _ms(one.compute_seconds),
            _ms(one.communication_seconds),
            _ms(one.relayout_seconds),
            f"{one.memory_bytes + one.transient_bytes:,}",
        )
    if len(rows) < len(plan.operations):
        made.add_row(f"and {len(plan.operations) - len(rows)} more", "", "", "", "", "")
    made.add_row(
        "sum",
        "",
        _ms(plan.compute_seconds),
        _ms(plan.communication_seconds),
        _ms(plan.relayout_seconds),
        f"{plan.memory_bytes:,}",
    )
    return Group(made, Text("\n".join(_sentences(plan))))


def why(plan: PlanRecord, operations: Sequence[str], limits: Limits | None) -> Any:
    """Return a plan beside its alternatives; see `Plan.why`."""
    from rich.table import Table

    check_names("operations", operations)
    made = Table()
    for name in ("plan", "differs in"):
        made.add_column(name)
    for name in ("ms", "more", "bytes/device"):
        made.add_column(name, justify="right")
    made.add_row("this one", "", _ms(plan.seconds), "", f"{plan.memory_bytes:,}")
    rows: list[tuple[str, alternatives.Alternative | str]] = [
        ("second best", _or_why(functools.partial(alternatives.second_best, plan), limits)),
        ("data parallel", alternatives.data_parallel(plan, limits)),
    ]
    for name in operations:
        plan.problem.node(name)
        search = functools.partial(alternatives.alternative, plan, name)
        rows.append((f"other {name}", _or_why(search, limits)))
    for name, other in rows:
        if isinstance(other, str):
            made.add_row(name, other, "", "", "")
            continue
        more = other.seconds - plan.seconds
        part = f" ({more / plan.seconds:+.1%})" if plan.seconds else ""
        held = f"{other.plan.memory_bytes:,}"
        made.add_row(name, _changed(other), _ms(other.seconds), f"{_ms(more)}{part}", held)
    return made


def _or_why(
    search: Callable[[Limits | None], alternatives.Alternative | None], limits: Limits | None
) -> alternatives.Alternative | str:
    """Return what a search finds, or why it finds nothing."""
    try:
        return search(limits) or "there is no other plan that fits"
    except LayoutError as error:
        return str(error)


def _sentences(plan: PlanRecord) -> list[str]:
    """Return the sentences below the table."""
    limit = plan.problem.memory_limit_bytes
    held = f"{plan.memory_bytes:,} bytes per device"
    if limit is not None:
        held += f" of {limit:,}"
    gap = "no plan is cheaper" if plan.optimal else (
        f"a plan may be cheaper by {_ms(plan.gap_seconds)} ms at most"
    )  # fmt: skip
    found = [f"{_ms(plan.seconds)} ms, {held}; {gap} ({plan.method}, mode {plan.mode})"]
    if plan.computed:
        found.append(
            f"searched for {_ms(plan.search_seconds)} ms: {plan.computed} eliminations, and "
            f"{plan.reused} that equalled one of them"
        )
    return found + [f"note: {one}" for one in plan.notes]


def _changed(other: alternatives.Alternative) -> str:
    rows = [f"{name}: {now}, not {was}" for name, (now, was) in sorted(other.changed.items())]
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return "; ".join(rows[:_NAMED]) + more


def _seconds(one: OperationPlan) -> float:
    return one.compute_seconds + one.communication_seconds + one.relayout_seconds


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"
