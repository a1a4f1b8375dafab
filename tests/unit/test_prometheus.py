# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The counters in Prometheus's text format."""

import re
import sys
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

import tf_fuse
import tf_fuse.prometheus
from tf_fuse.monitoring import weight_update_counters as updates
from tf_fuse.monitoring.metrics import DESCRIPTIONS, GAUGES

_ROOT = Path(__file__).resolve().parents[2]
_PS = "/job:ps/replica:0/task:0"
_WORKER = "/job:worker/replica:0/task:0"


@pytest.fixture
def counters(monkeypatch):
    """Counters with a number of their own each, in place of this process's."""
    values = {name: number for number, name in enumerate(DESCRIPTIONS, 1)}
    values["skipped"] = {"alone": 3, "not_cpu": 4}
    values["weight_updates"] = {
        **{name: number for number, name in enumerate(updates.DESCRIPTIONS, 1000)},
        "functions_left": {"no_group": 5, "nothing_to_cut": 6},
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
    assert [*DESCRIPTIONS, "skipped", "server_updates", "weight_updates"] == list(tf_fuse.metrics())
    assert set(DESCRIPTIONS) > GAUGES
    assert [*updates.DESCRIPTIONS, "functions_left"] == list(tf_fuse.metrics()["weight_updates"])
    assert set(updates.DESCRIPTIONS) > updates.GAUGES


def test_the_docs_name_every_counter_and_every_gauge():
    page = (_ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert {*DESCRIPTIONS, "skipped"} - set(re.findall(r"`(\w+)`", page)) == set()
    gauges = re.findall(r"^\| ([^|]+) \(gauges?\) \|", page, re.MULTILINE)
    assert {name for one in gauges for name in re.findall(r"`(\w+)`", one)} == GAUGES
    watching = (_ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `_(\w+)` \|(?: (gauge):)?", watching, re.MULTILINE)
    assert dict(rows) == {
        **{name: "gauge" if name in updates.GAUGES else "" for name in updates.DESCRIPTIONS},
        "functions_left": "",
    }


def test_text_of_counters_and_gauges(counters):
    text = tf_fuse.prometheus_text()
    for name in ("fused_rpcs", "served_bytes"):
        assert (
            f"# HELP tf_fuse_{name}_total {DESCRIPTIONS[name]}\n"
            f"# TYPE tf_fuse_{name}_total counter\n"
            f'tf_fuse_{name}_total{{task="{_PS}"}} {float(counters[name])}\n'
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


def test_nothing_is_left_out(counters):
    expected = {
        (f"tf_fuse_{name}" + ("" if name in GAUGES else "_total"), (("task", _PS),)): counters[name]
        for name in DESCRIPTIONS
    }
    for reason, count in counters["skipped"].items():
        labels = (("reason", reason), ("task", _PS))
        expected["tf_fuse_skipped_receives_total", labels] = count
    for name in updates.DESCRIPTIONS:
        suffix = "" if name in updates.GAUGES else "_total"
        key = f"tf_fuse_weight_update_{name}{suffix}", (("task", _PS),)
        expected[key] = counters["weight_updates"][name]
    for reason, count in counters["weight_updates"]["functions_left"].items():
        labels = (("reason", reason), ("task", _PS))
        expected["tf_fuse_weight_update_functions_left_total", labels] = count
    assert _samples(tf_fuse.prometheus_text()) == expected


def test_process_without_a_server_has_an_empty_task():
    key = ("tf_fuse_fused_rpcs_total", (("task", ""),))
    assert _samples(tf_fuse.prometheus_text())[key] == tf_fuse.metrics()["fused_rpcs"]


def test_cluster_has_a_sample_per_task(monkeypatch, counters):
    del counters["weight_updates"]
    tasks = {_PS: counters, _WORKER: {"error": "no answer"}}
    asked = []

    def cluster_metrics(timeout_s):
        asked.append(timeout_s)
        return tasks

    monkeypatch.setattr(tf_fuse.prometheus, "cluster_metrics", cluster_metrics)
    samples = _samples(tf_fuse.prometheus_text(cluster=True, timeout_s=3.0))
    assert samples["tf_fuse_up", (("task", _PS),)] == 1.0
    assert samples["tf_fuse_up", (("task", _WORKER),)] == 0.0
    assert samples["tf_fuse_tensors_total", (("task", _PS),)] == counters["tensors"]
    assert ("tf_fuse_tensors_total", (("task", _WORKER),)) not in samples
    assert asked == [3.0]  # to register asks nobody


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
