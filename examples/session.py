# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The caller's side of `examples/job.py`: one mode of a comparison, as an object.

Each session is a process with a cluster of its own, idle between rounds. So the modes of a
comparison can be warm at the same time and run in turn: A B A B.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

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
    ):
        """Starts the process, and returns at once: `wait_ready` waits.

        Args:
          spec: see `examples.job.run`.
          env: environment variables added to this process's.
          on_event: called with each event as it comes, for progress.
        """
        self.mode = spec["mode"]
        self._on_event = on_event
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        prefix = spec.get("hosts", {}).get("chief", {}).get("command", [])
        self._process = subprocess.Popen(
            [*prefix, sys.executable, str(_ROOT / "examples" / "job.py"), json.dumps(dict(spec))],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, **(env or {})},
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
        """Waits until cluster and program stand; the event tells whether the plugin is loaded.

        Raises:
          SessionError: the process failed.
        """
        return self._await("ready")

    def run(self, steps: int, progress: bool = False) -> dict[str, Any]:
        """Runs steps.

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
        """Ends the process, and with it the cluster; may be repeated."""
        if self._process.stdin and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._stderr.close()

    def _send(self, command: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None  # opened as a pipe
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure(None) from None

    def _await(self, wanted: str) -> dict[str, Any]:
        assert self._process.stdout is not None  # opened as a pipe
        for line in self._process.stdout:
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
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").splitlines()
        tail = "\n".join(deque(lines, maxlen=30))
        trace = event["traceback"] if event else ""
        return SessionError(
            f"mode {self.mode} failed (exit status {self._process.poll()}){said}\n{trace}{tail}"
        )
