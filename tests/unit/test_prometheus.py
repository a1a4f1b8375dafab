# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The counters in Prometheus's text format."""

import re
import sys
from pathlib import Path

import prometheus_client
import pytest
import tensorflow as tf
from prometheus_client.parser import text_string_to_metric_families

import tf_fuse
import tf_fuse.prometheus
from tf_fuse.monitoring import prometheus_names as names
from tf_fuse.monitoring import weight_update_counters as updates
from tf_fuse.monitoring.metrics import DESCRIPTIONS, GAUGES, WAITS
from tf_fuse.v1.fuse_recv_pb2 import QUESTION_TASKS

_ROOT = Path(__file__).resolve().parents[2]
_PS = "/job:ps/replica:0/task:0"
_WORKER = "/job:worker/replica:0/task:0"


@pytest.fixture
def counters(monkeypatch):
    """Counters with a number of their own each, in place of this process's."""
    values = {name: number for number, name in enumerate(DESCRIPTIONS, 1)}
    values["skipped"] = {"alone": 3, "not_cpu": 4}
    values["waits"] = {
        "bounds_us": [100, 2_000_000],
        **{
            key: {"counts": [number, 1, 2], "sum_us": number * 500}
            for number, key in enumerate(WAITS, 1)
        },
    }
    values["server_updates"] = {"variables": {}, "workers": {}}
    values["weight_updates"] = {
        **{name: number for number, name in enumerate(updates.DESCRIPTIONS, 1000)},
        "functions_left": {"no_group": 5, "nothing_to_shard": 6},
    }
    monkeypatch.setattr(tf_fuse.prometheus, "metrics", lambda: values)
    monkeypatch.setattr(tf_fuse.prometheus, "_this_task", lambda: _PS)
    return values


def _samples(text):
    """Name and labels to value."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_counter_is_described():
    nested = ["skipped", "waits", "server_updates", "weight_updates"]
    assert [*DESCRIPTIONS, *nested] == list(tf_fuse.metrics())
    assert ["bounds_us", *WAITS] == list(tf_fuse.metrics()["waits"])
    assert list(WAITS) == list(names.WAITS)
    assert set(DESCRIPTIONS) > GAUGES
    assert [*updates.DESCRIPTIONS, "functions_left"] == list(tf_fuse.metrics()["weight_updates"])
    assert set(updates.DESCRIPTIONS) > updates.GAUGES


def test_the_docs_name_every_counter_and_every_gauge():
    page = (_ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert {*DESCRIPTIONS, "skipped", "waits", *WAITS, *names.WAITS.values()} - set(
        re.findall(r"`(\w+)`", page)
    ) == set()
    gauges = re.findall(r"^\| ([^|]+) \(gauges?\) \|", page, re.MULTILINE)
    assert {name for one in gauges for name in re.findall(r"`(\w+)`", one)} == GAUGES
    watching = (_ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`_[^|]+`) \|(?: (gauge)s?:)?", watching, re.MULTILINE)
    kinds = {name: kind for row, kind in rows for name in re.findall(r"`_(\w+)`", row)}
    assert kinds == {
        **{name: "gauge" if name in updates.GAUGES else "" for name in updates.DESCRIPTIONS},
        "functions_left": "",
    }


def test_text_of_counters_and_gauges(counters):
    text = tf_fuse.prometheus_text()
    assert (
        f"# HELP tf_fuse_fallbacks_total {DESCRIPTIONS['fallbacks']}\n"
        "# TYPE tf_fuse_fallbacks_total counter\n"
        f'tf_fuse_fallbacks_total{{task="{_PS}"}} {float(counters["fallbacks"])}\n'
    ) in text
    assert (
        f"# HELP tf_fuse_pending_requests {DESCRIPTIONS['pending_requests']}\n"
        "# TYPE tf_fuse_pending_requests gauge\n"
        f'tf_fuse_pending_requests{{task="{_PS}"}} {float(counters["pending_requests"])}\n'
    ) in text
    assert (
        "# TYPE tf_fuse_skipped_receives_total counter\n"
        f'tf_fuse_skipped_receives_total{{reason="alone",task="{_PS}"}} 3.0\n'
        f'tf_fuse_skipped_receives_total{{reason="not_cpu",task="{_PS}"}} 4.0\n'
    ) in text
    assert (
        "# TYPE tf_fuse_collective_bytes_total counter\n"
        f'tf_fuse_collective_bytes_total{{path="shm",task="{_PS}"}} '
        f"{float(counters['collective_bytes_shm'])}\n"
    ) in text


def test_histograms_of_waits(counters):
    samples = _samples(tf_fuse.prometheus_text())
    for number, key in enumerate(WAITS, 1):
        found = {
            (name.removeprefix(names.WAITS[key]), dict(labels).get("le")): value
            for (name, labels), value in samples.items()
            if name.startswith(names.WAITS[key])
        }
        assert found == {
            ("_bucket", "0.0001"): number,
            ("_bucket", "2.0"): number + 1,
            ("_bucket", "+Inf"): number + 3,
            ("_count", None): number + 3,
            ("_sum", None): pytest.approx(number * 500e-6),
        }


def test_a_wait_is_in_the_bucket_of_its_length():
    bounds = tf_fuse.metrics()["waits"]["bounds_us"]
    assert bounds == sorted(bounds) and bounds[0] == 100 and bounds[-1] == 100_000_000
    assert len(tf_fuse.metrics()["waits"]["locks"]["counts"]) == len(bounds) + 1


# Each counter has a name and labels of its own; this is what graphs and alerts are made of.
_NAMES = {
    "fused_rpcs": ("frames_total", "direction", "received"),
    "served_rpcs": ("frames_total", "direction", "sent"),
    "tensors": ("frame_tensors_total", "direction", "received"),
    "served_tensors": ("frame_tensors_total", "direction", "sent"),
    "bytes": ("frame_bytes_total", "direction", "received"),
    "served_bytes": ("frame_bytes_total", "direction", "sent"),
    "stalled_receives": ("stalls_total", "side", "receiver"),
    "stalled_requests": ("stalls_total", "side", "sender"),
    "cancelled_requests": ("unserved_requests_total", "reason", "cancelled"),
    "served_errors": ("unserved_requests_total", "reason", "failed"),
    "postponed_requests": ("unserved_requests_total", "reason", "postponed"),
    "rejected_requests": ("unserved_requests_total", "reason", "rejected"),
    "collective_bytes_shm": ("collective_bytes_total", "path", "shm"),
    "collective_bytes_tcp": ("collective_bytes_total", "path", "tcp"),
    "collective_bytes_grpc": ("collective_bytes_total", "path", "grpc"),
    "collective_bytes_stock": ("collective_bytes_total", "path", "stock"),
}


def test_nothing_is_left_out(counters):
    expected = {}
    for name in DESCRIPTIONS:
        suffix = "" if name in GAUGES else "_total"
        # Also the former names of those in _NAMES.
        expected[f"tf_fuse_{name}{suffix}", (("task", _PS),)] = counters[name]
    for name, (metric, label, value) in _NAMES.items():
        labels = tuple(sorted([("task", _PS), (label, value)]))
        expected[f"tf_fuse_{metric}", labels] = counters[name]
    for reason, count in counters["skipped"].items():
        labels = (("reason", reason), ("task", _PS))
        expected["tf_fuse_skipped_receives_total", labels] = count
    for name in updates.DESCRIPTIONS:
        suffix = "" if name in updates.GAUGES else "_total"
        key = f"tf_fuse_weight_update_{name}{suffix}", (("task", _PS),)
        expected[key] = counters["weight_updates"][name]
    for old, name in updates.FORMER.items():
        suffix = "" if name in updates.GAUGES else "_total"
        key = f"tf_fuse_weight_update_{old}{suffix}", (("task", _PS),)
        expected[key] = counters["weight_updates"][name]
    for reason, count in counters["weight_updates"]["functions_left"].items():
        labels = (("reason", reason), ("task", _PS))
        expected["tf_fuse_weight_update_functions_left_total", labels] = count
    for name in ("updates", "update_seconds", "update_waits", "update_wait_seconds"):
        expected[f"tf_fuse_server_{name}_total", (("task", _PS),)] = 0
    info = (("task", _PS), ("tensorflow", tf.__version__), ("version", tf_fuse.__version__))
    expected["tf_fuse_build_info", info] = 1
    waits = tuple(names.WAITS.values())
    samples = _samples(tf_fuse.prometheus_text())
    assert {k: v for k, v in samples.items() if not k[0].startswith(waits)} == expected


def test_each_former_name_says_what_to_use(counters):
    """The new metric exists, and has the same value."""
    text = tf_fuse.prometheus_text()
    samples = _samples(text)
    former = re.findall(
        r"^# HELP (\S+) Deprecated, goes in 0.4.0. Use (\S+)[.]$", text, re.MULTILINE
    )
    assert len(former) == len(_NAMES) + 3 + len(updates.FORMER)
    for old, new in former:
        if old == "tf_fuse_staleness" or "server_update" in old:
            continue  # without samples here; test_staleness_report.py
        name, *label = re.fullmatch(r'(\w+)(?:{(\w+)="(\w+)"})?', new).groups()
        labels = tuple(sorted([("task", _PS), *([tuple(label)] if any(label) else [])]))
        assert samples[old, (("task", _PS),)] == samples[name, labels]


def test_former_names_of_weight_updates(counters):
    assert updates.FORMER == {"bundles": "shard_groups", "functions_cut": "functions_sharded"}
    for old, new in updates.FORMER.items():
        with pytest.warns(DeprecationWarning, match=f"^key '{old}' is deprecated .* use '{new}'$"):
            assert tf_fuse.metrics()["weight_updates"][old] == 0
    samples = _samples(tf_fuse.prometheus_text())
    at = (("task", _PS),)
    assert samples["tf_fuse_weight_update_bundles", at] == 1000
    assert samples["tf_fuse_weight_update_shard_groups", at] == 1000
    number = counters["weight_updates"]["functions_sharded"]
    assert samples["tf_fuse_weight_update_functions_cut_total", at] == number
    assert samples["tf_fuse_weight_update_functions_sharded_total", at] == number


def test_process_without_a_server_has_an_empty_task():
    key = ("tf_fuse_fallbacks_total", (("task", ""),))
    assert _samples(tf_fuse.prometheus_text())[key] == tf_fuse.metrics()["fallbacks"]


def test_a_process_of_several_tasks_names_all(monkeypatch):
    """They share the counters, which are not those of one."""
    answer = tf_fuse.prometheus._tasks.ask_this_process

    def ask(question):
        return f"{_PS}\n{_WORKER}".encode() if question == QUESTION_TASKS else answer(question)

    monkeypatch.setattr(tf_fuse.prometheus._tasks, "ask_this_process", ask)
    tasks = {dict(labels)["task"] for _, labels in _samples(tf_fuse.prometheus_text())}
    assert tasks == {f"{_PS},{_WORKER}"}


def test_cluster_has_a_sample_per_task(monkeypatch, counters):
    del counters["weight_updates"]
    older = {key: counters[key] for key in ("fused_rpcs", "skipped")}
    tasks = {_PS: counters, _WORKER: {"error": "no answer"}, "/job:older": older}
    asked = []

    def cluster_metrics(timeout_s):
        asked.append(timeout_s)
        return tasks

    monkeypatch.setattr(tf_fuse.prometheus, "cluster_metrics", cluster_metrics)
    with pytest.warns(DeprecationWarning, match="a target of its own") as warned:
        samples = _samples(tf_fuse.prometheus_text(cluster=True, timeout_s=3.0))
    assert [one.filename for one in warned] == [__file__]
    up = {dict(labels)["task"]: v for (name, labels), v in samples.items() if name == "tf_fuse_up"}
    assert up == {_PS: 1.0, _WORKER: 0.0, "/job:older": 0.0}
    assert {dict(labels)["task"] for name, labels in samples if name != "tf_fuse_up"} == {_PS}
    assert samples["tf_fuse_fallbacks_total", (("task", _PS),)] == counters["fallbacks"]
    assert asked == [3.0]  # to register asks nobody


@pytest.mark.parametrize("worker", ['a"b', "a\\b", "a\nb", "", "é\ufffd", 'x{y="z"} 1'])
def test_odd_names_of_workers(counters, worker):
    one = {"updates": 1, "staleness_sum": 3, "staleness_max": 3, "staleness": [0, 0, 1, 0]}
    counters["server_updates"]["workers"] = {worker: one}
    samples = _samples(tf_fuse.prometheus_text())
    for name in ("tf_fuse_staleness", "tf_fuse_staleness_updates"):
        assert samples[f"{name}_sum", (("task", _PS), ("worker", worker))] == 3


def test_registry_of_ones_own(counters):
    registry = prometheus_client.CollectorRegistry()
    collector = tf_fuse.prometheus.register(registry)
    value = registry.get_sample_value("tf_fuse_groups_total", {"task": _PS})
    assert value == counters["groups"]
    counters["groups"] += 1
    assert registry.get_sample_value("tf_fuse_groups_total", {"task": _PS}) == value + 1
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        tf_fuse.prometheus.register(registry)
    registry.unregister(collector)
    assert registry.get_sample_value("tf_fuse_groups_total", {"task": _PS}) is None


def test_without_prometheus_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError) as error:
        tf_fuse.prometheus_text()
    assert str(error.value) == (
        "tf_fuse's Prometheus metrics need the package prometheus_client, which is not installed; "
        'install it: python -m pip install "prometheus_client>=0.20,<1"'
    )
