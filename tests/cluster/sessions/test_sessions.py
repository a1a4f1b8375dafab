# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf.compat.v1.Session` on two workers and three servers; one server lacks the plugin."""

import collections
import os
import re
from pathlib import Path

import pytest

from tests import scripted
from tf_fuse.cli.explain import REASONS

pytestmark = pytest.mark.cluster

_CASES = [
    "bfloat16_on_the_wire",
    "checkpoints",
    "cond_v1",
    "cond_v2",
    "errors",
    "feature_columns",
    "feeds_and_fetches",
    "iterators",
    "monitored_training",
    "partial_run",
    "partitioned_variables",
    "parts_of_a_ref_variable",
    "plain_server",
    "queue_between_steps",
    "recovery",
    "ref_variables",
    "strings",
    "sync_replicas",
    "tables",
    "traced_runs",
    "two_workers",
    "while_v1",
    "while_v2",
]
_PHASES = {
    "off": ["monitored_training", "feeds_and_fetches"],
    "on": ["*"],
    "scheme": ["iterators"],
    "dynamic": ["monitored_training", "cond_v1"],
    "plain_master": ["ref_variables"],
    "experimental": ["ref_variables"],
}
# Cases in which a receive fails or may fail.
_ERRORS = {"errors", "iterators", "recovery", "tables"}
# Of a cluster of tasks with this environment; the sessions have no option.
_UNSTAMPED = ["partial_run", "while_v1"]
_UNSTAMPED_ENV = {"TF_FUSE_DYNAMIC": "1", "TF_FUSE_MAX_KEYS_PER_REQUEST": "2"}


def _run(mode, phases, env=os.environ):
    script = Path(__file__).parent / "modes.py"
    return scripted.run(script, {"mode": mode, "phases": phases}, env)


@pytest.fixture(scope="module")
def stock():
    return {e["case"]: e for e in _run("stock", {"stock": ["*"]})}


@pytest.fixture(scope="module")
def plugin():
    return {(e["case"], e.get("phase")): e for e in _run("plugin", _PHASES)}


@pytest.fixture(scope="module")
def unstamped():
    events = _run("plugin", {"off": _UNSTAMPED}, {**os.environ, **_UNSTAMPED_ENV})
    return {(e["case"], e.get("phase")): e for e in events}


def test_every_case_ran(stock, plugin):
    assert stock["environment"]["plugin_loaded"] is False
    assert sorted(stock.keys() - {"environment", "end"}) == _CASES
    assert sorted(case for case, phase in plugin if phase == "on") == _CASES


@pytest.mark.parametrize("case", _CASES)
def test_values_are_the_same_bits(stock, plugin, case):
    assert stock[case]["values"], "nothing was compared"
    assert plugin[case, "on"]["values"] == stock[case]["values"]


@pytest.mark.parametrize(
    ("phase", "case"), [(p, c) for p, cases in _PHASES.items() if p != "on" for c in cases]
)
def test_values_are_the_same_bits_in_other_ways_of_asking(stock, plugin, phase, case):
    assert plugin[case, phase]["values"] == stock[case]["values"]


def _total(plugin, case, phase="on"):
    """What all tasks counted in all runs of a case."""
    total = collections.Counter()
    for counters in plugin[case, phase]["counted"].values():
        total.update({k: v for k, v in counters.items() if isinstance(v, int)})
    return total


@pytest.mark.parametrize("case", sorted({*_CASES} - {"recovery"}))
def test_it_is_fused(plugin, case):
    total = _total(plugin, case)
    # Whether a request is answered that nobody waits for any more depends on what was first.
    if case not in _ERRORS:
        assert total["fused_rpcs"] == total["served_rpcs"]
        assert total["tensors"] == total["served_tensors"]
    assert total["tensors"] >= 2 * total["fused_rpcs"] > 0
    if case != "iterators":  # Its step ends at once or after its receives.
        assert ("errors" in total) == (case in _ERRORS)
    assert ("fallbacks" in total) == (case == "plain_server")


def test_recovered_session_is_fused_again(plugin):
    """The steps' fused receives on the worker, and its groups: the server went after step 1."""
    readings = plugin["recovery", "on"]["told"]["worker"]
    fused, groups = ([r[name] for r in readings] for name in ("fused_rpcs", "groups"))
    assert groups[2] > groups[1], "the graph was not registered again"
    assert groups[3] == groups[2]
    assert fused[3] - fused[2] == fused[1] - fused[0] > 0


@pytest.mark.parametrize("case", _PHASES["off"])
def test_every_tensor_travels_once(plugin, case):
    """In a frame or singly; as many as without the option."""
    off, on = _total(plugin, case, "off"), _total(plugin, case, "on")
    assert on["tensors"] + on["single_rpcs"] == off["single_rpcs"]
    assert on["fused_rpcs"] + on["single_rpcs"] < 0.6 * off["single_rpcs"]


@pytest.mark.parametrize(("phase", "cases"), [(p, _PHASES[p]) for p in ("off", "plain_master")])
def test_nothing_is_fused_without_option_or_master(plugin, phase, cases):
    for case in cases:
        total = _total(plugin, case, phase)
        assert not {"fused_rpcs", "served_rpcs", "groups", "functions", "errors"} & total.keys()


@pytest.mark.parametrize(
    ("phase", "case"), [("scheme", "iterators"), ("experimental", "ref_variables")]
)
def test_other_ways_of_asking_give_the_same_groups(plugin, phase, case):
    there, here = _total(plugin, case, "on"), _total(plugin, case, phase)
    assert there["groups"] == here["groups"] > 0
    assert there["fused_receives"] == here["fused_receives"]


@pytest.mark.parametrize("case", _PHASES["dynamic"])
def test_dynamic_requests_of_stamped_graphs(plugin, case):
    there, total = _total(plugin, case), _total(plugin, case, "dynamic")
    assert total["dynamic_requests"] == total["fused_rpcs"] == total["served_rpcs"]
    assert 0 < total["fused_rpcs"] < total["tensors"] == total["served_tensors"]
    # Receives that are alone at their depth have others to share requests with.
    assert total["tensors"] >= there["tensors"]
    assert "errors" not in total


@pytest.mark.parametrize("case", _UNSTAMPED)
def test_dynamic_requests_of_graphs_that_are_not_stamped(stock, unstamped, case):
    assert unstamped[case, "off"]["values"] == stock[case]["values"]
    total = _total(unstamped, case, "off")
    assert 0 < total["fused_rpcs"] < total["tensors"] == total["served_tensors"]
    assert total["dynamic_requests"] == total["fused_rpcs"]
    # Senders would refuse requests for more than two.
    assert total["tensors"] <= 2 * total["dynamic_requests"]
    assert not {"errors", "rejected_requests"} & total.keys()


def test_traced_run_tells_of_all_tasks(stock, plugin):
    """The devices traced, and those of the partitions."""
    told = plugin["traced_runs", "on"]["told"]
    devices = [scripted.device(task) for task in ("ps:0", "ps:1", "worker:0")]
    for what in ("traced", "partitions"):
        assert told[what] == stock["traced_runs"]["told"][what]
        assert set(devices) <= set(told[what])


def test_traced_run_records_fused_receives_as_tensorflow_does_single_ones(stock, plugin):
    """Lines "[36B] [0.2Mb/s] NAME from DEVICE to DEVICE"; a fused one's name is their number."""

    def records(told):
        parsed = [
            re.fullmatch(r"\[([0-9.]+)M?B\] \[\S+\] (.+) from (\S+) to (\S+)", label)
            for label in told["received"]
        ]
        assert all(parsed), told
        return [match.groups() for match in parsed]

    fused = collections.defaultdict(set)
    for size, name, src, dst in records(plugin["traced_runs", "on"]["told"]):
        if match := re.fullmatch(r"(\d+) tensors \(fused\)", name):
            assert float(size) > 0
            fused[src, dst].add(int(match[1]))
    worker = "/job:worker/replica:0/task:0/device:CPU:0"
    servers = [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(2)]
    # Weights or biases to the worker, and their gradients back.
    assert fused == {route: {6} for ps in servers for route in [(ps, worker), (worker, ps)]}
    # Stock records single ones between the same tasks; how many, is up to its races: some are
    # forgotten, and at times one of another step is among them. So steps were recorded until each
    # pair of tasks had one.
    assert {(src, dst) for *_, src, dst in records(stock["traced_runs"]["told"])} == fused.keys()


def test_every_skip_is_explained(plugin):
    skips = plugin["end", None]["skips"]
    reasons = {reason for reason, _ in skips}
    assert {"alone", "not_stamped"} <= reasons <= REASONS.keys()
    # A loop's condition is used by nodes that the partitioner makes, and by nothing else.
    not_stamped = [tensor for reason, tensor in skips if reason == "not_stamped"]
    loop_condition = r"edge_\d+_.*LoopCond(/_\d+)?"  # Grappler may number it.
    assert [t for t in not_stamped if not re.fullmatch(loop_condition, t)] == []


def test_lookups_and_updates_of_a_server_are_one_operation_each(plugin):
    operations = plugin["end", None]["operations"]
    for server in range(2):
        device = f"/job:ps/replica:0/task:{server}/device:CPU:0"
        of_server = [dict(counts) for name, counts in operations if name == device]
        assert {"ResourceGather": 6, "_Send": 6} in of_server
        assert {"ResourceScatterAdd": 6} in of_server, of_server


def test_an_error_names_the_variable(stock, plugin):
    text = "indices[3] = 50 is not in [0, 50)"
    assert text in stock["tables"]["told"]["error"]
    assert f"{text} (variable 'v7')" in plugin["tables", "on"]["told"]["error"]


def test_logs_say_what_is_worth_saying(plugin):
    """The plain server is found out by each task that receives from it; nothing else is said."""
    wanted = "does not serve fused receives (it runs the protocol 'grpc', not 'grpc+fuse')"
    lines = plugin["end", None]["logs"]
    assert lines and all(wanted in line for line in lines), lines
