# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measure the probes on this machine, in one process and on small local clusters, and fit rates."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tf_fuse.cluster.child_process import PipedProcess
from tf_fuse.scale.calibration import probe_programs
from tf_fuse.scale.calibration.fit import Measured, fit, local_rates, wall_errors
from tf_fuse.scale.calibration.probe_job import ROUNDS
from tf_fuse.scale.errors import ScaleError
from tf_fuse.scale.rates import Rates
from tf_fuse.scale.steps.step_graph import StepGraph
from tf_fuse.scale.steps.trace import TracedStep, recorded_variables, trace

_JOB = Path(__file__).resolve().parent / "probe_job.py"
_ALL = tuple(probe_programs.PROBES)
_FEW = ("nothing", "lookups_30", "lookups_250", "layers")
_TIMEOUT_S = 300


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of probes.

    Attributes:
      mode: "local", "stock" or "fused".
      workers: of its cluster.
      ps: servers of it.
      probes: that it runs, one after the other.
    """

    mode: str
    workers: int = 1
    ps: int = 2
    probes: Sequence[str] = _ALL

    @property
    def name(self) -> str:
        """For people."""
        return self.mode if self.mode == "local" else f"{self.mode} {self.workers}x{self.ps}"


_IN_ORDER = (
    Job("local"),
    *(Job(mode, 1, 2) for mode in ("stock", "fused")),
    *(Job(mode, 4, 2, _FEW) for mode in ("stock", "fused")),
    *(Job(mode, 2, 4, _FEW) for mode in ("stock", "fused")),
)
# There and back: a machine that becomes slower meanwhile slows all jobs alike.
JOBS = (*_IN_ORDER, *reversed(_IN_ORDER))


def run_jobs(jobs: Iterable[Job], on_probe: Callable[[Job, str], None]) -> dict[str, Any]:
    """Run jobs one after the other.

    Args:
      jobs: what to measure.
      on_probe: called with each job and probe that has ended.

    Returns:
      What `probe_job.run` returns, by the job's name; means of those that run several times.

    Raises:
      ScaleError: a job failed.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        found.setdefault(job.name, []).append(_run_job(job, on_probe))
    return {
        name: {probe: _mean([run[probe] for run in runs]) for probe in runs[0]}
        for name, runs in found.items()
    }


def _mean(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of what runs of one probe took."""
    return {
        "seconds": statistics.mean(run["seconds"] for run in runs),
        "cpu_s": {
            role: statistics.mean(run["cpu_s"][role] for run in runs) for role in runs[0]["cpu_s"]
        },
        "steps": runs[0]["steps"],
    }


def _run_job(job: Job, on_probe: Callable[[Job, str], None]) -> dict[str, Any]:
    settings = dataclasses.asdict(job)
    with tempfile.TemporaryDirectory(prefix="tf_fuse_calibrate_") as folder:
        result, errors = Path(folder) / "result.json", Path(folder) / "stderr"
        process = PipedProcess(job.name)
        command = [sys.executable, str(_JOB), json.dumps(settings), str(result)]
        process.start(command, os.environ, errors)
        try:
            for line in process.lines():
                on_probe(job, line.strip())
            status = process.wait()
        finally:
            process.kill()
        if status != 0:
            text = errors.read_text(errors="replace")[-1500:]
            raise ScaleError(f"the job {job.name} ended with exit status {status}: {text}")
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def traced_probe(name: str) -> TracedStep:
    """Trace a probe in this process."""
    with recorded_variables() as variables:
        step = probe_programs.build(name)
    return trace(name, step, (iter(probe_programs.numbers()),), variables)


def rates_of(results: dict[str, Any], jobs: Iterable[Job] = JOBS) -> tuple[Rates, list[float]]:
    """Fit rates to what was measured.

    Args:
      results: what `run_jobs` returned.
      jobs: that it ran.

    Returns:
      The rates; and for each probe of a cluster, how far its predicted time is from the measured
      one, as a share.
    """
    cores = float(os.cpu_count() or 1)
    graphs: dict[tuple[str, int], tuple[StepGraph, StepGraph]] = {}
    traced = {name: traced_probe(name) for name in _ALL}
    for job in jobs:
        for name in job.probes:
            if (name, job.ps) not in graphs:
                graphs[name, job.ps] = traced[name].on(job.ps, one_host=True)
    local_cpu = {name: results["local"][name]["cpu_s"]["coordinator"] for name in _ALL}
    local = local_rates([graphs[name, 2][0] for name in _ALL], [local_cpu[n] for n in _ALL])
    zero = {field.name: 0.0 for field in dataclasses.fields(Rates)}
    base = Rates(**{**zero, **local})
    probes = []
    for job in jobs:
        if job.mode == "local":
            continue
        for name in job.probes:
            stock, fused = graphs[name, job.ps]
            one = results[job.name][name]
            probes.append(
                Measured(
                    f"{job.name} {name}",
                    fused if job.mode == "fused" else stock,
                    job.workers,
                    job.mode == "fused",
                    base.compute_scale(stock, local_cpu[name]),
                    one["seconds"],
                    one["cpu_s"],
                    one["steps"] // ROUNDS,
                )
            )
    rates = fit(probes, local, cores)
    return rates, wall_errors(rates, probes, cores)
