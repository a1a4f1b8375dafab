# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find this process's task by TF_CONFIG."""

from __future__ import annotations

from ... import serve
from .place import COORDINATOR, EVALUATOR, Place, PlatformError


def find(text: str) -> Place:
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
    return Place("TF_CONFIG", cluster, config.job, config.index)
