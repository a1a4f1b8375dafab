# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find this process's task by the environment of a pod."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import Final

from .platform_task import COORDINATOR, PlatformError, PlatformTask, deal, number

_PORT: Final = 2222


def has_started(environ: Mapping[str, str]) -> bool:
    """Return whether an Indexed Job has started this process."""
    return "KUBERNETES_SERVICE_HOST" in environ and "JOB_COMPLETION_INDEX" in environ


def find(
    environ: Mapping[str, str], workers: int | None, servers: int, port: int | None
) -> PlatformTask:
    """Return the task of this pod; see `find_task`."""
    port = port or _PORT
    index = number(environ, "JOB_COMPLETION_INDEX")
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
        return deal("Kubernetes", addresses, index, workers, servers, "completions")
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
    return PlatformTask("Kubernetes", cluster, job, index)


def _domain(name: str) -> str:
    """Return what a pod's full name has after its own one, with the dot."""
    full = socket.getfqdn(name)
    return full[len(name) :] if full.startswith(f"{name}.") else ""
