# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Report where variables are on parameter servers, and why, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tf_fuse._console import open_console
from tf_fuse._tensorflow.variables.parameter_server_strategy import partitioner_of
from tf_fuse.parameter_server import arguments, interception
from tf_fuse.parameter_server.balance import imbalance
from tf_fuse.parameter_server.costs import Costs
from tf_fuse.parameter_server.partitioning.partitioner import CostPartitioner
from tf_fuse.parameter_server.placement.device_setter import PsStrategy
from tf_fuse.parameter_server.placement.placer import PLACES, Placer

# What the report shows of a server, in this order, and the attribute of a `Load` that has it.
_LOADS = {
    "kept_bytes": "kept",
    "read_bytes_per_step": "read",
    "updated_bytes_per_step": "updated",
    "update_s_per_step": "update_s",
}
_PARTS = ("imbalance", "partitions", "plans", "servers", "variables")

_NONE = "no variable was placed: the option place_variables has to be set before variables are made"


def set_costs(strategy: Any, costs: Costs) -> None:
    """Set the figures by which the variables of a strategy are placed.

    Args:
      strategy: a `tf.distribute.ParameterServerStrategy` without variables.
      costs: the figures. Without this call they are those of its `CostPartitioner`, or else of
        `Costs(workers=...)` with the strategy's number of workers.

    Raises:
      ValueError: variables were placed already.
      TypeError: it is another kind of strategy, or the costs are of another type.
    """
    arguments.instance("costs", costs, Costs)
    interception.set_costs(interception.extended_of(strategy), costs)


def placement_report(strategy: Any) -> dict[str, Any]:
    """Return where the variables of a strategy or a graph are, and why.

    Args:
      strategy: a `tf.distribute.ParameterServerStrategy`, or a `PsStrategy`.

    Returns:
      A dict, which can be written as JSON:

      * `reason`: why it has no variables, in words; "" if it has some;
      * `servers`: of each server a dict with `server` (its number), `variables` (how many it has,
        without slots), `kept_bytes` (of variables and slots), `read_bytes_per_step`,
        `updated_bytes_per_step` and `update_s_per_step`. The last three are estimates, for steps of
        all workers together;
      * `imbalance`: of each of the latter, the largest of all servers divided by their mean;
      * `variables`: in the order in which they were made, of each (or of each piece) a dict with
        `variable` (its name), `shape`, `dtype`, `server`, `why` (a key of `PLACES`), `meaning` (the
        same in words), `slots` (how many variables were put beside it; expected ones as long as
        there are none at all) and, as above, what it costs;
      * `costs`: the figures by which that was decided, by name, and `origin`, which says where the
        times of an update come from;
      * `partitions`: what a `CostPartitioner` decided: `variable`, `shape`, `pieces`, `axis` and
        `arithmetic`, in words;
      * `plans`: of each plan `variables` (how many it has places for), `not_made` (the names of
        those that were not made), `reason` (why it has no places; "" if it has) and `spread`: where
        the strategy has no partitioner, of each dense variable `variable`, `shape`, `pieces`,
        `verdict` (a key of `placement.update_spreading.VERDICTS`), `update_s` and
        `wire_s` (its updates and its transfer in a step, on one server), `share_s` (a server's
        share of all updates), `seconds` (both together by number of pieces, from 1 on; empty if it
        does not come to that) and `arithmetic`, in words.

    Raises:
      TypeError: it is another kind of strategy.
    """
    if isinstance(strategy, PsStrategy):
        return _report(strategy.placement, None)
    extended = interception.extended_of(strategy)
    return _report(interception.placement_of(extended), partitioner_of(extended))


def placement_reports() -> list[dict[str, Any]]:
    """Return `placement_report` of each strategy of this process whose variables are placed."""
    return [
        _report(interception.placement_of(extended), partitioner_of(extended))
        for extended in interception.strategies()
    ]


def print_placement_report(report: Any) -> None:
    """Print where variables are, as tables.

    Args:
      report: what `placement_report` returned, perhaps in another process; or a strategy.

    Raises:
      TypeError: it is neither.
      ValueError: it is a dict, but not of `placement_report`.
    """
    data = report if isinstance(report, Mapping) else placement_report(report)
    if missing := sorted({"reason", *_PARTS} - data.keys()):
        raise ValueError(
            f"the report has no {', '.join(missing)}: pass what "
            "tf_fuse.parameter_server.placement_report returned, or a strategy"
        )
    console = open_console()
    if data.get("reason"):
        console.print(data["reason"], markup=False)
        return
    console.print(_servers_table(data["servers"], data["imbalance"]))
    console.print(_variables_table(data["variables"]))
    for why in sorted({one["why"] for one in data["variables"]}):
        console.print(f"[bold]{why}[/bold]: {PLACES.get(why, '')}")
    # (Older reports do not have it.)
    if costs := data.get("costs"):
        console.print(_costs_line(costs), markup=False, highlight=False, soft_wrap=True)
    for one in data["partitions"]:
        line = f"{one['variable'] or one['shape']}: {one['arithmetic']}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for one in data["plans"]:
        line = f"Plan of {one['variables']} variables"
        if one["reason"]:
            line = f"Plan: {one['reason']}"
        if one["not_made"]:
            line += f"; not made: {len(one['not_made'])}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
        # (Small variables have no verdict, and older reports do not have it.)
        for of in one.get("spread", ()):
            if of["verdict"] != "share":
                line = f"{of['variable']}: {of['arithmetic']}"
                console.print(line, markup=False, highlight=False, soft_wrap=True)


def _report(placement: Placer, partitioner: Any) -> dict[str, Any]:
    servers: list[dict[str, Any]] = [
        {"server": number, "variables": 0, **dict.fromkeys(_LOADS, 0)}
        for number in range(placement.servers)
    ]
    variables = []
    for placed, load in placement.measured():
        server = servers[placed.server]
        server["variables"] += 1
        costs = {key: _number(key, getattr(load, name)) for key, name in _LOADS.items()}
        for key, value in costs.items():
            server[key] += value
        variables.append(
            {
                "variable": placed.variable.name,
                "shape": list(placed.variable.shape),
                "dtype": placed.variable.dtype,
                "server": placed.server,
                "why": placed.why,
                "meaning": PLACES[placed.why],
                "slots": placed.slots,
                **costs,
            }
        )
    decisions = partitioner.decisions.values() if isinstance(partitioner, CostPartitioner) else ()
    return {
        "reason": "" if variables else _NONE,
        "servers": servers,
        "imbalance": {key: imbalance([one[key] for one in servers]) for key in _LOADS},
        "variables": variables,
        "costs": placement.costs.figures(),
        "partitions": [
            {
                "variable": one.variable.name,
                "shape": list(one.variable.shape),
                "pieces": one.pieces,
                "axis": one.axis,
                "arithmetic": one.arithmetic(),
            }
            for one in decisions
        ],
        "plans": placement.plans(),
    }


def _number(key: str, value: float) -> float | int:
    """Return the bytes as whole numbers."""
    return value if key.endswith("_s_per_step") else round(value)


def _costs_line(costs: Mapping[str, Any]) -> str:
    return (
        f"Costs: an update takes {1e9 * costs['update_s_per_byte']:.3g} ns per byte of the weight "
        f"and each slot, and {1e6 * costs['update_s']:.3g} us ({costs['origin']}); the link "
        f"{costs['link_bytes_per_s']:.3g} bytes/s; a worker puts pieces together at "
        f"{costs['memory_bytes_per_s']:.3g} bytes/s and {1e6 * costs['piece_s']:.3g} us each"
    )


def _servers_table(servers: Sequence[Mapping[str, Any]], ratios: Mapping[str, float]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title="Parameter servers", box=box.SIMPLE, title_justify="left")
    for column in ("server", "variables", "kept", "read\n/ step", "updated\n/ step",
                   "update ms\n/ step"):  # fmt: skip
        table.add_column(column, justify="right")
    for one in servers:
        table.add_row(
            str(one["server"]),
            str(one["variables"]),
            *(f"{one[key]:,}" for key in list(_LOADS)[:3]),
            f"{1e3 * one['update_s_per_step']:.3f}",
        )
    table.add_section()
    table.add_row("largest / mean", "", *(f"{ratios[key]:.3f}" for key in _LOADS))
    return table


def _variables_table(variables: Sequence[Mapping[str, Any]]) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Variables", box=box.SIMPLE, title_justify="left")
    for column in ("variable", "shape", "server", "kept", "slots", "why"):
        justify: Any = "left" if column in ("variable", "why") else "right"
        table.add_column(column, justify=justify, overflow="fold")
    for one in variables:
        table.add_row(
            escape(one["variable"]),
            " x ".join(map(str, one["shape"])),
            str(one["server"]),
            f"{one['kept_bytes']:,}",
            str(one["slots"]),
            one["why"],
        )
    return table
