# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run `tf-fuse calibrate`: measure what steps cost on this machine, for `plan-cluster`."""

from __future__ import annotations

import math
import os
import platform
import sys
from importlib import metadata
from typing import Any

import numpy as np
from rich.progress import Progress

from tf_fuse._console import open_console
from tf_fuse.cli.scale import packages
from tf_fuse.scale.errors import ScaleError

#: Where both commands expect the costs.
DEFAULT_PATH = "~/.cache/tf_fuse/costs.json"


def run(out: str | None) -> int:
    """Measure for about seven minutes, and write a file; return the exit status.

    Args:
      out: the file; None for the usual place.

    Returns:
      0; or 1, with a message on standard error.
    """
    if missing := packages.missing("simpy", "scipy"):
        print(f"tf-fuse: error: {missing}", file=sys.stderr)
        return 1
    from tf_fuse.scale.calibration import measure, measure_replicas
    from tf_fuse.scale.rates import save_rates

    path = os.path.expanduser(out or DEFAULT_PATH)
    total = sum(len(job.probes) for job in measure.JOBS) + len(measure_replicas.JOBS)
    console = open_console()
    try:
        with Progress(console=console) as progress:
            bar = progress.add_task("measuring", total=total)

            def on_probe(job: measure.Job, probe: str) -> None:
                progress.update(bar, advance=1, description=f"{job.name}: {probe}")

            results = measure.run_jobs(measure.JOBS, on_probe)
            reduced = measure_replicas.run_jobs(
                lambda job: progress.update(bar, advance=1, description=f"all-reduces: {job}")
            )
        console.print("fitting the costs")
        rates, errors = measure.rates_of(results)
        collectives, more = measure_replicas.rates_of(reduced)
        errors += [math.log1p(one) for one in more]
        probes = {"probes": results, "collectives": reduced}
        save_rates(rates, path, {**_machine(), **probes}, collectives)
    except (ScaleError, OSError) as error:
        print(f"tf-fuse: error: {error}", file=sys.stderr)
        return 1
    shares = np.abs(np.expm1(errors))
    console.print(
        f"{len(shares)} probes predicted again: median error {np.median(shares):.1%}, worst "
        f"{shares.max():.1%}",
        highlight=False,
    )
    console.print(f"costs: {path}", highlight=False, soft_wrap=True)
    return 0


def _machine() -> dict[str, Any]:
    version = None
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "tensorflow": version,
    }
