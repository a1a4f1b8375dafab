# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a program as the first process of a container is run: in a PID namespace of its own."""

import shutil
import subprocess
from typing import Final

_AS_ROOT: Final = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
# Who is not root must be so in a namespace of users.
_AS_USER: Final = (*_AS_ROOT, "--user", "--map-root-user")


def _why_not(command: tuple[str, ...]) -> str:
    """Return what keeps a command from making a namespace; "" if it makes one."""
    if not shutil.which(command[0]):
        return f"{command[0]} is not installed"
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    return done.stderr.strip() or f"status {done.returncode}" if done.returncode else ""


def _choose() -> tuple[tuple[str, ...], str]:
    """Return the command of a user who may make namespaces, and why this one may not."""
    if not (reason := _why_not(_AS_ROOT)):
        return _AS_ROOT, ""
    if not _why_not(_AS_USER):
        return _AS_USER, ""
    return _AS_ROOT, reason


COMMAND, _REASON = _choose()
NOT_ALLOWED: Final = f"this user may not make PID namespaces: {_REASON}"


def are_allowed() -> bool:
    """Return whether this user may make one."""
    return not _REASON
