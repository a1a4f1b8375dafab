# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Stand for `ssh` on this machine.

As ssh does: the host's shell gets the words, and standard input goes there. It notes the hosts in
the file `notes`; the host `nobody` cannot be reached.
"""

import shlex
from pathlib import Path

_PROGRAM = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
echo "$1" >> {notes}
if [ "$1" = nobody ]; then echo "ssh: connect to host nobody: No route to host"; exit 255; fi
shift
env -u TF_CONFIG sh -c "$*"
"""


def install(folder: Path) -> None:
    """Put it into a folder."""
    file = folder / "ssh"
    file.write_text(_PROGRAM.format(notes=shlex.quote(str(folder / "notes"))))
    file.chmod(0o755)
