# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run `python -m tf_fuse explain REPORT.json`: show a program's report as tables and text.

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

from tf_fuse import _json_output
from tf_fuse._deprecated.former_reports import TOTALS, with_new_names
from tf_fuse.shard_update.fusion_report import left
from tf_fuse.shard_update.report import NO_UPDATE

# Keys of a report of a placement; one of updates on servers has "servers" alone of them.
_PLACEMENT = {"imbalance", "servers", "variables"}


def run(path: str, json_path: str | None) -> int:
    """Explain a report that a program wrote; return the exit status.

    Args:
      path: the JSON file of the report.
      json_path: where to write the report, with its sums, as JSON beside the tables; "-" for
        standard output, instead of the tables.

    Returns:
      0; or 1, with a message on standard error, if the file cannot be read or is not a report.
    """
    try:
        function, data, show = _explained(_load(Path(path)))
        if _json_output.write(data, json_path):
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
    """Return a report's own function, its data to write, and the function that prints it."""
    if report.keys() >= _PLACEMENT:
        from tf_fuse.parameter_server.report import print_placement_report

        return "parameter_server.placement_report", report, print_placement_report
    if "servers" in report:
        from tf_fuse.parameter_server.staleness_report import print_server_update_report

        return "server_update_report", report, print_server_update_report
    return "weight_update_report", describe(report), _print


def _load(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(report, dict) or not {"functions", "servers"} & report.keys():
        raise ValueError(_no_report(str(path), KeyError("functions")))
    return report


def describe(report: Mapping[str, Any]) -> dict[str, Any]:
    """Add sums to a report of weight updates.

    Args:
      report: of `tf_fuse.weight_update_report`.

    Returns:
      A dict with its keys, and `totals`: `functions_sharded`, `functions_left` (by reason),
      `gradients_sharded`, `gradients_left` (by reason; that of the all-reduce where all of it is
      left, and that of the function where all of that is; what updates nothing, as a loss, is not
      among them), `state_bytes` and `whole_state_bytes`;
      `updates_in_one` (updates that are one operation each) and `assignments_left` (by reason).

    Raises:
      ValueError: it is not a report of weight updates.
    """
    report = with_new_names(report)
    functions_left: Counter[str] = Counter()
    gradients_left: Counter[str] = Counter()
    sharded = here = whole = 0
    try:
        ones = report.get("operations", [])
        for function in report["functions"]:
            if not function["sharded"]:
                functions_left[function["reason"]] += 1
            here += function["state_bytes"]
            whole += function["whole_state_bytes"]
            for bucket in function["buckets"]:
                for one in bucket["gradients"]:
                    why = one["reason"] or bucket["reason"] or function["reason"]
                    sharded += one["sharded"]
                    if not one["sharded"] and why != NO_UPDATE:
                        gradients_left[why] += 1
        totals = {
            "functions_sharded": sum(function["sharded"] for function in report["functions"]),
            "functions_left": dict(sorted(functions_left.items())),
            "gradients_sharded": sharded,
            "gradients_left": dict(sorted(gradients_left.items())),
            "state_bytes": here,
            "whole_state_bytes": whole,
            "updates_in_one": sum(one["updates"] for one in ones),
            "assignments_left": left(ones),
        }
        totals |= {old: totals[new] for old, new in TOTALS.items()}
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
    print(f"Gradients: {totals['gradients_sharded']} updated in shards, {kept} whole.")
    for reason, count in totals["gradients_left"].items():
        print(f"  {reason}: {count}")
    if totals["whole_state_bytes"]:
        print(
            f"The optimizer's variables in shards: {totals['state_bytes']:,} bytes here, in place "
            f"of {totals['whole_state_bytes']:,}."
        )
    if totals["updates_in_one"] or totals["assignments_left"]:
        count = sum(totals["assignments_left"].values())
        print(f"Updates in one operation: {totals['updates_in_one']}; assignments left: {count}.")
        for reason, number in totals["assignments_left"].items():
            print(f"  {reason}: {number}")
