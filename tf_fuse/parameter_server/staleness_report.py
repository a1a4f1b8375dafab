# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Report updates on parameter servers: their number, waits for locks, and staleness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tf_fuse._console import open_console

_BAR_WIDTH = 24


def server_update_report(timeout_s: float = 10.0, *, target: str | None = None) -> dict[str, Any]:
    """Return the counts of single-operation updates on all tasks of the cluster.

    The staleness of an update is the number of other updates of the same variable since its step
    began on the server ("Staleness-Aware Async-SGD for Distributed Deep Learning",
    Zhang et al., 2016). With one worker and one step in flight it is 0; with N equal
    workers, about N - 1; with `steps_in_flight` k, up to 2 * (k - 1) of the worker's own besides.

    Args:
      timeout_s: seconds until a task that does not answer is given up.
      target: of a session, see `tf_fuse.cluster_metrics`.

    Returns:
      A dict, which can be written as JSON:

      * `servers`: of each task with updated variables ("/job:ps/replica:0/task:0") a dict with
        `updates`; `update_us`, how long they had the variables' locks, in all; `waits`, how many of
        them waited for those, `wait_us`, in all, and `max_wait_us`, one at most; and `variables`,
        name to the same five;
      * `workers`: of each task in whose steps they were ("" if that is not known) a dict with
        `updates`, `mean_staleness`, `max_staleness` and `staleness`, a list of [from, to, updates];
      * `errors`: task to why it did not report.

    Raises:
      tf.errors.OpError: with `target`, see `tf_fuse.cluster_metrics`.
    """
    from tf_fuse.monitoring.metrics import cluster_metrics

    return merged(cluster_metrics(timeout_s, target=target))


def merged(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the report of what each task has counted.

    Args:
      tasks: of `tf_fuse.cluster_metrics`.
    """
    servers: dict[str, Any] = {}
    workers: dict[str, dict[str, Any]] = {}
    errors = {task: counters["error"] for task, counters in tasks.items() if "error" in counters}
    for task in sorted(tasks.keys() - errors.keys()):
        counted = tasks[task].get("server_updates")
        if counted is None:
            errors[task] = "its version of tf_fuse does not count updates"
            continue
        if counted["variables"]:
            servers[task] = _server(counted["variables"])
        for worker, one in counted["workers"].items():
            _add(workers.setdefault(worker, {}), one)
    return {
        "servers": servers,
        "workers": {worker: _worker(workers[worker]) for worker in sorted(workers)},
        "errors": dict(sorted(errors.items())),
    }


def _server(variables: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    all_of = list(variables.values())
    # (A task of an older version does not report update_us.)
    keys = ("updates", "update_us", "waits", "wait_us")
    sums = {key: sum(one.get(key, 0) for one in all_of) for key in keys}
    return {
        **sums,
        "max_wait_us": max(one["max_wait_us"] for one in all_of),
        "variables": {name: dict(variables[name]) for name in sorted(variables)},
    }


def _add(sums: dict[str, Any], one: Mapping[str, Any]) -> None:
    """Add what a worker did on one server to what it did on others."""
    for key in ("updates", "staleness_sum"):
        sums[key] = sums.get(key, 0) + one[key]
    sums["staleness_max"] = max(sums.get("staleness_max", 0), one["staleness_max"])
    so_far = sums.get("staleness", [0] * len(one["staleness"]))
    sums["staleness"] = [a + b for a, b in zip(so_far, one["staleness"], strict=True)]


def _worker(sums: Mapping[str, Any]) -> dict[str, Any]:
    counts = sums["staleness"]
    while len(counts) > 1 and counts[-1] == 0:
        counts = counts[:-1]
    return {
        "updates": sums["updates"],
        "mean_staleness": sums["staleness_sum"] / sums["updates"] if sums["updates"] else 0.0,
        "max_staleness": sums["staleness_max"],
        "staleness": [[*_bucket(i), count] for i, count in enumerate(counts)],
    }


def _bucket(index: int) -> tuple[int, int]:
    """Return a bucket's inclusive (from, to); see cc/update/update_counters.h."""
    return (0, 0) if index == 0 else (1 << (index - 1), (1 << index) - 1)


def print_server_update_report(report: Mapping[str, Any] | None = None) -> None:
    """Print what updates on servers have met, as tables and a small plot.

    Args:
      report: of `server_update_report`, perhaps of another process; None for one of now.
    """
    report = server_update_report() if report is None else report
    console = open_console()
    for task, error in report["errors"].items():
        console.print(f"{task} did not report: {error}", markup=False, highlight=False)
    if not report["servers"]:
        console.print("No update has been made as one operation on a server yet.")
        return
    console.print(_servers_table(report["servers"]))
    console.print(_workers_table(report["workers"]))


def _servers_table(servers: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title="Updates by server")
    table.add_column("server", overflow="fold")
    for column in ("variables", "updates", "ms updating", "waited for a lock", "ms waited",
                   "ms at most"):  # fmt: skip
        table.add_column(column, justify="right")
    for task, one in servers.items():
        table.add_row(
            _short(task),
            str(len(one["variables"])),
            f"{one['updates']:,}",
            f"{one['update_us'] / 1e3:.1f}",
            f"{one['waits']:,}",
            f"{one['wait_us'] / 1e3:.1f}",
            f"{one['max_wait_us'] / 1e3:.1f}",
        )
    return table


def _workers_table(workers: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title="Staleness by worker: updates that others made meanwhile")
    table.add_column("worker", overflow="fold")
    for column in ("updates", "mean", "most"):
        table.add_column(column, justify="right")
    table.add_column("staleness: share of updates", no_wrap=True)
    for task, one in workers.items():
        table.add_row(
            _short(task),
            f"{one['updates']:,}",
            f"{one['mean_staleness']:.2f}",
            str(one["max_staleness"]),
            "\n".join(_bars(one["staleness"], one["updates"])),
        )
    return table


def _bars(staleness: Sequence[Sequence[int]], updates: int) -> list[str]:
    lines = []
    for first, last, count in staleness:
        label = str(first) if first == last else f"{first} to {last}"
        share = count / max(updates, 1)
        lines.append(f"{label:>12} {'█' * round(share * _BAR_WIDTH):<{_BAR_WIDTH}} {share:.0%}")
    return lines


def plot_server_update_report(report: Mapping[str, Any], path: str | Path) -> None:
    """Plot the staleness of each worker's updates, and each server's work and waits.

    Args:
      report: of `server_update_report`.
      path: the picture; its ending chooses the format.

    Raises:
      ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    stale, updates, times = figure.subplots(1, 3)
    for task, one in report["workers"].items():
        labels = [str(a) if a == b else f"{a}-{b}" for a, b, _ in one["staleness"]]
        shares = [count / max(one["updates"], 1) for _, _, count in one["staleness"]]
        stale.plot(labels, shares, marker="o", label=_short(task))
    stale.set_xlabel("staleness (updates by others)")
    stale.set_ylabel("share of updates")
    if report["workers"]:
        stale.legend()
    names = [_short(task) for task in report["servers"]]
    updates.bar(names, [one["updates"] for one in report["servers"].values()])
    updates.set_ylabel("updates")
    servers = report["servers"].values()
    times.bar(names, [one["update_us"] / 1e3 for one in servers], width=-0.4, align="edge")
    times.bar(names, [one["wait_us"] / 1e3 for one in servers], width=0.4, align="edge")
    times.legend(["updating", "waiting for locks"])
    times.set_ylabel("ms of all updates")
    figure.savefig(path)


def _short(task: str) -> str:
    """Return "ps:1" for the task "/job:ps/replica:0/task:1"."""
    job, _, rest = task.removeprefix("/job:").partition("/")
    return f"{job}:{rest.rpartition(':')[2]}" if rest else "not known"
