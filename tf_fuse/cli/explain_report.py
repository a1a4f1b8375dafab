# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_fuse explain REPORT.json`: what a program's report says, in tables and words.

That is what `tf_fuse.weight_update_report()` returned, `tf_fuse.server_update_report()`, or
`tf_fuse.parameter_server.placement_report(strategy)`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tf_fuse.cli import json_output
from tf_fuse.shard_update.operations_report import left

# Keys of a report of a placement; one of updates on servers has "servers" alone of them.
_PLACEMENT = {"imbalance", "servers", "variables"}


def run(path: str, json_path: str | None) -> int:
    """Explains what a program wrote; returns the exit status.

    Args:
      path: where it was written to as JSON.
      json_path: where to write the report, with its sums, as JSON beside the tables; "-" for
        standard output, in place of them.

    Returns:
      0; or 1 when the file was not to be had, or is no such report, said on standard error.
    """
    try:
        function, data, show = _explained(_load(Path(path)))
        if json_output.write(data, json_path):
            return 0
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        show(data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        print(f"error: {_no_report(path, error, function)}", file=sys.stderr)
        return 1
    return 0


def _explained(report: dict[str, Any]) -> tuple[str, dict[str, Any], Callable[[Any], None]]:
    """The function that returned a report, what is to be written of it, and what prints that."""
    if report.keys() >= _PLACEMENT:
        from tf_fuse.parameter_server.report import print_placement_report

        return "parameter_server.placement_report", report, print_placement_report
    if "servers" in report:
        from tf_fuse.shard_update.server_report import print_server_update_report

        return "server_update_report", report, print_server_update_report
    return "weight_update_report", describe(report), _print


def _load(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path}: no JSON: {error}") from None
    if not isinstance(report, dict) or not {"functions", "servers"} & report.keys():
        raise ValueError(_no_report(str(path), KeyError("functions")))
    return report


def describe(report: Mapping[str, Any]) -> dict[str, Any]:
    """Adds sums to a report of weight updates.

    Args:
      report: of `tf_fuse.weight_update_report`.

    Returns:
      A dict with its keys, and `totals`: `functions_cut`, `functions_left` (by reason),
      `gradients_cut`, `gradients_left` (by reason; that of the all-reduce where all of it is left,
      and that of the function where all of that is), `state_bytes` and `whole_state_bytes`;
      `updates_in_one` (updates that are one operation each) and `assignments_left` (by reason).

    Raises:
      ValueError: it is no such report.
    """
    functions_left: Counter[str] = Counter()
    gradients_left: Counter[str] = Counter()
    cut = here = whole = 0
    try:
        ones = report.get("operations", [])
        for function in report["functions"]:
            if not function["sharded"]:
                functions_left[function["reason"]] += 1
            here += function["state_bytes"]
            whole += function["whole_state_bytes"]
            for pack in function["packs"]:
                for one in pack["gradients"]:
                    cut += one["sharded"]
                    if not one["sharded"]:
                        why = one["reason"] or pack["reason"] or function["reason"]
                        gradients_left[why] += 1
        totals = {
            "functions_cut": sum(function["sharded"] for function in report["functions"]),
            "functions_left": dict(sorted(functions_left.items())),
            "gradients_cut": cut,
            "gradients_left": dict(sorted(gradients_left.items())),
            "state_bytes": here,
            "whole_state_bytes": whole,
            "updates_in_one": sum(one["updates"] for one in ones),
            "assignments_left": left(ones),
        }
        return {**report, "totals": totals}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(_no_report("the report", error)) from None


def _no_report(path: str, error: Exception, function: str = "weight_update_report") -> str:
    return (
        f"{path}: not what tf_fuse.{function}() of this version returns "
        f"({type(error).__name__}: {error}); write it with json.dump"
    )


def _print(data: Mapping[str, Any]) -> None:
    from tf_fuse.shard_update.report import print_weight_update_report

    print_weight_update_report(data)
    totals = data["totals"]
    kept = sum(totals["gradients_left"].values())
    print(f"Gradients: {totals['gradients_cut']} updated in parts, {kept} whole.")
    for reason, count in totals["gradients_left"].items():
        print(f"  {reason}: {count}")
    if totals["whole_state_bytes"]:
        print(
            f"The optimizer's variables in parts: {totals['state_bytes']:,} bytes here, in place "
            f"of {totals['whole_state_bytes']:,}."
        )
    if totals["updates_in_one"] or totals["assignments_left"]:
        count = sum(totals["assignments_left"].values())
        print(f"One operation each: {totals['updates_in_one']} updates; assignments left: {count}.")
        for reason, number in totals["assignments_left"].items():
            print(f"  {reason}: {number}")
