# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Stand for `ssh` on this machine.

    ssh.py NOTES [-o OPTION]... HOST WORD...

As with ssh, the host's shell gets the words, in an environment and a session of its own, and each
of the three streams by a pipe whose other end this process alone has: if it is killed, they close.
Its status is that of the shell, or 255 if a signal has ended that. It adds the host to the file
NOTES. The host `nobody` cannot be reached.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

_FAILED = 255
_OF_THE_HOST = ("HOME", "LANG", "PATH", "TMPDIR")


def install(folder: Path) -> None:
    """Put it into a folder, whose file `notes` it writes."""
    file = folder / "ssh"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{__file__}" "{folder}/notes" "$@"\n')
    file.chmod(0o755)


def _copy(source: int, to: int) -> None:
    """Copy all, and close the other end."""
    while data := os.read(source, 1 << 16):
        os.write(to, data)
    os.close(to)


def _connect(notes: str, arguments: list[str]) -> int:
    while arguments[0] == "-o":
        del arguments[:2]
    host, *words = arguments
    with open(notes, "a", encoding="utf-8") as file:
        file.write(f"{host}\n")
    if host == "nobody":
        print("ssh: connect to host nobody: No route to host")
        return _FAILED
    pipe = subprocess.PIPE
    shell = subprocess.Popen(
        ["sh", "-c", " ".join(words)],
        env={name: os.environ[name] for name in _OF_THE_HOST if name in os.environ},
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
    )
    assert shell.stdin and shell.stdout and shell.stderr
    threading.Thread(target=_copy, args=(0, os.dup(shell.stdin.fileno())), daemon=True).start()
    shell.stdin.close()
    outputs = [
        threading.Thread(target=_copy, args=(stream.fileno(), os.dup(number)))
        for number, stream in ((1, shell.stdout), (2, shell.stderr))
    ]
    for one in outputs:
        one.start()
    for one in outputs:
        one.join()
    status = shell.wait()
    return status if status >= 0 else _FAILED


if __name__ == "__main__":
    sys.exit(_connect(sys.argv[1], sys.argv[2:]))
