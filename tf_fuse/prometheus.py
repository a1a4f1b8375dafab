# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Export the counters in Prometheus's text format, with the package prometheus_client.

    import prometheus_client
    import tf_fuse.prometheus

    tf_fuse.prometheus.register()
    prometheus_client.start_http_server(9400, addr="127.0.0.1")

A counter of `tf_fuse.metrics()` is the metric of its name (`tf_fuse_fallbacks_total`; a gauge has
no "_total"), and counters that differ in one respect are one metric with a label:
`tf_fuse_collective_bytes_total{path="shm"}`. `tf_fuse.monitoring.prometheus_names` has the list.
`waits` are the histograms `tf_fuse_receive_wait_seconds`, `tf_fuse_request_wait_seconds`,
`tf_fuse_chunk_wait_seconds` and `tf_fuse_lock_wait_seconds`; `server_updates` are
`tf_fuse_server_updates_total`, `tf_fuse_server_update_seconds_total`, and the histogram
`tf_fuse_staleness_updates` with the label `worker`. Of `weight_updates`, `steps` is
`tf_fuse_weight_update_steps_total`. `tf_fuse_build_info` has the versions. All have the label
`task` ("/job:ps/replica:0/task:0"), which is empty in a process without a server of ours,
and has commas in one with several.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tf_fuse.monitoring import prometheus_names as names
from tf_fuse.monitoring import tasks as _tasks
from tf_fuse.monitoring import weight_update_counters as updates
from tf_fuse.monitoring.metrics import WAITS, cluster_metrics, metrics

_INSTALL = (
    "tf_fuse's Prometheus metrics need the package prometheus_client, which is not installed; "
    'install it: python -m pip install "prometheus_client>=0.20,<1"'
)
_CLUSTER = (
    "cluster=True is deprecated and goes in 0.4.0: it puts the counters of all tasks under this "
    "one. Make each task a target of its own: tf-fuse run --metrics-port, or register() there"
)
_Counters = Mapping[str, Mapping[str, Any]]


def prometheus_text(*, cluster: bool = False, timeout_s: float = 10.0) -> str:
    """Return the counters in Prometheus's text exposition format, version 0.0.4.

    Args:
      cluster: deprecated: collect from every task of the connected cluster.
      timeout_s: of a cluster, seconds to wait for a task's answer.

    Raises:
      ImportError: prometheus_client is not installed; the message has the command.
    """
    client = _client()
    registry = client.CollectorRegistry()
    _register(client, registry, cluster, timeout_s)
    text: str = client.generate_latest(registry).decode()
    return text


def register(registry: Any = None, *, cluster: bool = False, timeout_s: float = 10.0) -> Any:
    """Add the counters of this process to a registry; they are read anew at each scrape.

    Args:
      registry: a `prometheus_client.CollectorRegistry`; None for the default one.
      cluster: deprecated: collect from every task of the connected cluster. The gauge `tf_fuse_up`
        is then 1 for each task that answered, and 0 for others.
      timeout_s: of a cluster, seconds to wait for a task's answer.

    Returns:
      The collector, for `registry.unregister`.

    Raises:
      ImportError: prometheus_client is not installed; the message has the command.
      ValueError: the registry has these metrics already.
    """
    client = _client()
    return _register(client, registry or client.REGISTRY, cluster, timeout_s)


def _register(client: Any, registry: Any, cluster: bool, timeout_s: float) -> Any:
    if cluster:
        warnings.warn(_CLUSTER, DeprecationWarning, stacklevel=3)

    class Collector:
        """The collector of tf_fuse's counters, with the methods that a registry calls."""

        def collect(self) -> Iterator[Any]:
            tasks = cluster_metrics(timeout_s) if cluster else {_this_task(): metrics()}
            yield from _families(client, tasks, cluster)

        def describe(self) -> Iterator[Any]:
            # (Ask no task.)
            yield from _families(client, {}, cluster)

    collector = Collector()
    registry.register(collector)
    return collector


def _families(client: Any, tasks: _Counters, cluster: bool) -> Iterator[Any]:
    """Yield the metrics, each with the samples of all tasks."""
    # (A task of an older version has no "waits".)
    answered = {task: counters for task, counters in tasks.items() if "waits" in counters}
    for one in names.FAMILIES:
        family = _family(client, one.name, one.text, one.is_gauge, one.label)
        for task, counters in answered.items():
            for value, key in one.keys.items():
                family.add_metric([task, value] if one.label else [task], counters[key])
        yield family
    yield _by_reason(
        client,
        "tf_fuse_skipped_receives",
        "Receives left alone, by reason.",
        {task: counters["skipped"] for task, counters in answered.items()},
    )
    yield from _waits(client, answered)
    yield from _server_families(client, answered)
    if cluster:
        up = _family(client, "tf_fuse_up", "Whether the task reported its counters.", True)
        for task in tasks:
            up.add_metric([task], int(task in answered))
        yield up
    else:
        yield from _update_families(client, answered)
        yield _build_info(client, answered)
    yield from _former(client, answered)


def _family(client: Any, name: str, text: str, is_gauge: bool, label: str = "") -> Any:
    core = client.core
    kind = core.GaugeMetricFamily if is_gauge else core.CounterMetricFamily
    return kind(name, text, labels=["task", label] if label else ["task"])


def _by_reason(client: Any, name: str, text: str, counts: Mapping[str, Mapping[str, int]]) -> Any:
    family = _family(client, name, text, False, "reason")
    for task, by_reason in counts.items():
        for reason, count in sorted(by_reason.items()):
            family.add_metric([task, reason], count)
    return family


def _waits(client: Any, tasks: _Counters) -> Iterator[Any]:
    """Yield a histogram of each kind of wait."""
    for key, name in names.WAITS.items():
        family = client.core.HistogramMetricFamily(name, f"Waits. {WAITS[key]}", labels=["task"])
        for task, counters in tasks.items():
            waits = counters["waits"]
            bounds = [str(us / 1e6) for us in waits["bounds_us"]]
            buckets = _cumulative(bounds, waits[key]["counts"])
            family.add_metric([task], buckets, waits[key]["sum_us"] / 1e6)
        yield family


def _cumulative(bounds: Sequence[str], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return upper bounds and cumulative counts, as Prometheus needs them."""
    total = 0
    found = []
    for bound, count in zip([*bounds, "+Inf"], counts, strict=True):
        total += count
        found.append((bound, float(total)))
    return found


def _server_families(client: Any, tasks: _Counters) -> Iterator[Any]:
    """Yield the counters of updates on servers, and the staleness of each worker's updates."""
    for name, (key, unit, text) in names.SERVER_SUMS.items():
        yield _server_sum(client, tasks, name, key, unit, text)
    yield _staleness(client, tasks, "tf_fuse_staleness_updates", names.STALENESS)


def _server_sum(client: Any, tasks: _Counters, name: str, key: str, unit: float, text: str) -> Any:
    """Return the sum over all variables of each server."""
    family = _family(client, name, text, False)
    for task, counters in tasks.items():
        variables = counters["server_updates"]["variables"].values()
        family.add_metric([task], sum(variable[key] for variable in variables) * unit)
    return family


def _staleness(client: Any, tasks: _Counters, name: str, text: str) -> Any:
    family = client.core.HistogramMetricFamily(name, text, labels=["task", "worker"])
    for task, counters in tasks.items():
        for worker, its in counters["server_updates"]["workers"].items():
            bounds = [str(float((1 << i) - 1)) for i in range(len(its["staleness"]) - 1)]
            buckets = _cumulative(bounds, its["staleness"])
            family.add_metric([task, worker], buckets, its["staleness_sum"])
    return family


def _update_families(client: Any, tasks: _Counters) -> Iterator[Any]:
    """Yield the counters of sharded weight updates."""
    counted = {task: counters["weight_updates"] for task, counters in tasks.items()}
    prefix = "tf_fuse_weight_update"
    described = [(key, key, text) for key, text in updates.DESCRIPTIONS.items()]
    for old, key in updates.FORMER.items():
        suffix = "" if key in updates.GAUGES else "_total"
        described.append((old, key, names.deprecated(f"{prefix}_{key}{suffix}")))
    for name, key, text in described:
        family = _family(client, f"{prefix}_{name}", text, key in updates.GAUGES)
        for task, counters in counted.items():
            family.add_metric([task], counters[key])
        yield family
    yield _by_reason(
        client,
        f"{prefix}_functions_left",
        "Functions with an all-reduce whose update is not sharded, by reason.",
        {task: counters["functions_left"] for task, counters in counted.items()},
    )


def _build_info(client: Any, tasks: _Counters) -> Any:
    import tensorflow as tf

    import tf_fuse

    info = client.core.GaugeMetricFamily(
        "tf_fuse_build_info",
        "1, with the versions of tf_fuse and of TensorFlow.",
        labels=["task", "version", "tensorflow"],
    )
    for task in tasks:
        info.add_metric([task, tf_fuse.__version__, tf.__version__], 1)
    return info


def _former(client: Any, tasks: _Counters) -> Iterator[Any]:
    """Yield the metrics under the names that they had in 0.2."""
    for key, (name, new) in names.FORMER.items():
        family = _family(client, name, names.deprecated(new), False)
        for task, counters in tasks.items():
            family.add_metric([task], counters[key])
        yield family
    for name, (key, unit, new) in names.FORMER_SERVER_SUMS.items():
        yield _server_sum(client, tasks, name, key, unit, names.deprecated(new))
    text = names.deprecated("tf_fuse_staleness_updates")
    yield _staleness(client, tasks, "tf_fuse_staleness", text)


def _this_task() -> str:
    """Return the task that this process runs; of several all, with commas; "" for none."""
    from tf_fuse.v1 import fuse_recv_pb2

    tasks = _tasks.ask_this_process(fuse_recv_pb2.QUESTION_TASKS).decode()
    return tasks.replace("\n", ",")


def _client() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError as error:
        raise ImportError(_INSTALL) from error
    return prometheus_client
