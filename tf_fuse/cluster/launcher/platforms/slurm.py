# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find this process's task by Slurm's environment.

TensorFlow's `SlurmClusterResolver` gives the same cluster where it can. By itself it cannot: it
sorts hosts by name, n10 before n9, while Slurm counts tasks in the order of the nodes, so that
tasks get the addresses of others; it does not read lists such as "r[0-1]n[1-2]"; and without GPUs
it fails. Given all of that it counts ports, for which each program's launcher would import
TensorFlow: 3.3 s and 220 MB (two cores, median of four).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from typing import Final

from .platform_task import PlatformError, PlatformTask, deal, number

_PORT: Final = 8888


def has_started_several(environ: Mapping[str, str]) -> bool:
    """Return whether Slurm has started this process as one of several."""
    name = "SLURM_STEP_NUM_TASKS"
    return name in environ and number(environ, name) > 1


def find(
    environ: Mapping[str, str], workers: int | None, servers: int, port: int | None
) -> PlatformTask:
    """Return the task that `srun` has started; see `find_task`."""
    port = port or _PORT
    hosts = _hosts(environ.get("SLURM_STEP_NODELIST", ""))
    counts = _counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    rank = number(environ, "SLURM_PROCID")
    if len(hosts) != len(counts) or rank >= sum(counts):
        raise PlatformError(
            f"Slurm's task {rank} is not one of those that SLURM_STEP_TASKS_PER_NODE says, "
            f"{counts} on the hosts {hosts}"
        )
    addresses = [
        f"{host}:{port + i}"
        for host, count in zip(hosts, counts, strict=True)
        for i in range(count)
    ]
    here = environ.get("SLURMD_NODENAME")
    host = addresses[rank].rpartition(":")[0]
    if here not in (None, host):
        raise PlatformError(
            f"Slurm's task {rank} is on {here}, but in the order of the nodes it would be on "
            f"{host}: start the tasks with srun --distribution=block"
        )
    return deal("Slurm", addresses, rank, workers, servers, "srun --ntasks")


def _hosts(nodes: str) -> list[str]:
    """Return the hosts of a list of nodes, such as "n[9-10],m1".

    Of a list that scontrol cannot read it returns none, with the status 0.
    """
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise PlatformError(f"{' '.join(command)} failed: {said.strip()}") from error
    if not done.stdout.split():
        raise PlatformError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout.split()


def _counts(text: str) -> list[int]:
    """Return the numbers of tasks by node, of a text such as "2(x3),1"."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise PlatformError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}; expected as in '2(x3),1'")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts
