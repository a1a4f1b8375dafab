# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find out which task of a job this process is, where Slurm or Kubernetes has started it.

| platform | known by | addresses of the tasks |
|---|---|---|
| any, as Kubeflow's TFJob | TF_CONFIG | those of TF_CONFIG |
| Slurm | `srun`, with several tasks | on each node, ports from 8888 on |
| Kubernetes | an Indexed Job, also one of a JobSet or TrainJob | on each pod, port 2222 |

An evaluator of TF_CONFIG runs the program, too, and is left out of the cluster of all tasks.

Slurm's tasks, and the pods of one Indexed Job, are in turn the coordinator, the servers and the
workers. A JobSet can have a job for each, named `chief`, `ps` and `worker`.

TensorFlow's `SlurmClusterResolver` does not do: it sorts hosts by name (n10 before n9) while Slurm
counts tasks in the order of the nodes, so that tasks get the addresses of others; and without GPUs
it fails (`range() arg 3 must not be zero`).
"""

from __future__ import annotations

import dataclasses
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from .. import serve

COORDINATOR: Final = "chief"
_EVALUATOR = "evaluator"
_SLURM_PORT = 8888
_KUBERNETES_PORT = 2222


class PlatformError(ValueError):
    """What the platform says does not fit the job; the text says what to change."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A task of a job that a platform has started.

    Attributes:
      platform: its name, for messages.
      cluster: job name to the addresses of its tasks.
      job, index: this process's task; "evaluator" is not in the cluster.
    """

    platform: str
    cluster: dict[str, list[str]]
    job: str
    index: int

    @property
    def is_server(self) -> bool:
        """Whether this task serves, while another one runs the program."""
        return "ps" in self.cluster and self.job in ("ps", "worker")

    @property
    def is_replica(self) -> bool:
        """Whether this task runs the program as one of several that train together."""
        return "ps" not in self.cluster and self.job in self.cluster and self.job != _EVALUATOR


def find_place(
    environ: Mapping[str, str], workers: int | None, servers: int, port: int | None = None
) -> Place | None:
    """Find this process's place in a job.

    Args:
      environ: the environment.
      workers: number of workers; None for all tasks that are left.
      servers: number of parameter servers; 0 for workers alone.
      port: the first one on each host; None for that of the platform.

    Returns:
      The place; None if no platform has started this process.

    Raises:
      PlatformError: the platform has started other tasks than those, or does not say enough.
    """
    if environ.get("TF_CONFIG"):
        return _of_tf_config(environ["TF_CONFIG"])
    if "SLURM_STEP_NUM_TASKS" in environ and _number(environ, "SLURM_STEP_NUM_TASKS") > 1:
        return _of_slurm(environ, workers, servers, port or _SLURM_PORT)
    if "KUBERNETES_SERVICE_HOST" in environ and "JOB_COMPLETION_INDEX" in environ:
        return _of_kubernetes(environ, workers, servers, port or _KUBERNETES_PORT)
    return None


def _of_tf_config(text: str) -> Place:
    try:
        config = serve.parse_tf_config(text, outside=(_EVALUATOR,))
    except serve.ConfigError as error:
        raise PlatformError(str(error)) from error
    for job, tasks in config.cluster.items():
        if sorted(tasks) != list(range(len(tasks))):
            raise PlatformError(
                f'TF_CONFIG["cluster"]["{job}"] has the indices {sorted(tasks)}; expected 0 to '
                f"{len(tasks) - 1}"
            )
    cluster = {job: [tasks[i] for i in sorted(tasks)] for job, tasks in config.cluster.items()}
    # It runs the program beside the training. A TFJob names it in the cluster, whose coordinator
    # would connect to it, and wait.
    if len(cluster) > 1:
        cluster.pop(_EVALUATOR, None)
    if "ps" in cluster and not {COORDINATOR, "master"} & set(cluster):
        raise PlatformError(
            f"TF_CONFIG has parameter servers and no coordinator: its cluster has the jobs "
            f"{sorted(cluster)}; add a task {COORDINATOR!r} (a TFJob: a replica type Chief)"
        )
    return Place("TF_CONFIG", cluster, config.job, config.index)


def _of_slurm(environ: Mapping[str, str], workers: int | None, servers: int, port: int) -> Place:
    hosts = _slurm_hosts(environ.get("SLURM_STEP_NODELIST", ""))
    counts = _slurm_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    rank = _number(environ, "SLURM_PROCID")
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
    return _place("Slurm", addresses, rank, workers, servers, "srun --ntasks")


def _slurm_hosts(nodes: str) -> list[str]:
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


def _slurm_counts(text: str) -> list[int]:
    """Return the numbers of tasks by node, of a text such as "2(x3),1"."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise PlatformError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}; expected as in '2(x3),1'")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _of_kubernetes(
    environ: Mapping[str, str], workers: int | None, servers: int, port: int
) -> Place:
    index = _number(environ, "JOB_COMPLETION_INDEX")
    name = environ.get("HOSTNAME") or socket.gethostname()
    domain = _domain(name)
    if workers is None:
        raise PlatformError("Kubernetes does not say how many tasks the job has: give --workers")
    base = name.removesuffix(f"-{index}")
    if base == name or not domain:
        raise PlatformError(
            f"this pod is the task {index} of an Indexed Job, but its full host name is "
            f"{name + domain!r}, not NAME-{index}.SUBDOMAIN: give the pods the subdomain of a "
            "headless Service"
        )
    found = re.fullmatch(r"(.+)-(chief|ps|worker)-0", base)
    if found is None:
        count = workers + servers + (servers > 0)
        pods = [f"{base}-{i}" for i in range(count)]
        addresses = [f"{pod}{domain}:{port}" for pod in pods]
        return _place("Kubernetes", addresses, index, workers, servers, "completions")
    # A JobSet has a job for each role, whose pods count from 0.
    sizes = {COORDINATOR: 1, "ps": servers, "worker": workers} if servers else {"worker": workers}
    job = found[2]
    cluster = {
        one: [f"{found[1]}-{one}-0-{i}{domain}:{port}" for i in range(size)]
        for one, size in sizes.items()
    }
    size = len(cluster.get(job, ()))
    if index >= size:
        raise PlatformError(
            f"this pod is the task {index} of {job!r}, but by --workers and --ps that job has "
            f"{size} tasks: give the numbers of the JobSet"
        )
    return Place("Kubernetes", cluster, job, index)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not re.fullmatch("[0-9]+", text):
        raise PlatformError(f"{name} is {text!r}; expected a whole number")
    return int(text)


def _domain(name: str) -> str:
    """Return what a pod's full name has after its own one, with the dot."""
    full = socket.getfqdn(name)
    return full[len(name) :] if full.startswith(f"{name}.") else ""


def _place(
    platform: str,
    addresses: Sequence[str],
    rank: int,
    workers: int | None,
    servers: int,
    option: str,
) -> Place:
    """Deal tasks that are only counted: the coordinator, then servers, then workers."""
    before = servers + (servers > 0)
    workers = len(addresses) - before if workers is None else workers
    if workers < 1 or before + workers != len(addresses) or rank >= len(addresses):
        more = f", {servers} server(s) and a program" if servers else ""
        raise PlatformError(
            f"{platform} has started {max(len(addresses), rank + 1)} tasks, but {workers} "
            f"worker(s){more} are {before + workers}: change {option}, or --workers and --ps"
        )
    first = 1 if servers else 0
    cluster = {"worker": list(addresses[before:])}
    if servers:
        cluster |= {COORDINATOR: [addresses[0]], "ps": list(addresses[first:before])}
    if rank >= before:
        return Place(platform, cluster, "worker", rank - before)
    return Place(platform, cluster, *((COORDINATOR, 0) if rank == 0 else ("ps", rank - 1)))
