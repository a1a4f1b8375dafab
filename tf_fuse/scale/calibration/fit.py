# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the rates with which the simulator reproduces the probes that were measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tf_fuse.scale.rates import Rates
from tf_fuse.scale.simulation.job import simulate
from tf_fuse.scale.simulation.setting import Setting
from tf_fuse.scale.steps.step_graph import WORKER, StepGraph

# What the simulator finds beside CPU seconds: its range, and whether steps are ratios.
_SHARED = {
    "path_share": (0.1, 1.0),
    "hop_s": (0.0, 1e-3),
    "step_threads": (1.0, 2.0),
    "data_threads": (1.0, 2.0),
    "core_share": (0.95, 1.0),
}
_ROUNDS = 3
_TRIES = 5
# That are simulated of each probe at least, and of one that several workers run, at most.
_STEPS, _MOST_STEPS = 10, 24
# What probes cannot tell apart, such as what a message costs its sender and its receiver, stays in
# this proportion: so much a rate is expected to be, and so much its distance from that counts.
_EXPECTED = {
    "worker_call_s": 8e-4,
    "server_request_s": 2e-4,
    "server_call_s": 5e-4,
    "worker_handle_s": 1e-6,
    "server_handle_s": 5e-6,
    "remote_operation_s": 1e-6,
    "member_s": 2e-6,
    "stream_receive_s": 2e-5,
    "stream_send_s": 2e-5,
    "receive_s": 4e-5,
    "send_s": 3e-5,
    "burst_receive_s": 1e-4,
    "burst_send_s": 5e-5,
    "neighbour_s": 1e-5,
    "frame_receive_s": 2e-4,
    "frame_send_s": 1e-4,
    "frame_tensor_receive_s": 2e-6,
    "frame_tensor_send_s": 2e-6,
    "receive_byte_s": 4e-10,
    "send_byte_s": 4e-10,
    "frame_receive_byte_s": 3e-10,
    "frame_send_byte_s": 3e-10,
    "large_receive_byte_s": 3e-10,
    "large_send_byte_s": 3e-10,
}
_WEIGHT = 0.03


@dataclasses.dataclass(frozen=True)
class Measured:
    """A probe that ran on this machine.

    Attributes:
      name: of the probe and the job, for messages.
      graph: its step.
      workers: of the job.
      fused: whether the job fused receives.
      compute_scale: see `Rates.segment_s`.
      seconds: per step, of all workers together.
      cpu_s: per step, by role.
      round_steps: how many were measured at a time.
    """

    name: str
    graph: StepGraph
    workers: int
    fused: bool
    compute_scale: float
    seconds: float
    cpu_s: Mapping[str, float]
    round_steps: int = _STEPS


def local_rates(graphs: Sequence[StepGraph], cpu_s: Sequence[float]) -> dict[str, float]:
    """Fit what operations cost in one process.

    Args:
      graphs: of the probes, unfused.
      cpu_s: that each takes per step without a cluster.

    Returns:
      function_s, operation_s, variable_operation_s, byte_s and flop_s.
    """
    rows = []
    for graph in graphs:
        work = graph.work_of(graph.tasks())
        touched = work.bytes + work.variable_bytes
        rows.append([1.0, work.operations, work.variable_operations, touched, work.flops])
    names = ("function_s", "operation_s", "variable_operation_s", "byte_s", "flop_s")
    return dict(zip(names, relative_fit(rows, cpu_s), strict=True))


def fit(probes: Sequence[Measured], local: Mapping[str, float], cores: float) -> Rates:
    """Fit all rates.

    Args:
      probes: the measured ones.
      local: what `local_rates` returned.
      cores: of this machine.

    Returns:
      The rates.
    """
    zero = Rates(**{field.name: 0.0 for field in dataclasses.fields(Rates)})
    ones = dict.fromkeys(("step_threads", "data_threads", "core_share", "path_share"), 1.0)
    base = dataclasses.replace(zero, **local, **ones)
    _, rates = min(
        (_fit_cpu(dataclasses.replace(base, contention=float(one)), probes, cores)
         for one in np.linspace(0.0, 1.0, 21)),
        key=lambda found: found[0],
    )  # fmt: skip
    coordinator = relative_fit(
        [
            [
                1.0,
                probe.graph.handles_of(WORKER),
                probe.seconds,
            ]
            for probe in probes
        ],
        [p.cpu_s["coordinator"] for p in probes],
    )
    names = ("dispatch_s", "dispatch_handle_s", "watch_share")
    rates = dataclasses.replace(rates, **dict(zip(names, coordinator, strict=True)))
    return _fit_shared(rates, probes, cores)


def _slowdown(rates: Rates, probe: Measured, cores: float) -> float:
    """Return the slowdown of a probe's workers; all tasks share this machine."""
    return rates.slowdown(probe.workers, 1 + probe.workers + probe.graph.servers, cores)


def _fit_cpu(base: Rates, probes: Sequence[Measured], cores: float) -> tuple[float, Rates]:
    """Fit the CPU seconds of workers and servers; return the squared errors' sum and rates."""
    rows, measured = [], []
    names: list[str] = []
    for probe in probes:
        slow = _slowdown(base, probe, cores)
        parts = [_features(probe.graph, role == "ps") for role in ("worker", "ps")]
        owns = [_own_s(base, probe, role == "ps") for role in ("worker", "ps")]
        cpus = [probe.cpu_s[role] for role in ("worker", "ps")]
        parts[0] = {name: slow * count for name, count in parts[0].items()}
        owns[0] *= slow
        both = {name: parts[0][name] + parts[1][name] for name in parts[0]}
        names = list(both)
        # Both roles together count as much as each: the sum decides the rate on one host.
        for part, own, cpu in zip(
            [*parts, both], [*owns, sum(owns)], [*cpus, sum(cpus)], strict=True
        ):
            rows.append([*part.values(), own])
            measured.append(cpu)
    known = np.array([row[-1] for row in rows])
    features = np.array([row[:-1] for row in rows])
    # As if each rate had been measured alone, with little weight.
    pulls = np.diag([_WEIGHT / _EXPECTED[name] for name in names])
    fitted = relative_fit(
        np.vstack([features, pulls]),
        np.append(measured, np.ones(len(names))),
        np.append(known, np.full(len(names), 1.0 - _WEIGHT)),
    )
    error = (features @ fitted + known) / np.array(measured) - 1
    rates = dataclasses.replace(base, **dict(zip(names, fitted, strict=True)))
    return float(np.sum(np.square(error))), rates


def _own_s(rates: Rates, probe: Measured, servers: bool) -> float:
    """Return what the operations of a role compute, as in one process."""
    return sum(
        rates.segment_s(segment.work, probe.compute_scale)
        for segment in probe.graph.segments
        if (segment.task != WORKER) == servers
    )


def _features(graph: StepGraph, servers: bool) -> dict[str, float]:
    """Return how often the tasks of a role do what a rate is for, by the rate's name."""
    tasks = {task for task in graph.tasks() if (task != WORKER) == servers}
    work = graph.work_of(tasks)
    involved = len(graph.tasks()) - 1
    received = [one for one in graph.transfers if one.target in tasks]
    sent = [one for one in graph.transfers if one.source in tasks]

    def total(transfers: Sequence[Any], of: Callable[[Any], float]) -> float:
        return float(sum(map(of, transfers)))

    return {
        "worker_call_s": 0.0 if servers else 1.0,
        "server_request_s": 0.0 if servers else float(involved),
        "server_call_s": float(involved) if servers else 0.0,
        "worker_handle_s": 0.0 if servers else float(graph.handles_of(WORKER)),
        "server_handle_s": float(sum(map(graph.handles_of, tasks))) if servers else 0.0,
        "remote_operation_s": float(work.operations + work.variable_operations),
        "member_s": float(work.members),
        "stream_receive_s": float(len(received)),
        "stream_send_s": float(len(sent)),
        "receive_s": total(received, lambda one: one.calls),
        "send_s": total(sent, lambda one: one.calls),
        "burst_receive_s": total(received, lambda one: math.sqrt(one.calls)),
        "burst_send_s": total(sent, lambda one: math.sqrt(one.calls)),
        "neighbour_s": (len(tasks) - 1) * total([*received, *sent], lambda one: one.calls)
        if servers
        else 0.0,
        "frame_receive_s": total(received, lambda one: one.fused_calls),
        "frame_send_s": total(sent, lambda one: one.fused_calls),
        "frame_tensor_receive_s": total(received, lambda one: one.fused_tensors),
        "frame_tensor_send_s": total(sent, lambda one: one.fused_tensors),
        "receive_byte_s": total(received, lambda one: one.bytes - one.fused_bytes),
        "send_byte_s": total(sent, lambda one: one.bytes - one.fused_bytes),
        "frame_receive_byte_s": total(received, lambda one: one.fused_bytes - one.large_bytes),
        "frame_send_byte_s": total(sent, lambda one: one.fused_bytes - one.large_bytes),
        "large_receive_byte_s": total(received, lambda one: one.large_bytes),
        "large_send_byte_s": total(sent, lambda one: one.large_bytes),
    }


def relative_fit(rows: Any, measured: Any, known: Any = 0.0) -> list[float]:
    """Return the factors, 0 or more, whose sums have the least squares of relative errors."""
    from scipy import optimize

    matrix, target = np.asarray(rows, float), np.asarray(measured, float)
    largest = np.maximum(matrix.max(axis=0), 1e-30)
    found, _ = optimize.nnls(
        matrix / largest / target[:, None], (target - np.asarray(known)) / target
    )
    return [float(one) for one in found / largest]


def wall_errors(rates: Rates, probes: Sequence[Measured], cores: float) -> list[float]:
    """Return the logarithm of predicted over measured seconds of each probe."""
    errors = []
    for probe in probes:
        setting = Setting(probe.workers, cores, one_host=True, compute_scale=probe.compute_scale)
        steps, is_round = _STEPS, probe.workers > 1
        if is_round:
            steps = min(max(probe.round_steps, _STEPS), _MOST_STEPS)
        predicted = 1 / simulate(probe.graph, rates, setting, steps, is_round).steps_per_s
        errors.append(math.log(predicted / probe.seconds))
    return errors


def _fit_shared(rates: Rates, probes: Sequence[Measured], cores: float) -> Rates:
    """Fit how tasks share cores, one figure after the other, by the seconds of a step."""

    def loss(candidate: Rates) -> float:
        return float(np.mean(np.square(wall_errors(candidate, probes, cores))))

    for round_ in range(_ROUNDS):
        for name, (low, high) in _SHARED.items():
            width = (high - low) / 2**round_
            at = getattr(rates, name) if round_ else (low + high) / 2
            tries = np.clip(np.linspace(at - width / 2, at + width / 2, _TRIES), low, high)
            rates = min(
                (dataclasses.replace(rates, **{name: float(one)}) for one in tries), key=loss
            )
    return rates
