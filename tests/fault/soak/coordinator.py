# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The process of a soak test's coordinator (`job.py`), seen from the test."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[3]
_JOB = Path(__file__).with_name("job.py")
_ANSWER_S = 180.0
_ASK_S = 30.0  # for an answer that needs no executor
_STACKS_S = 120.0


class SoakError(RuntimeError):
    """The test could not go on; the text has what the coordinator wrote last."""


class HangError(SoakError):
    """The coordinator said nothing for a long time; the text has the stacks of its threads.

    Attributes:
      waiting: `tf_fuse.cluster_waiting()` of that moment; None if it was not to be had.
      stacks: task to the C++ stacks of its threads of that moment.
    """

    def __init__(
        self, text: str, waiting: Mapping[str, Any] | None, stacks: Mapping[str, str] | None = None
    ):
        """Takes the text, what waited, and the stacks."""
        super().__init__(text)
        self.waiting = waiting
        self.stacks = dict(stacks or {})


class Coordinator:
    """A process of `job.py`."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        env: Mapping[str, str],
        pids: Callable[[], Mapping[str, int]] = dict,
    ):
        """Starts it.

        Args:
          spec: of `job.py`.
          env: its environment.
          pids: the processes whose stacks are of interest when it hangs.
        """
        self._pids = pids
        self._mode = spec.get("mode", "stock")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._process = subprocess.Popen(
            [sys.executable, str(_JOB), json.dumps(dict(spec))],
            cwd=_ROOT,
            env={**env, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            process_group=0,
        )
        self.pid = self._process.pid
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, **command: Any) -> None:
        """Sends a command."""
        assert self._process.stdin  # opened as a pipe
        with contextlib.suppress(BrokenPipeError):  # its last event says why
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()

    def event(self) -> dict[str, Any]:
        """The next event.

        Raises:
          SoakError: the process ended.
          HangError: it said nothing for a long time, and was ended.
        """
        with contextlib.suppress(queue.Empty):
            if (event := self._events.get(timeout=_ANSWER_S)) is not None:
                return event
            raise SoakError(f"the coordinator ended:\n{self._tail()}")
        waiting = None
        if self._mode != "stock":
            self.send(waiting=True)
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=_ASK_S)
                if event and event["event"] == "waiting":
                    waiting = event["tasks"]
        all_stacks = {task: stacks(pid) for task, pid in sorted(self._pids().items())}
        self._process.send_signal(signal.SIGABRT)  # it writes the stacks of its threads
        self._process.wait()
        raise HangError(f"the coordinator hangs:\n{self._tail()}", waiting, all_stacks)

    def ask(self, wanted: str, **command: Any) -> dict[str, Any]:
        """Sends a command and returns the event that answers it.

        Raises:
          SoakError: another event came.
        """
        self.send(**command)
        return self.expect(wanted)

    def expect(self, wanted: str) -> dict[str, Any]:
        """The next event, which must be this one; else SoakError."""
        event = self.event()
        if event["event"] != wanted:
            raise SoakError(f"expected {wanted!r}, got {event}:\n{self._tail()}")
        return event

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _read(self) -> None:
        assert self._process.stdout  # opened as a pipe
        for line in self._process.stdout:
            if line.startswith('{"event": '):
                self._events.put(json.loads(line))
        self._events.put(None)

    def _tail(self) -> str:
        self._process.wait(timeout=20)
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-6000:]


def stacks(pid: int) -> str:
    """The C++ stacks of a process' threads; or why there are none."""
    if not (gdb := shutil.which("gdb")):
        return "no gdb here"
    command = [gdb, "-p", str(pid), "-batch", "-ex", "thread apply all bt 30"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_STACKS_S)
    except subprocess.TimeoutExpired:
        return f"gdb took more than {_STACKS_S:.0f} s"
    return done.stdout or done.stderr


def environment() -> dict[str, str]:
    """The environment of all processes."""
    return {
        **{k: v for k, v in os.environ.items() if k != "TF_CONFIG"},
        "GRPC_FAIL_FAST": "use_caller",  # a dead server is an error, nothing to wait for
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_FUSE_CHANNEL_FRAME_BYTES": "1",
        "TF_FUSE_COLLECTIVE_PATHS": "shm,tcp,grpc",
        "CUDA_VISIBLE_DEVICES": "-1",
        "no_proxy": "localhost,127.0.0.1",
        "NO_PROXY": "localhost,127.0.0.1",
    }
