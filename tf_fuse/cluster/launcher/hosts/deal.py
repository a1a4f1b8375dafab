# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Deal the tasks of a job to hosts that ssh reaches."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Sequence

from ...task_process import ClusterStartError, Host
from . import ssh_task


def deal(hosts: Sequence[str], workers: int, servers: int) -> dict[str, Host]:
    """Deal tasks to hosts in turn: servers, then workers.

    Args:
      hosts: each as "host" or "user@host"; none if all tasks are to run on this machine.
      workers: number of workers.
      servers: number of parameter servers; if there are some, this machine runs the program.

    Returns:
      By task ("ps:0"), where it runs; none for this machine. "chief" is this machine's address.

    Raises:
      ClusterStartError: the first host is not known.
    """
    if not hosts:
        return {}
    names = [f"ps:{i}" for i in range(servers)] + [f"worker:{i}" for i in range(workers)]
    dealt = zip(names, itertools.cycle(hosts), strict=False)
    found = {name: Host(_address(host), ssh_task.prefix(host)) for name, host in dealt}
    if servers:
        found["chief"] = Host(_own_address(_address(hosts[0])))
    return found


def _address(host: str) -> str:
    """Return the name of a host without that of the user there."""
    return host.rpartition("@")[2]


def _own_address(host: str) -> str:
    """Return the address of this machine by which a host can reach it."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 22, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            own = probe.getsockname()[0]
    except OSError as error:
        raise ClusterStartError(f"the host {host!r} of --hosts cannot be found: {error}") from error
    return f"[{own}]" if family == socket.AF_INET6 else own
