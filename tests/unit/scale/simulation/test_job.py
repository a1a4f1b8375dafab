# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Simulated jobs against times that are added up by hand."""

import dataclasses

import pytest

pytest.importorskip("simpy")

from tests.unit.scale.rates import rates
from tf_fuse.scale.simulation.host import Host
from tf_fuse.scale.simulation.job import simulate
from tf_fuse.scale.simulation.merge import merged
from tf_fuse.scale.simulation.setting import Setting
from tf_fuse.scale.steps.step_graph import Segment, StepGraph, Transfer, Work


def _graph(*transfers, servers=1, operations=None):
    work = {"worker": 0, "ps:0": 0, **(operations or {})}
    segments = tuple(Segment(task, 0, Work(count)) for task, count in work.items())
    return StepGraph(segments, transfers, servers)


def test_one_step_at_a_time_is_the_sum_of_its_parts():
    costs = rates(dispatch_s=3e-3, worker_call_s=1e-3, server_call_s=2e-3)
    found = simulate(_graph(), costs, Setting(workers=1, cores=4, link_s=10e-3))
    # 3 + 10 to the worker, 1 + 10 to the server, 2 + 10 back, 10 to the coordinator.
    assert found.steps_per_s == pytest.approx(1 / 46e-3)
    assert found.cpu_s == pytest.approx({"coordinator": 3e-3, "worker": 1e-3, "ps": 2e-3})


@pytest.mark.parametrize(("cores", "rate"), [(1, 200.0), (2, 400.0), (4, 400.0)])
def test_two_workers_share_the_cores_of_a_host(cores, rate):
    costs = rates(worker_call_s=5e-3)
    found = simulate(_graph(), costs, Setting(workers=2, cores=cores, one_host=True))
    assert found.steps_per_s == pytest.approx(rate)


def test_work_of_several_threads_ends_sooner():
    graph = _graph(operations={"worker": 10})
    costs = rates(operation_s=1e-3, step_threads=2.0)
    found = simulate(graph, costs, Setting(workers=1, cores=4))
    assert found.steps_per_s == pytest.approx(1 / 5e-3)


def test_what_a_step_does_not_wait_for_still_takes_a_core():
    costs = rates(worker_call_s=4e-3, path_share=0.25)
    alone = simulate(_graph(), costs, Setting(workers=1, cores=4))
    assert alone.steps_per_s == pytest.approx(1 / 1e-3)
    crowded = simulate(_graph(), costs, Setting(workers=8, cores=1, one_host=True))
    assert crowded.steps_per_s == pytest.approx(1 / 4e-3, rel=0.1)


def test_the_link_of_the_server_is_the_bottleneck():
    weights = Transfer("ps:0", "worker", 0, 0, 1, 1, 1, 1e6, 1e6)
    found = simulate(_graph(weights), rates(), Setting(workers=4, cores=4, link_bytes_per_s=1e8))
    assert found.steps_per_s == pytest.approx(100.0, rel=0.02)
    assert found.link_busy == pytest.approx({"worker": 0.25, "ps": 1.0}, rel=0.02)


def test_the_coordinator_is_the_bottleneck():
    costs = rates(dispatch_s=10e-3, worker_call_s=1e-3)
    found = simulate(_graph(), costs, Setting(workers=8, cores=4))
    assert found.steps_per_s == pytest.approx(100.0, rel=0.02)
    assert found.coordinator_busy == pytest.approx(1.0, rel=0.02)


def test_a_receive_waits_for_the_part_of_the_step_that_asks():
    keys = Transfer("worker", "ps:0", 0, 1, 0, 1, 0, 0.0, 0.0)
    costs = rates(receive_s=1e-3)
    found = simulate(_graph(keys), costs, Setting(workers=1, cores=4, link_s=10e-3))
    # To the worker, to the server, its request, the answer, 1, back, to the coordinator.
    assert found.steps_per_s == pytest.approx(1 / 61e-3)


def test_workers_of_one_host_slow_each_other_down():
    costs = rates(worker_call_s=1e-3, server_call_s=1e-3, contention=0.5)
    # Before three of four steps of a worker another one has run.
    crowded = simulate(_graph(), costs, Setting(workers=4, cores=2, one_host=True))
    assert crowded.cpu_s["worker"] == pytest.approx(1.375e-3)
    assert crowded.cpu_s["ps"] == pytest.approx(1e-3)
    apart = simulate(_graph(), costs, Setting(workers=4, cores=2))
    assert apart.cpu_s["worker"] == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("one_host", "servers", "cpu_ms"), [(True, 1, 8), (True, 3, 24), (False, 3, 8)]
)
def test_servers_of_one_host_slow_each_other_down(one_host, servers, cpu_ms):
    ids = Transfer("worker", "ps:0", 0, 4, 0, 4, 0, 0.0, 0.0)
    calls = ids, dataclasses.replace(ids, source="ps:0", target="worker", depth=1)
    graph = _graph(*calls, servers=servers, operations={f"ps:{i}": 0 for i in range(servers)})
    costs = rates(receive_s=1e-3, send_s=1e-3, neighbour_s=1e-3)
    found = simulate(graph, costs, Setting(workers=1, cores=4, one_host=one_host))
    assert found.cpu_s["ps"] == pytest.approx(cpu_ms * 1e-3)


def test_at_the_end_of_a_round_some_workers_have_no_step_left():
    costs = rates(worker_call_s=1e-3)
    setting = Setting(workers=2, cores=2)
    assert simulate(_graph(), costs, setting).steps_per_s == pytest.approx(2000)
    # Three steps of two workers take as long as four.
    found = simulate(_graph(), costs, setting, 3, whole_round=True)
    assert found.steps_per_s == pytest.approx(1500)


@pytest.mark.parametrize(("cores", "seconds"), [(1, 8e-3), (2, 4e-3), (8, 2e-3)])
def test_calls_of_one_transfer_run_at_once(cores, seconds):
    rows = Transfer("ps:0", "worker", 0, 4, 0, 4, 0, 0.0, 0.0)
    costs = rates(receive_s=1e-3, send_s=1e-3)
    found = simulate(_graph(rows), costs, Setting(workers=1, cores=cores))
    assert found.steps_per_s == pytest.approx(1 / seconds)


def test_work_that_begins_later_shares_the_cores():
    import simpy

    env = simpy.Environment()
    host, ends = Host(env, cores=1.0), {}

    def run(name, at, cpu_s):
        yield env.timeout(at)
        yield host.run(cpu_s)
        ends[name] = env.now

    for work in (("first", 0.0, 2.0), ("second", 1.0, 1.0), ("third", 1.5, 0.25)):
        env.process(run(*work))
    env.run()
    # Alone until 1, by halves until 1.5, by thirds until the third ends, by halves again.
    assert ends == pytest.approx({"third": 2.25, "first": 3.25, "second": 3.25})
    assert host.busy_s == 3.25


def test_what_operations_compute_has_threads_of_its_own():
    segments = (Segment("worker", 0, Work(10, flops=1e6)), Segment("ps:0", 0, Work()))
    costs = rates(operation_s=1e-3, flop_s=1e-8, data_threads=4.0)
    found = simulate(StepGraph(segments, (), 1), costs, Setting(workers=1, cores=4))
    assert found.steps_per_s == pytest.approx(1 / (10e-3 + 10e-3 / 4))


def test_a_large_frame_streams():
    frame = Transfer("ps:0", "worker", 0, 0, 1, 1, 1, 4e6, 4e6)
    costs = rates(frame_send_byte_s=1e-9, frame_receive_byte_s=1e-9)
    found = simulate(_graph(frame), costs, Setting(workers=1, cores=1))
    # Four portions of 1 ms: the receiver is one behind the sender.
    assert found.steps_per_s == pytest.approx(1 / 5e-3)


def test_a_link_that_was_idle_lets_a_burst_pass():
    weights = Transfer("ps:0", "worker", 0, 0, 1, 1, 1, 2e5, 2e5)
    setting = Setting(workers=1, cores=1, link_bytes_per_s=1e7, link_s=5e-3, link_burst_bytes=1.2e5)
    # Of 20 ms, 12 are saved; four messages take 5 ms each, the weights among them.
    found = simulate(_graph(weights), rates(), setting)
    assert found.steps_per_s == pytest.approx(1 / 28e-3, rel=0.01)


def test_one_server_stands_for_several_and_the_busiest_for_itself():
    work = {f"ps:{i}": i for i in range(10)}
    graph, copies = merged(
        _graph(servers=10, operations={**work, "worker": 1}), rates(operation_s=1e-3)
    )
    assert copies["ps:9"] == 1
    assert sum(copies.values()) == 10
    assert graph.tasks() == ["worker", *sorted(copies)]


def test_merged_servers_predict_nearly_what_all_do(monkeypatch):
    transfers = [
        Transfer(*ends, depth, 0, 1, 1, 1, 1e4, 1e4)
        for i in range(20)
        for ends, depth in (((f"ps:{i}", "worker"), 0), (("worker", f"ps:{i}"), 1))
    ]
    work = {f"ps:{i}": 2 for i in range(20)}
    graph = _graph(*transfers, servers=20, operations=work)
    costs = rates(operation_s=1e-4, frame_receive_s=1e-4, frame_send_s=5e-5, server_call_s=1e-4)
    setting = Setting(workers=30, cores=4, link_bytes_per_s=1e9, link_s=1e-4)
    whole = simulate(graph, costs, setting)
    monkeypatch.setattr("tf_fuse.scale.simulation.job._PAIRS", 100)
    fewer = simulate(graph, costs, setting)
    assert fewer.steps_per_s == pytest.approx(whole.steps_per_s, rel=0.1)
    assert fewer.cpu_s == pytest.approx(whole.cpu_s, rel=0.05)
