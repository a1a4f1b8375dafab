# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Show the plans of functions as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tf_fuse.layout.optimize.problem import listed
from tf_fuse.layout.planning.one_device import comparison
from tf_fuse.layout.types.notation import to_sbp

if TYPE_CHECKING:
    from tf_fuse.layout.planning.pipeline import FunctionPlan


def table(plan: FunctionPlan, most: int | None) -> Any:
    """Return a table of operations, of the layouts of fed tensors and variables, and of gaps."""
    from rich.console import Group
    from rich.text import Text

    notes = [
        f"note: {kind} has no rule, so all devices do the same: {listed(names)}"
        for kind, names in plan.unknown.items()
    ]
    if plan.function.effects:
        notes.append(f"note: run once in each process: {listed(plan.function.effects)}")
    if plan.function.left_out:
        notes.append(f"note: left out, these do not run: {listed(plan.function.left_out)}")
    text = "\n".join([comparison(plan), *notes])
    return Group(plan.plan.table(most), _layouts(plan), Text(text))


def _layouts(plan: FunctionPlan) -> Any:
    from rich.table import Table

    mesh = plan.graph.problem.mesh
    made = Table()
    made.add_column("input or variable")
    made.add_column("shape")
    made.add_column(f"layout on {mesh}")
    made.add_column("bytes/device", justify="right")
    tensors = plan.function.tensors
    for name, layout in {**plan.inputs, **plan.variables}.items():
        size = layout.bytes_per_device(tensors[name].item_bytes)
        # As text: brackets would be styles.
        from rich.text import Text

        sbp = ", ".join(to_sbp(layout))
        made.add_row(Text(name), Text(str(list(layout.shape))), Text(sbp), f"{size:,}")
    return made
