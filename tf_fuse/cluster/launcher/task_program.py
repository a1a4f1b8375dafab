# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The user's program, as one task of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..child_process import ChildProcess
from .guardian import Guardian


class TaskProgram(ChildProcess):
    """A program that runs, and ends with this process, as all that it starts."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        variables: Mapping[str, str],
        log: Path | None,
        guardian: Guardian,
        pass_fds: Sequence[int] = (),
    ):
        """Start it.

        Args:
          name: of the task, "job:index".
          command: its command line.
          variables: what is added to the environment of this process.
          log: takes its output; None for that of this process.
          guardian: of the job.
          pass_fds: file descriptors that it inherits.
        """
        super().__init__(name)
        self._guardian = guardian
        self.run(command, {**os.environ, **guardian.variables, **variables}, log, pass_fds)
        guardian.watch(self.pid)

    def wait(self) -> int:
        """Wait for its end; kill what is left of its group; return its status."""
        had_ended = self.process.returncode is not None
        status = super().wait()
        if not had_ended:
            self._guardian.forget(self.pid)
        return status


def exit_status(code: int) -> int:
    """Return the exit status of a shell for the return code of a process of Python."""
    return code if code >= 0 else 128 - code
