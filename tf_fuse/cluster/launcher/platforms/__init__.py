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

The environment is read here, before TensorFlow is imported: a mistake is named at once, probes are
answered while TensorFlow loads, and the process that watches a program never loads it. Servers and
programs then read TF_CONFIG by TensorFlow's own `TFConfigClusterResolver`, with the protocol.
Tests compare what is read here with that class, and with `SlurmClusterResolver`.

| module | does |
|---|---|
| `tf_config`, `slurm`, `kubernetes` | read the environment |
| `platform_task` | deals tasks that are only counted |
| `task` | runs this process's task |
"""

from __future__ import annotations

from collections.abc import Mapping

from . import kubernetes, slurm, tf_config
from .platform_task import COORDINATOR, PlatformError, PlatformTask

__all__ = ["COORDINATOR", "PlatformError", "PlatformTask", "find_task"]


def find_task(
    environ: Mapping[str, str],
    workers: int | None,
    servers: int | None,
    port: int | None = None,
) -> PlatformTask | None:
    """Find this process's task in a job.

    Args:
      environ: the environment.
      workers: number of workers; None for all tasks that are left.
      servers: number of parameter servers; None for those of TF_CONFIG, or workers alone.
      port: the first one on each host; None for that of the platform.

    Returns:
      The task; None if no platform has started this process.

    Raises:
      PlatformError: the platform has started other tasks than those, or does not say enough.
    """
    if environ.get("TF_CONFIG"):
        place = tf_config.find(environ["TF_CONFIG"])
        tf_config.check(place, workers, servers, port)
        return place
    servers = servers or 0
    if slurm.has_started_several(environ):
        return slurm.find(environ, workers, servers, port)
    if kubernetes.has_started(environ):
        return kubernetes.find(environ, workers, servers, port)
    return None
