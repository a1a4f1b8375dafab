# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find this process's task by TF_CONFIG."""

from __future__ import annotations

from ... import serve
from .platform_task import COORDINATOR, EVALUATOR, PlatformError, PlatformTask


def find(text: str) -> PlatformTask:
    """Return the task that TF_CONFIG describes."""
    try:
        config = serve.parse_tf_config(text, outside=(EVALUATOR,))
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
        cluster.pop(EVALUATOR, None)
    if "ps" in cluster and not {COORDINATOR, "master"} & set(cluster):
        raise PlatformError(
            f"TF_CONFIG has parameter servers and no coordinator: its cluster has the jobs "
            f"{sorted(cluster)}; add a task {COORDINATOR!r} (a TFJob: a replica type Chief)"
        )
    return PlatformTask("TF_CONFIG", cluster, config.job, config.index)


def check(task: PlatformTask, workers: int | None, servers: int | None, port: int | None) -> None:
    """Compare a task of TF_CONFIG with numbers of the command line; None for one that it lacks.

    TF_CONFIG may be one that the shell still has, while the command line means a whole job.

    Raises:
      PlatformError: a number is another one than TF_CONFIG's.
    """
    sizes = {job: len(tasks) for job, tasks in task.cluster.items()}
    # Without servers the coordinator is a worker, too.
    replicas = 0 if "ps" in sizes else sizes.get(COORDINATOR, 0) + sizes.get("master", 0)
    tasks = task.cluster.get(task.job, [])
    own = tasks[task.index].rpartition(":")[2] if task.index < len(tasks) else "none"
    for option, given, has in (
        ("--workers", workers, str(sizes.get("worker", 0) + replicas)),
        ("--ps", servers, str(sizes.get("ps", 0))),
        ("--port", port, own),
    ):
        if given is not None and str(given) != has:
            raise PlatformError(
                f"{option} is {given}, but by TF_CONFIG this process is the task "
                f"{task.job}:{task.index} of {task.cluster}, where that is {has}: leave out "
                f"{option} to run this task, or unset TF_CONFIG to start a job here"
            )
