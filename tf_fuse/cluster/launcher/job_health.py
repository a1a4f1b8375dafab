# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Answer probes for a program or a job: of what the launcher knows, not of the program's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..http_endpoints import HealthServer


class JobHealth(HealthServer):
    """Serves the health of what a launcher has started.

    | path | 200 | 503 |
    |---|---|---|
    | /healthz | the launcher runs | |
    | /readyz | the program runs | tasks start |
    | /metrics | the steps of each task that counts them: not of a program beside servers | |

    Attributes:
      has_started: whether the program runs.
    """

    def __init__(
        self, address: str, port: int, counter: str, counts: Callable[[], Mapping[str, int]]
    ):
        """Listen, and answer in threads of its own.

        Args:
          address: of the interface to listen on.
          port: where to listen; 0 for any free port.
          counter: what is counted, as `tf_fuse.metrics` names it.
          counts: returns the numbers so far, by task.

        Raises:
          OSError: the port is taken, or the address is not of this machine.
        """
        self._counter, self._counts = counter, counts
        super().__init__(address, port)

    def why_not_ready(self) -> str:
        """Return why the program does not run; "" if it does."""
        return "" if self.has_started else "the tasks have not started"

    def why_not_healthy(self) -> str:
        """Return "": who asks finds the launcher alive."""
        return ""

    def metrics(self) -> str:
        """Return the steps of each task, in Prometheus's text format; "" if no task counts any."""
        name = f"tf_fuse_{self._counter}_total"
        lines = [f'{name}{{task="{task}"}} {count}\n' for task, count in self._counts().items()]
        return "".join([f"# TYPE {name} counter\n", *lines]) if lines else ""
