# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command `tf-fuse` as a process of its own, which forks those that it starts.

python tests/forking/launcher.py SOCKET ARGUMENT...
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main(address: str) -> None:
    """Run the command whose arguments follow in `sys.argv`."""
    from tests.forking import popen

    popen.install(address)
    runpy.run_module("tf_fuse", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # In place of this folder.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    main(sys.argv.pop(1))
