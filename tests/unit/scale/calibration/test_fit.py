# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Calibration finds the rates by which probes were made up."""

import numpy as np
import pytest

pytest.importorskip("simpy")
pytest.importorskip("scipy")

from tests.unit.scale.rates import rates
from tf_fuse.scale.calibration.fit import Measured, fit, local_rates, wall_errors
from tf_fuse.scale.simulation.job import simulate
from tf_fuse.scale.simulation.setting import Setting
from tf_fuse.scale.steps.step_graph import Segment, StepGraph, Transfer, Work

_CORES = 2.0


def _graph(count, fused, servers=2, flops=0.0):
    """Return a step that reads so many tensors of each server and updates them."""
    segments, transfers = [Segment("worker", 1, Work(count, 0, 0.0, flops))], []
    for server in (f"ps:{i}" for i in range(servers)):
        segments += [Segment(server, depth, Work(count)) for depth in (0, 2)]
        for source, target, depth in ((server, "worker", 0), ("worker", server, 1)):
            calls = (0, 1, count, count) if fused else (count, 0, count, 0)
            size = count * 1000.0
            transfers.append(Transfer(source, target, depth, *calls, size, size if fused else 0.0))
    return StepGraph(tuple(segments), tuple(transfers), servers)


def test_local_rates_are_those_of_the_probes():
    given = rates(
        function_s=3e-4, operation_s=2e-6, variable_operation_s=8e-6, byte_s=1e-10, flop_s=2e-11
    )
    works = [
        Work(5),
        Work(90, 0, 1e5),
        Work(200, 0, 4e6),
        Work(30, 0, 1e6, 1e8),
        Work(9, 0, 0, 0, 70),
    ]
    graphs = [StepGraph((Segment("worker", 0, one),), (), 1) for one in works]
    found = local_rates(graphs, [given.function_s + given.compute_s(one) for one in works])
    assert found == pytest.approx({name: getattr(given, name) for name in found}, rel=1e-6)


def test_jobs_are_predicted_with_the_fitted_rates():
    given = rates(
        operation_s=2e-6, flop_s=2e-11, worker_call_s=8e-4, server_call_s=6e-4, receive_s=5e-5,
        send_s=3e-5, neighbour_s=2e-5, frame_receive_s=3e-4, dispatch_s=1e-3, path_share=0.6,
        contention=0.1,
    )  # fmt: skip
    probes = []
    for fused in (False, True):
        for workers, servers in ((1, 2), (3, 2), (2, 4)):
            for count, flops in ((1, 0.0), (20, 0.0), (80, 0.0), (10, 2e8)):
                graph = _graph(count, fused, servers, flops)
                setting = Setting(workers, _CORES, one_host=True)
                found = simulate(graph, given, setting, 30, whole_round=True)
                seconds = 1 / found.steps_per_s
                probes.append(Measured("", graph, workers, fused, 1.0, seconds, found.cpu_s, 30))
    local = {name: getattr(given, name) for name in ("function_s", "operation_s", "byte_s")}
    fitted = fit(probes, {**local, "flop_s": given.flop_s}, _CORES)
    assert np.median(np.abs(wall_errors(fitted, probes, _CORES))) < 0.05
    assert fitted.receive_s + fitted.send_s == pytest.approx(8e-5, rel=0.25)
    assert fitted.neighbour_s == pytest.approx(2e-5, rel=0.25)


def test_a_scale_is_what_the_model_takes_over_what_the_rates_say():
    given = rates(function_s=1e-3, operation_s=1e-4, variable_operation_s=1e-3)
    graph = StepGraph((Segment("worker", 0, Work(10)),), (), 1)
    assert given.compute_scale(graph, 3e-3) == pytest.approx(2.0)
    # What uses variables takes what the rates say.
    graph = StepGraph((Segment("worker", 0, Work(10, variable_operations=1)),), (), 1)
    assert given.compute_scale(graph, 4e-3) == pytest.approx(2.0)
    assert given.compute_scale(StepGraph((), (), 1), 3e-3) == 1.0
