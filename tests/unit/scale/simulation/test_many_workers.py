# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Jobs of many workers are predicted from a few as if all were simulated."""

import dataclasses
import math

import pytest

pytest.importorskip("simpy")

from tests.unit.scale.rates import rates
from tf_fuse.scale.prediction import Comparison, Variant, recommended
from tf_fuse.scale.simulation import many_workers
from tf_fuse.scale.simulation.job import simulate
from tf_fuse.scale.simulation.limits import limits
from tf_fuse.scale.simulation.many_workers import of_many
from tf_fuse.scale.simulation.setting import Prediction, Setting
from tf_fuse.scale.steps.step_graph import Segment, StepGraph, Transfer, Work

_COSTS = rates(
    dispatch_s=1e-3, worker_call_s=5e-4, server_call_s=4e-4, receive_s=1e-4, send_s=1e-4,
    receive_byte_s=1e-9, send_byte_s=1e-9, operation_s=1e-5, watch_share=0.25, path_share=0.75,
)  # fmt: skip


def _graph(servers, calls=12, size=1e5, work=20):
    """A step that reads tensors of all servers, and sends back as many."""
    segments, transfers = [Segment("worker", 1, Work(work))], []
    for number in range(servers):
        server = f"ps:{number}"
        own = len(range(number, calls, servers))
        segments += [Segment(server, depth, Work(own)) for depth in (0, 2)]
        for ends, depth in (((server, "worker"), 0), (("worker", server), 1)):
            transfers.append(Transfer(*ends, depth, own, 0, own, 0, own * size, 0.0))
    ordered = tuple(sorted(transfers, key=lambda one: one.depth))
    return StepGraph(tuple(segments), ordered, servers)


class _Workers:
    """Predictions of workers whose steps take a second, up to a rate; counts what is simulated."""

    def __init__(self, limit):
        self.limit = limit
        self.simulated = []

    def __call__(self, workers):
        self.simulated.append(workers)
        rate = min(float(workers), self.limit)
        cpu_s = {"coordinator": 1e-3 + 0.5 / rate, "worker": 0.5, "ps": 0.1}
        busy = {"worker": 0.5 * rate / workers, "ps": 0.1 * rate}
        return Prediction(rate, cpu_s, (0.1,), busy, busy, 1e-3 * rate, 0.5, workers / rate)


def test_a_resource_that_few_workers_fill_is_full_with_all():
    run = _Workers(limit=200.0)
    found = of_many(4000, {"coordinator": 500.0, "cores": 201.0, "link": math.inf}, 0.5, run)
    assert run.simulated == [64, 128, 256]
    assert found.steps_per_s == 201.0
    assert found.cpu_s == pytest.approx({"coordinator": 1e-3 + 0.5 / 201, "worker": 0.5, "ps": 0.1})
    assert found.busy == pytest.approx({"worker": 0.5 * 201 / 4000, "ps": 20.1})
    assert found.link_busy == pytest.approx({"worker": 0.5 * 201 / 4000, "ps": 20.1})
    assert found.coordinator_busy == pytest.approx(0.402)
    # With 256 workers a step takes 1.28 s, and its worker computes for half of that time.
    assert found.step_s == pytest.approx(4000 / 201)
    assert found.waiting == pytest.approx(1 - 0.64 * 201 / 4000)


def test_workers_that_wait_for_the_coordinator_do_so_between_steps():
    run = _Workers(limit=100.0)
    found = of_many(4000, {"coordinator": 100.0, "cores": 201.0, "link": math.inf}, 0.5, run)
    assert run.simulated == [64, 128]
    assert (found.steps_per_s, found.step_s, found.waiting) == (100.0, 1.28, 0.5)


@pytest.mark.parametrize(
    ("limit", "simulated", "rate"),
    [(6000.0, [64, 128], 4000.0), (2500.0, [64, 128, 256], 2500.0)],
)
def test_workers_that_do_not_hinder_each_other_make_as_many_steps_as_alone(limit, simulated, rate):
    run = _Workers(limit)
    found = of_many(4000, {"coordinator": limit, "cores": 1e4, "link": math.inf}, 0.5, run)
    assert run.simulated == simulated
    assert found.steps_per_s == rate
    assert found.busy["worker"] == pytest.approx(0.5 * rate / 4000)


@pytest.mark.parametrize(("workers", "limit"), [(4000, 4200.0), (511, 1.0)])
def test_all_workers_are_simulated_where_few_do_not_say_what_all_do(workers, limit):
    run = _Workers(limit)
    found = of_many(workers, {"coordinator": limit, "cores": 1e6, "link": math.inf}, 0.5, run)
    assert run.simulated[-1] == workers
    assert found == run(workers)


def test_limits_are_those_of_the_busiest_server():
    graph = _graph(servers=5)
    setting = Setting(100, cores=2, link_bytes_per_s=1e8)
    # Three tensors each way for a call of 0.4 ms: 6 x (0.1 ms + 0.1 ms of bytes + 0.01 ms).
    assert limits(graph, _COSTS, setting) == pytest.approx(
        {"coordinator": 1e3, "cores": 2 / 1.66e-3, "link": 1e8 / 3e5}
    )
    assert limits(graph, _COSTS, Setting(100, cores=1))["coordinator"] == 800.0
    assert limits(graph, rates(), Setting(100, cores=1)) == dict.fromkeys(
        ("coordinator", "cores", "link"), math.inf
    )


# What is full: the coordinator; cores of servers; their links; nothing.
_SETTINGS = {
    "coordinator": (_COSTS, Setting(144, 8, 1e10, 1e-4)),
    "cores": (dataclasses.replace(_COSTS, dispatch_s=1e-4), Setting(144, 1, 1e9, 1e-4)),
    "link": (dataclasses.replace(_COSTS, dispatch_s=1e-4), Setting(144, 8, 5e7, 1e-4)),
    "nothing": (dataclasses.replace(_COSTS, operation_s=0.05), Setting(144, 512, 1e9, 1e-4)),
}


def _comparisons(full):
    costs, setting = _SETTINGS[full]
    # Where a link is full, workers come in waves.
    steps = setting.workers * (6 if full == "link" else 2)
    return [
        Comparison(number, (Variant("fused", graph, simulate(graph, costs, setting, steps), ""),))
        for number in (1, 3, 5)
        for graph in [_graph(number)]
    ]


@pytest.mark.parametrize("full", _SETTINGS)
def test_the_recommendation_is_that_of_all_workers(full, monkeypatch):
    whole = _comparisons(full)
    monkeypatch.setattr(many_workers, "_FIRST", 16)
    fewer = _comparisons(full)
    assert recommended(fewer).servers == recommended(whole).servers
    # Where a link is full, its two directions wait for each other now and then.
    tolerance = 0.1 if full == "link" else 0.05
    for few, all_of_them in zip(fewer, whole, strict=True):
        assert few.rate("fused") == pytest.approx(all_of_them.rate("fused"), rel=tolerance)
