# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a program as the first process of a container is run: in a PID namespace of its own."""

import shutil
import subprocess
from typing import Final

COMMAND: Final = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
NOT_ALLOWED: Final = "this user may not make PID namespaces"


def are_allowed() -> bool:
    """Return whether this user may make one."""
    if not shutil.which(COMMAND[0]):
        return False
    return subprocess.run([*COMMAND, "true"], capture_output=True, check=False).returncode == 0
