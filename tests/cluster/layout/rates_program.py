# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One of two processes that measure the rates of their mesh, each by a clock of its own.

    rates_program.py NUMBER JOBS

JOBS are the addresses of all processes, separated by commas. Each gives the rates.
"""

from __future__ import annotations

import dataclasses
import sys
import time
import warnings

from tests.cluster.layout import processes as layout_processes
from tf_fuse import layout
from tf_fuse.layout.profile import measure_rates, probe_runner

NUMBER, JOBS = int(sys.argv[1]), sys.argv[2]


def clock() -> float:
    return time.perf_counter() * (1 + 9 * NUMBER)


def main() -> None:
    mesh = layout.Mesh({"x": 2})
    devices = layout_processes.begin(mesh, NUMBER, JOBS)
    # So few rounds on a machine with other work may vary by any amount.
    warnings.simplefilter("ignore", UserWarning)
    bench = probe_runner.ExecutionBench(mesh, devices)
    rates = measure_rates.measure(mesh, bench, rounds=2, clock=clock).rates
    found = {
        "mesh": str(rates.mesh),
        "link": dataclasses.astuple(dict(rates.links)["x"]),
        "compute": [rates.seconds_per_flop, rates.seconds_per_byte, rates.seconds_per_operation],
        "overlap": rates.overlap,
    }
    layout_processes.end(NUMBER, found)


if __name__ == "__main__":
    main()
