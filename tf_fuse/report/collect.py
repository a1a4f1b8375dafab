# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make a report of a running job, as this process and the tasks that it knows report it.

What cannot be had is left out, and a note says why: a task that does not answer, a job that ends
meanwhile, a part that fails.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from tf_fuse.report.layouts import described
from tf_fuse.report.reasons import REASONS
from tf_fuse.report.records.model import Function, Group, Left, Note, Report, Task, Tensor, Timeline
from tf_fuse.report.records.parts import part, short
from tf_fuse.report.variables import with_variables

_LOCAL = "/job:localhost/replica:0/task:0"
# More of them make a page that no browser opens.
_MOST_TENSORS = 200_000


def report_of_job(
    timeout_s: float = 10.0,
    target: str | Mapping[str, str] | None = None,
    plans: Iterable[Any] = (),
    timeline: Timeline | None = None,
) -> Report:
    """Return a report of the job that this process coordinates, or belongs to.

    Args:
      timeout_s: seconds to wait for a task's answer.
      target: see `tf_fuse.cluster_metrics`.
      plans: `tf_fuse.layout.FunctionPlan`s to show beside those that run in this process.
      timeline: recorded steps.
    """
    notes: list[Note] = []
    counted = _counters(timeout_s, target, notes)
    tasks = tuple(_task(name, counters) for name, counters in counted.items())
    notes += [Note(short(one.name), f"did not answer: {one.error}") for one in tasks if one.error]
    functions = _named(part("step", notes, lambda: _functions(timeout_s, target), []), notes)
    parts = {
        "tasks": tasks,
        "functions": tuple(without_too_many(functions, notes)),
        "timeline": timeline,
        "server_updates": part("server updates", notes, lambda: _server_updates(counted), {}),
        **_own_parts(notes, plans),
    }
    return Report(**versions(), **parts, notes=tuple(notes))


def report_of_process(timeline: Timeline | None = None) -> Report:
    """Return a report of this process alone, which asks nobody."""
    from tf_fuse.monitoring.metrics import metrics, own_reports

    notes: list[Note] = []
    name = own_task()
    counters = part("metrics", notes, metrics, {})
    reports = part("step", notes, own_reports, [])
    functions = _named([function_of(name, one) for one in reports], notes)
    parts = {
        "tasks": (_task(name, counters),),
        "functions": tuple(without_too_many(functions, notes)),
        "timeline": timeline,
        "server_updates": part(
            "server updates", notes, lambda: _server_updates({name: counters}), {}
        ),
        **_own_parts(notes, ()),
    }
    return Report(**versions(), **parts, notes=tuple(notes))


def versions() -> dict[str, Any]:
    """Return the versions and the time, as fields of a report."""
    import tensorflow as tf

    import tf_fuse

    return {
        "tf_fuse": tf_fuse.__version__,
        "tensorflow": tf.__version__,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def own_task() -> str:
    """Return the task that this process is."""
    from tf_fuse._tensorflow.eager import context_servers
    from tf_fuse.monitoring.tasks import own_tasks

    context = context_servers.present_context()
    if context is not None:
        for server in (
            context_servers.server_def(context),
            context_servers.collective_server_def(context),
        ):
            if server is not None:
                return f"/job:{server.job_name}/replica:0/task:{server.task_index}"
    return next(iter(own_tasks()), _LOCAL)


def function_of(task: str, report: Mapping[str, Any]) -> Function:
    """Return a `tf_fuse.v1.FuseReport`, as a dict, in the report's form."""
    return Function(
        task=task,
        local_receives=int(report.get("local_receives", 0)),
        groups=tuple(
            Group(
                group.get("send_device", ""),
                group.get("recv_device", ""),
                int(group.get("depth", 0)),
                bool(group.get("dynamic", False)),
                group.get("frame", ""),
                tuple(_tensor(slot) for slot in group.get("slots", ())),
            )
            for group in report.get("groups", ())
        ),
        left=tuple(
            Left(
                skip.get("send_device", ""),
                skip.get("recv_device", ""),
                skip.get("reason", ""),
                REASONS.get(skip.get("reason", ""), ""),
                _tensor(skip.get("slot", {})),
            )
            for skip in report.get("skips", ())
        ),
    )


def _tensor(slot: Mapping[str, Any]) -> Tensor:
    size = slot.get("estimate", {}).get("bytes")
    return Tensor(
        name=slot.get("tensor_name", ""),
        producer=slot.get("sender_node", ""),
        consumer=slot.get("consumer", ""),
        dtype=slot.get("dtype", ""),
        bytes=None if size is None else round(size),
        may_be_dead=bool(slot.get("may_be_dead", False)),
    )


def without_too_many(functions: Iterable[Function], notes: list[Note]) -> list[Function]:
    """Drop the oldest functions where a page could not show all, and those without transfers."""
    kept: list[Function] = []
    tensors = dropped = 0
    for one in reversed([one for one in functions if one.groups or one.left]):
        tensors += sum(len(group.tensors) for group in one.groups) + len(one.left)
        if tensors > _MOST_TENSORS and kept:
            dropped += 1
        else:
            kept.append(one)
    if dropped:
        text = f"{dropped} older functions left out: more than {_MOST_TENSORS:,} tensors in all"
        notes.append(Note("step", text))
    return kept[::-1]


def _counters(
    timeout_s: float, target: str | Mapping[str, str] | None, notes: list[Note]
) -> dict[str, dict[str, Any]]:
    from tf_fuse.monitoring.metrics import cluster_metrics

    counted: dict[str, dict[str, Any]] = part(
        "metrics", notes, lambda: cluster_metrics(timeout_s, target=target), {}
    )
    return counted


def _task(name: str, counters: Mapping[str, Any]) -> Task:
    numbers = {
        key: value
        for key, value in counters.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return Task(name, str(counters.get("error", "")), numbers, dict(counters.get("skipped", {})))


def _functions(timeout_s: float, target: str | Mapping[str, str] | None) -> list[Function]:
    from tf_fuse.monitoring.metrics import cluster_reports

    reports = cluster_reports(timeout_s, target=target)
    return [function_of(task, one) for task, ones in reports.items() for one in ones]


def _named(functions: list[Function], notes: list[Note]) -> list[Function]:
    from tf_fuse.shard_update import traced_functions

    named: list[Function] = part(
        "variables",
        notes,
        lambda: with_variables(functions, dict(traced_functions.graphs)),
        functions,
    )
    return named


def _server_updates(counted: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    from tf_fuse.parameter_server.staleness_report import merged

    report = merged({task: one for task, one in counted.items() if "error" not in one})
    return report if report["servers"] else {}


def _own_parts(notes: list[Note], plans: Iterable[Any]) -> dict[str, Any]:
    """Return the parts that only this process knows, as fields of a report."""
    return {
        "weight_updates": part("weight updates", notes, _weight_updates, {}),
        "placements": part("placement", notes, _placements, ()),
        "layouts": part("layouts", notes, lambda: _layouts(plans), ()),
    }


def _weight_updates() -> dict[str, Any]:
    from tf_fuse.shard_update.report import weight_update_report

    report = weight_update_report()
    if not report["functions"] and not report["operations"]:
        return {}
    # (Who put the state together is named by a place in the program.)
    functions = [
        {**one, "joins": {k: v for k, v in (one["joins"] or {}).items() if k != "by"}}
        for one in report["functions"]
    ]
    return {own_task(): {**report, "functions": functions}}


def _placements() -> tuple[dict[str, Any], ...]:
    from tf_fuse.parameter_server.report import placement_reports

    return tuple(one for one in placement_reports() if one["variables"])


def _layouts(plans: Iterable[Any]) -> tuple[Any, ...]:
    listed = list(plans)
    # (Who runs no plan has not imported it.)
    execution = sys.modules.get("tf_fuse.layout.execution.execute")
    running = [] if execution is None else [one.plan for one in list(execution.executions)]
    listed += [one for one in running if not any(one is other for other in listed)]
    return tuple(map(described, listed))
