# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A job of `tf-fuse launch`, whose lines are read with their times."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
COMMAND = (sys.executable, "-m", "tf_fuse", "launch")


class LaunchedJob:
    """A launcher, as a process, and what it has written.

    Attributes:
      process: the launcher.
      lines: of its output, each with the time (of `time.monotonic`) at which it came.
    """

    def __init__(self, folder: Path, *arguments: Any, prefix: Sequence[Any] = (), **variables: Any):
        """Starts it.

        Args:
          folder: for temporary logs.
          arguments: of `tf-fuse launch`.
          prefix: what to put before the command.
          variables: added to the environment.
        """
        env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        env |= {"PYTHONPATH": os.fspath(ROOT), "TMPDIR": os.fspath(folder)}
        env["GRPC_FAIL_FAST"] = "use_caller"
        self.process = subprocess.Popen(
            [str(word) for word in (*prefix, *COMMAND, *arguments)],
            env={**env, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[tuple[float, str]] = []

    @property
    def output(self) -> str:
        """All that has been read."""
        return "".join(line for _, line in self.lines)

    def read_until(self, text: str, after: float = 0.0) -> float:
        """Reads to the next line with this text that comes after a moment; returns its time.

        Raises:
          AssertionError: the output has ended without one.
        """
        assert self.process.stdout is not None  # opened as a pipe
        for line in self.process.stdout:
            now = time.monotonic()
            self.lines.append((now, line))
            if text in line and now > after:
                return now
        raise AssertionError(f"no line has {text!r}:\n{self.output}")

    def end(self) -> tuple[int, float]:
        """Reads to the end; returns the exit status, and when that was there."""
        assert self.process.stdout is not None  # opened as a pipe
        self.lines += [(time.monotonic(), line) for line in self.process.stdout]
        return self.process.wait(), time.monotonic()
