# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The metrics of a live job: each task is one target, and alerts and dashboard fit their names.

`promtool` checks the text of each task, and the files in deploy/.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.monitoring import metrics_job
from tests.fault import coordinator
from tf_fuse.monitoring.prometheus_names import FAMILIES

pytestmark = pytest.mark.cluster

_DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
_ALERTS = _DEPLOY / "prometheus" / "alerts.yml"
_TASKS, _PS, _WORKER = metrics_job.TASKS, metrics_job.SERVERS, metrics_job.WORKERS
# Labels that Prometheus adds.
_OF_TARGETS = {"job", "instance"}


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(metrics_job.__file__)


@pytest.fixture
def promtool():
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("promtool is not installed; it is in Debian's package prometheus")

    def run(*arguments, text=None, cwd=None):
        done = subprocess.run(
            [path, *map(str, arguments)], input=text, text=True, capture_output=True, cwd=cwd
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def _samples(text):
    return [one for family in text_string_to_metric_families(text) for one in family.samples]


def _values(text):
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for s in _samples(text)}


# --- Targets -------------------------------------------------------------------------------------


def test_each_task_is_one_target(cases):
    for task, text in cases["texts"].items():
        assert {one.labels["task"] for one in _samples(text)} == {task}
    assert sorted(cases["texts"]) == _TASKS


def test_each_target_has_the_numbers_of_its_task(cases):
    for task, counters in cases["counters"].items():
        values = _values(cases["texts"][task])
        for family in FAMILIES:
            if family.is_gauge:
                continue
            for value, key in family.keys.items():
                labels = {"task": task, **({family.label: value} if family.label else {})}
                name = f"{family.name}_total", tuple(sorted(labels.items()))
                # (To ask a task for its counters is a call, not a receive.)
                assert values[name] == counters[key], (task, name)
    received = [cases["counters"][task]["fused_rpcs"] for task in _WORKER]
    sent = [cases["counters"][task]["served_rpcs"] for task in _PS]
    assert sum(received) == sum(sent) > 0


def test_what_has_waited(cases):
    """Each fused receive waits once, and so does the request that it sends."""
    for task, counters in cases["counters"].items():
        values = _values(cases["texts"][task])
        for name, key in (("receive", "fused_rpcs"), ("request", "served_rpcs")):
            count = values[f"tf_fuse_{name}_wait_seconds_count", (("task", task),)]
            assert count == counters[key], (task, name)
            waited = values[f"tf_fuse_{name}_wait_seconds_sum", (("task", task),)]
            assert (waited > 0) == (counters[key] > 0)
        variables = counters["server_updates"]["variables"].values()
        waits = sum(one["waits"] for one in variables)
        assert values["tf_fuse_lock_wait_seconds_count", (("task", task),)] == waits


def test_each_wait_is_in_the_bucket_of_its_length(cases):
    """Or the sum would not lie between what the buckets allow."""
    waited = 0
    for counters in cases["counters"].values():
        waits = dict(counters["waits"])
        bounds = waits.pop("bounds_us")
        for one in waits.values():
            *counts, longest = one["counts"]
            assert longest == 0  # of more than 100 s
            least = sum(n * (bound + 1) for n, bound in zip(counts[1:], bounds, strict=False))
            most = sum(n * bound for n, bound in zip(counts, bounds, strict=True))
            assert least <= one["sum_us"] <= most
            waited += sum(counts)
    assert waited > 0


def test_updates_of_servers(cases):
    total = 0
    for task in _PS:
        values = _values(cases["texts"][task])
        updates = values["tf_fuse_server_updates_total", (("task", task),)]
        stale = [
            values["tf_fuse_staleness_updates_count", (("task", task), ("worker", worker))]
            for worker in _WORKER
        ]
        assert sum(stale) == updates
        total += updates
    assert total == cases["updates"]


def test_build_info(cases):
    for task, text in cases["texts"].items():
        (info,) = [one for one in _samples(text) if one.name == "tf_fuse_build_info"]
        assert info.value == 1
        assert info.labels == {"task": task, **cases["versions"]}


def test_many_scrapes_at_once(cases):
    """The job is at rest: each finds the same counters, in whole text."""
    counted = {
        task: {name: v for name, v in _values(text).items() if name[0].endswith("_total")}
        for task, text in cases["texts"].items()
    }
    assert len(cases["scrapes"]) == metrics_job.SCRAPES * len(_TASKS)
    for task, text in cases["scrapes"]:
        values = _values(text)
        assert {name: values[name] for name in counted[task]} == counted[task]


def test_a_task_that_dies_while_it_is_asked(cases):
    """Its own target is lost; others have their numbers alone."""
    assert cases["after a death"]["lost"] == [_WORKER[1]]
    for task, text in cases["after a death"]["texts"].items():
        assert {one.labels["task"] for one in _samples(text)} == {task}
    up = {
        one.labels["task"]: one.value
        for one in _samples(cases["after a death"]["cluster"])
        if one.name == "tf_fuse_up"
    }
    assert up == {task: float(task != _WORKER[1]) for task in _TASKS}


# --- promtool ------------------------------------------------------------------------------------


def test_promtool_accepts_the_metrics(cases, promtool):
    for text in cases["texts"].values():
        assert promtool("check", "metrics", text=text) == ""


def test_promtool_accepts_alerts_and_configuration(promtool):
    promtool("check", "rules", _ALERTS)
    promtool("check", "config", _DEPLOY / "prometheus" / "prometheus.yml")


def test_each_alert_fires(promtool):
    promtool("test", "rules", _ALERTS.with_name("alerts_test.yml"))
    tests = yaml.safe_load(_ALERTS.with_name("alerts_test.yml").read_text())["tests"]
    fired = {
        one["alertname"]
        for test in tests
        for one in test.get("alert_rule_test", [])
        if one["exp_alerts"]
    }
    assert fired == set(_alerts())


def test_promtool_accepts_the_queries_of_the_dashboard(promtool, tmp_path):
    rules = [
        {"record": f"query:{number}", "expr": _filled(query)}
        for number, query in enumerate(_queries())
    ]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", path)


# --- What alerts and dashboard ask for ------------------------------------------------------------


def _alerts():
    (group,) = yaml.safe_load(_ALERTS.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def _dashboard():
    return json.loads((_DEPLOY / "grafana" / "tf_fuse.json").read_text(encoding="utf-8"))


def _queries():
    return [
        target["expr"] for panel in _dashboard()["panels"] for target in panel.get("targets", [])
    ]


def _filled(query):
    """A query with the dashboard's variables in it."""
    for name, value in (("$job", "train"), ("$task", ".*"), ("$__rate_interval", "1m")):
        query = query.replace(name, value)
    assert "$" not in query
    return query


def _asked_for(query):
    """Each metric of a query, and the labels that it is asked by."""
    by = set(re.findall(r"\w+", " ".join(re.findall(r"\b(?:by|on) \(([^)]*)\)", query)))) - {"le"}
    for name, matchers in re.findall(r"\b((?:tf_fuse_|up\b)\w*)(?:{([^}]*)})?", query):
        yield name, dict(re.findall(r'(\w+)=~?"([^"]*)"', matchers)), by


@pytest.fixture
def live(cases):
    """The samples of all tasks, by name."""
    found = {}
    for text in cases["texts"].values():
        for one in _samples(text):
            found.setdefault(one.name, []).append(one.labels)
    return found


def _check(query, live):
    asked = list(_asked_for(query))
    assert asked, query
    for name, matchers, by in asked:
        if name == "up":
            assert set(matchers) | by <= _OF_TARGETS, query
            continue
        assert name in live, f"{name} of {query} does not exist"
        labels = {label for one in live[name] for label in one}
        assert (set(matchers) | by) - _OF_TARGETS <= labels, query
        for label, value in matchers.items():
            if not value.startswith("$"):
                assert value in {one[label] for one in live[name]}, query


def test_the_dashboard_asks_for_what_exists(live):
    queries = _queries()
    assert len(queries) > 30
    for query in queries:
        _check(query, live)


def test_the_variables_of_the_dashboard(live):
    names = [one["name"] for one in _dashboard()["templating"]["list"]]
    assert names == ["datasource", "job", "task"]
    for one in _dashboard()["templating"]["list"][1:]:
        metric, label = re.fullmatch(
            r"label_values\((\w+)(?:{.*})?, (\w+)\)", one["definition"]
        ).groups()
        assert one["query"]["query"] == one["definition"]
        assert label == one["name"] and metric in live
        assert label in {*live[metric][0], *_OF_TARGETS}


def test_the_legends_of_the_dashboard(live):
    """Each label in a legend is one that the query's result has."""
    for panel in _dashboard()["panels"]:
        for target in panel.get("targets", []):
            wanted = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            by = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            (name, _, _), *_rest = _asked_for(target["expr"])
            if by:
                assert wanted <= set(by[0].split(", ")), target
            elif wanted:
                assert wanted <= set(live[name][0]), target


def test_panels_do_not_overlap():
    taken = set()
    for panel in _dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24 and not cells & taken
        taken |= cells
    ids = [panel["id"] for panel in _dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_alerts_ask_for_what_exists(live):
    for name, rule in _alerts().items():
        _check(rule["expr"], live)
        if name != "TfFuseTaskDown":
            assert "up" not in [metric for metric, _, _ in _asked_for(rule["expr"])]
        result = {label for one in _asked_for(rule["expr"]) for label in live.get(one[0], [{}])[0]}
        texts = " ".join(rule["annotations"].values())
        labels = set(re.findall(r"\$labels\.(\w+)", texts))
        assert labels <= result | _OF_TARGETS
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_the_page_names_each_alert():
    page = (_DEPLOY / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(TfFuse\w+)` \|", page, re.MULTILINE) == list(_alerts())
