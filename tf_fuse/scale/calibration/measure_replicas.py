# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measure all-reduces among processes of this machine, and fit what collectives cost."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tf_fuse.cluster import ports
from tf_fuse.cluster.child_process import PipedProcess, end_all
from tf_fuse.scale.calibration.fit import relative_fit
from tf_fuse.scale.collective_rates import STOCK, WAYS, CollectiveRates, WayRates
from tf_fuse.scale.errors import ScaleError
from tf_fuse.scale.replicas.job import DIRECT, RING, Setting, simulate
from tf_fuse.scale.replicas.step import Part, ReplicaStep

_JOB = Path(__file__).resolve().parent / "replica_job.py"
_REPLICAS = (2, 4)
# Bytes of all tensors, and calls.
_SIZES = ((64 << 10, 100), (4 << 20, 40), (32 << 20, 8))
_WAKES_S = (0.0, 1e-5, 3e-5, 1e-4, 2e-4, 4e-4, 8e-4)
_THREADS = (1.0, 1.25, 1.5, 2.0)
#: Jobs that `run_jobs` runs.
JOBS = tuple((way, replicas) for way in WAYS for replicas in _REPLICAS)


@dataclasses.dataclass(frozen=True)
class Measured:
    """An all-reduce that was measured."""

    replicas: int
    size: float
    seconds: float
    cpu_s: float


def run_jobs(on_job: Callable[[str], None]) -> dict[str, list[dict[str, Any]]]:
    """Measure all ways, with several numbers of replicas.

    Args:
      on_job: called with the name of each job that has ended.

    Returns:
      By way, what `Measured` has.

    Raises:
      ScaleError: a replica failed.
    """
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for way, replicas in JOBS:
        by_rank = _run_job(way, replicas)
        for number, (size, _) in enumerate(_SIZES):
            own = [results[number] for results in by_rank]
            one = Measured(
                replicas,
                float(size),
                max(one["seconds"] for one in own),
                statistics.fmean(one["cpu_s"] for one in own),
            )
            found[way].append(dataclasses.asdict(one))
        on_job(f"{way}, {replicas} replicas")
    return found


def _run_job(way: str, replicas: int) -> list[list[dict[str, Any]]]:
    held = ports.HeldPorts(replicas)
    processes = [PipedProcess(f"replica {rank}") for rank in range(replicas)]
    with tempfile.TemporaryDirectory(prefix="tf_fuse_calibrate_") as folder:
        try:
            addresses = [f"localhost:{port}" for port in held.numbers]
            for rank, process in enumerate(processes):
                settings = {"rank": rank, "addresses": addresses, "way": way, "sizes": _SIZES}
                command = [sys.executable, str(_JOB), json.dumps(settings)]
                process.start(command, os.environ, Path(folder) / f"{rank}")
            lines = []
            for rank, process in enumerate(processes):
                if not (line := process.receive()):
                    text = (Path(folder) / f"{rank}").read_text(errors="replace")[-1500:]
                    raise ScaleError(f"replica {rank} of {replicas} ({way}) failed: {text}")
                lines.append(json.loads(line))
            return lines
        finally:
            end_all(processes, 0.0)
            held.close()


def rates_of(results: dict[str, list[dict[str, Any]]]) -> tuple[CollectiveRates, list[float]]:
    """Fit what collectives cost.

    Args:
      results: what `run_jobs` returned.

    Returns:
      The rates; and how far each all-reduce's predicted time is from the measured one, as a share.
    """
    cores = float(os.cpu_count() or 1)
    ways, errors = {}, []
    for way, rows in results.items():
        measured = [Measured(**one) for one in rows]
        ways[way], own = _fit(way, measured, cores)
        errors += own
    return CollectiveRates(ways), errors


def _fit(way: str, measured: Sequence[Measured], cores: float) -> tuple[WayRates, list[float]]:
    features = []
    for one in measured:
        messages = 2 * (one.replicas - 1)
        features.append([1.0, messages, messages * one.size / one.replicas])
    found = WayRates(*relative_fit(features, [one.cpu_s for one in measured]))

    def candidates() -> Iterable[WayRates]:
        for wake_s in _WAKES_S:
            for threads in _THREADS:
                yield dataclasses.replace(found, wake_s=wake_s, threads=threads)

    def errors(rates: WayRates) -> list[float]:
        return [seconds_of(way, rates, one, cores) / one.seconds - 1 for one in measured]

    best = min(candidates(), key=lambda one: sum(math.log1p(e) ** 2 for e in errors(one)))
    return best, errors(best)


def seconds_of(way: str, rates: WayRates, one: Measured, cores: float) -> float:
    """Return what a simulated all-reduce takes on one host."""
    nothing = Part(0.0)
    step = ReplicaStep("", one.size, 1, nothing, nothing, nothing)
    # Whatever the way, on one host: so all messages have its costs.
    all_ways = CollectiveRates(dict.fromkeys(WAYS, rates))
    setting = Setting(one.replicas, 1, cores, algorithm=RING if way == STOCK else DIRECT)
    return simulate(step, "stock" if way == STOCK else "fused", all_ways, setting).step_s
