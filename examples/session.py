# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The caller's side of `examples/job.py`, or its like: one mode of a comparison, as an object.

Each session is a process with a cluster of its own, idle between rounds. So the modes of a
comparison can be warm at the same time and run in turn: A B A B.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from examples import standalone

_GRACE_S = 20.0
_LAST_WORDS_S = 5.0
_ROOT = Path(__file__).resolve().parent.parent
OnEvent = Callable[[dict[str, Any]], None]


class SessionError(RuntimeError):
    """The session's process failed; the text has its own error and the end of its stderr."""


class Session:
    """A mode's process.

    Attributes:
      mode: "stock", "fused", "count" or "local".
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        *,
        env: Mapping[str, str] | None = None,
        on_event: OnEvent | None = None,
        program: Path = _ROOT / "examples" / "job.py",
    ):
        """Start the process, and return at once: `wait_ready` waits.

        Args:
          spec: see `examples.job.run`; "mode" is the session's name.
          env: environment variables added to this process's.
          on_event: called with each event as it comes, for progress.
          program: gets the specification and takes commands, as `examples/job.py`.
        """
        self.mode = spec["mode"]
        self._on_event = on_event
        self._stderr = tempfile.NamedTemporaryFile()  # noqa: SIM115 (closed by close)
        self._children = standalone.cluster_package().child_process
        self._process = self._children.PipedProcess(f"mode {self.mode}")
        prefix = spec.get("hosts", {}).get("chief", {}).get("command", [])
        self._process.start(
            [*prefix, sys.executable, str(program), json.dumps(dict(spec))],
            {**os.environ, **(env or {})},
            Path(self._stderr.name),
            _ROOT,
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def wait_ready(self) -> dict[str, Any]:
        """Wait until cluster and program stand; the event tells whether the plugin is loaded.

        Raises:
          SessionError: the process failed.
        """
        return self._await("ready")

    def run(self, steps: int, progress: bool = False) -> dict[str, Any]:
        """Run steps.

        Args:
          steps: how many, all workers together.
          progress: have "steps" events on the way; the workers then pause at each.

        Returns:
          `Round.as_dict()` and the event's name.

        Raises:
          SessionError: the process failed.
        """
        self._send({"run": steps, "progress": progress})
        return self._await("round")

    def evaluate(self) -> dict[str, Any]:
        """Loss, AUC and rows of the evaluation set, with the present weights.

        Raises:
          SessionError: the process failed.
        """
        self._send({"evaluate": True})
        return self._await("evaluation")

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Task to its counters, as `tf_fuse.cluster_metrics`; empty where the plugin is not loaded.

        Raises:
          SessionError: the process failed.
        """
        self._send({"metrics": True})
        return self._await("metrics")["tasks"]

    def placement(self) -> dict[str, int]:
        """Device to the bytes of the variables on it.

        Raises:
          SessionError: the process failed.
        """
        self._send({"placement": True})
        return self._await("placement")["bytes"]

    def close(self) -> None:
        """End the process, and with it the cluster; may be repeated."""
        self._children.end_all([self._process], _GRACE_S)
        self._stderr.close()

    def _send(self, command: Mapping[str, Any]) -> None:
        try:
            self._process.send(json.dumps(command))
        except BrokenPipeError:
            raise self._failure(None) from None

    def _await(self, wanted: str) -> dict[str, Any]:
        for line in self._process.lines():
            if not line.startswith('{"event": '):
                continue  # something a library printed
            event = json.loads(line)
            if event["event"] == "error":
                raise self._failure(event)
            if self._on_event:
                self._on_event(event)
            if event["event"] == wanted:
                return event
        raise self._failure(None)

    def _failure(self, event: Mapping[str, Any] | None) -> SessionError:
        said = f": {event['text']}" if event else ""
        ended = self._children.first_to_end([self._process.pid], _LAST_WORDS_S) != 0
        status = self._process.wait() if ended else None
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").splitlines()
        tail = "\n".join(deque(lines, maxlen=30))
        trace = event["traceback"] if event else ""
        return SessionError(f"mode {self.mode} failed (exit status {status}){said}\n{trace}{tail}")
