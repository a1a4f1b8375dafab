# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Export the counters in Prometheus's text format, with the package prometheus_client.

    import prometheus_client
    import tf_fuse.prometheus

    tf_fuse.prometheus.register()
    prometheus_client.start_http_server(9400, addr="127.0.0.1")

Every key of `tf_fuse.metrics()` becomes a metric: `fused_rpcs` the counter
`tf_fuse_fused_rpcs_total`, `pending_requests` the gauge `tf_fuse_pending_requests`, and `skipped`
the counter `tf_fuse_skipped_receives_total` with the label `reason`; `server_updates` are the
counters `tf_fuse_server_updates_total`, `tf_fuse_server_update_seconds_total`,
`tf_fuse_server_update_waits_total` and `tf_fuse_server_update_wait_seconds_total`, and the
histogram `tf_fuse_staleness` with the label `worker`. Of this process alone there are
also those of `weight_updates`: `steps` is `tf_fuse_weight_update_steps_total`. All have the label
`task` ("/job:ps/replica:0/task:0"), which is empty in a process that runs no server of ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tf_fuse.monitoring import tasks as _tasks
from tf_fuse.monitoring import weight_update_counters as updates
from tf_fuse.monitoring.metrics import DESCRIPTIONS, GAUGES, cluster_metrics, metrics

#: Of updates on servers: name to what is summed, its unit, and what it is.
SERVER_SUMS = {
    "tf_fuse_server_updates": ("updates", 1, "Updates made as one operation on a server."),
    "tf_fuse_server_update_seconds": ("update_us", 1e-6, "Time under their variables' locks."),
    "tf_fuse_server_update_waits": ("waits", 1, "Of those, how many waited for locks."),
    "tf_fuse_server_update_wait_seconds": ("wait_us", 1e-6, "Time that those waited."),
}
_INSTALL = (
    "tf_fuse's Prometheus metrics need the package prometheus_client, which is not installed; "
    'install it: python -m pip install "prometheus_client>=0.20,<1"'
)


def prometheus_text(*, cluster: bool = False, timeout_s: float = 10.0) -> str:
    """Return the counters in Prometheus's text exposition format, version 0.0.4.

    Args:
      cluster: collect from every task of the connected cluster, not from this process alone.
      timeout_s: of a cluster, seconds to wait for a task's answer.

    Raises:
      ImportError: prometheus_client is not installed; the message has the command.
    """
    client = _client()
    registry = client.CollectorRegistry()
    register(registry, cluster=cluster, timeout_s=timeout_s)
    text: str = client.generate_latest(registry).decode()
    return text


def register(registry: Any = None, *, cluster: bool = False, timeout_s: float = 10.0) -> Any:
    """Add the counters to a registry; they are read anew at each scrape.

    Args:
      registry: a `prometheus_client.CollectorRegistry`; None for the default one.
      cluster: collect from every task of the connected cluster, not from this process alone. The
        gauge `tf_fuse_up` is then 1 for each task that answered, and 0 for others.
      timeout_s: of a cluster, seconds to wait for a task's answer.

    Returns:
      The collector, for `registry.unregister`.

    Raises:
      ImportError: prometheus_client is not installed; the message has the command.
      ValueError: the registry has these metrics already.
    """
    client = _client()

    class Collector:
        """The collector of tf_fuse's counters, with the methods that a registry calls."""

        def collect(self) -> Iterator[Any]:
            tasks = cluster_metrics(timeout_s) if cluster else {_this_task(): metrics()}
            yield from _families(client, tasks, cluster)

        def describe(self) -> Iterator[Any]:
            # (Ask no task.)
            yield from _families(client, {}, cluster)

    collector = Collector()
    (registry or client.REGISTRY).register(collector)
    return collector


def _families(client: Any, tasks: Mapping[str, Mapping[str, Any]], cluster: bool) -> Iterator[Any]:
    """Yield one metric family per counter, with a sample per task."""
    answered = {task: counters for task, counters in tasks.items() if "error" not in counters}
    for name, text in DESCRIPTIONS.items():
        values = {task: counters[name] for task, counters in answered.items()}
        yield _family(client, f"tf_fuse_{name}", text, name in GAUGES, values)
    skipped = client.core.CounterMetricFamily(
        "tf_fuse_skipped_receives", "Receives left alone, by reason.", labels=["task", "reason"]
    )
    for task, counters in answered.items():
        for reason, count in sorted(counters["skipped"].items()):
            skipped.add_metric([task, reason], count)
    yield skipped
    yield from _server_families(client, answered)
    if not cluster:
        yield from _update_families(client, answered)
    if cluster:
        up = client.core.GaugeMetricFamily(
            "tf_fuse_up", "Whether the task reported its counters.", labels=["task"]
        )
        for task in tasks:
            up.add_metric([task], int(task in answered))
        yield up


def _family(client: Any, name: str, text: str, is_gauge: bool, values: Mapping[str, float]) -> Any:
    """Return a metric with a sample per task."""
    core = client.core
    family = (core.GaugeMetricFamily if is_gauge else core.CounterMetricFamily)(
        name, text, labels=["task"]
    )
    for task, value in values.items():
        family.add_metric([task], value)
    return family


def _server_families(client: Any, tasks: Mapping[str, Mapping[str, Any]]) -> Iterator[Any]:
    """Yield the counters of updates on servers, and the staleness of each worker's updates."""
    core = client.core
    counted = {task: counters.get("server_updates") for task, counters in tasks.items()}
    for name, (key, unit, text) in SERVER_SUMS.items():
        family = core.CounterMetricFamily(name, text, labels=["task"])
        for task, one in counted.items():
            if one:
                # (A task of an older version does not tell update_us.)
                total = sum(variable.get(key, 0) for variable in one["variables"].values())
                family.add_metric([task], total * unit)
        yield family
    stale = core.HistogramMetricFamily(
        "tf_fuse_staleness",
        "Updates that others made of a variable since the step of an update began.",
        labels=["task", "worker"],
    )
    for task, one in counted.items():
        for worker, its in one["workers"].items() if one else ():
            stale.add_metric([task, worker], _cumulative(its["staleness"]), its["staleness_sum"])
    yield stale


def _cumulative(buckets: Sequence[int]) -> list[tuple[str, float]]:
    """Return upper bounds and cumulative counts of updates, as Prometheus needs them."""
    total = 0
    found = []
    for index, count in enumerate(buckets):
        total += count
        bound = "+Inf" if index == len(buckets) - 1 else str(float((1 << index) - 1))
        found.append((bound, float(total)))
    return found


def _update_families(client: Any, tasks: Mapping[str, Mapping[str, Any]]) -> Iterator[Any]:
    """Yield the counters of sharded weight updates."""
    counted = {task: counters["weight_updates"] for task, counters in tasks.items()}
    for name, text in updates.DESCRIPTIONS.items():
        values = {task: counters[name] for task, counters in counted.items()}
        yield _family(client, f"tf_fuse_weight_update_{name}", text, name in updates.GAUGES, values)
    left = client.core.CounterMetricFamily(
        "tf_fuse_weight_update_functions_left",
        "Functions with an all-reduce whose update is not cut, by reason.",
        labels=["task", "reason"],
    )
    for task, counters in counted.items():
        for reason, count in counters["functions_left"].items():
            left.add_metric([task, reason], count)
    yield left


def _this_task() -> str:
    """Return the task that this process runs; of several the first, "" for none."""
    from tf_fuse.v1 import fuse_recv_pb2

    names = _tasks.ask_this_process(fuse_recv_pb2.QUESTION_TASKS).decode()
    return names.split("\n")[0]


def _client() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError as error:
        raise ImportError(_INSTALL) from error
    return prometheus_client
