# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A task of a job that a platform has started, and how tasks that are only counted are dealt."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Final

COORDINATOR: Final = "chief"
EVALUATOR: Final = "evaluator"


class PlatformError(ValueError):
    """What the platform says does not fit the job; the text says what to change."""


@dataclasses.dataclass(frozen=True)
class PlatformTask:
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
        return "ps" not in self.cluster and self.job in self.cluster and self.job != EVALUATOR


def number(environ: Mapping[str, str], name: str) -> int:
    """Return a variable of the environment as a whole number."""
    text = environ.get(name, "")
    if not re.fullmatch("[0-9]+", text):
        raise PlatformError(f"{name} is {text!r}; expected a whole number")
    return int(text)


def deal(
    platform: str,
    addresses: Sequence[str],
    rank: int,
    workers: int | None,
    servers: int,
    option: str,
) -> PlatformTask:
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
        return PlatformTask(platform, cluster, "worker", rank - before)
    return PlatformTask(platform, cluster, *((COORDINATOR, 0) if rank == 0 else ("ps", rank - 1)))
