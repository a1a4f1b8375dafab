# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run one task of a job on another host by ssh, as a process of this one.

    ssh_task.py HOST FOLDER COMMAND...

stands for COMMAND, which runs on the host, in the folder there: it writes what that writes, and
has its status. The option --lifeline-fd of COMMAND is its standard input on the host. That ends,
and so ends the command, when this process is to end (SIGTERM, or the pipe of --lifeline-fd here
closes) or has been killed. The host has the same Python, at the same path.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

OPTIONS: Final = (
    "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
    # A host that has lost its power is an error after a minute.
    "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4",
)  # fmt: skip
_END_S = 5.0
_READY = "tf_fuse serve: ready"  # as of serve.py
_LIFELINE, _READY_FD = "--lifeline-fd", "--ready-fd"


def prefix(host: str) -> list[str]:
    """Return what to put before a command to run it on a host, in this process's folder there."""
    return [sys.executable, "-u", str(Path(__file__).resolve()), host, os.getcwd()]


def _remote_command(folder: str, command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the line of the shell on the host."""
    passed = [
        f"{name}={value}"
        for name, value in sorted(environ.items())
        if name.startswith(("TF_", "GRPC_")) or name == "PYTHONPATH"
    ]
    words = ["exec", "env", *passed, *command]
    return f"cd {shlex.quote(folder)} && " + " ".join(map(shlex.quote, words))


def _replace(arguments: list[str], option: str, values: Sequence[str]) -> int | None:
    """Replace an option with a file descriptor in a command line; return the descriptor."""
    if option not in arguments:
        return None
    place = arguments.index(option)
    number = arguments[place + 1]
    arguments[place : place + 2] = values
    return int(number)


def main(arguments: Sequence[str]) -> int:
    """Run a command on a host; return its status, or 255 if the host cannot be reached."""
    host, folder, *command = arguments
    lifeline = _replace(command, _LIFELINE, [_LIFELINE, "0"])
    ready = _replace(command, _READY_FD, [])
    process = subprocess.Popen(
        ["ssh", *OPTIONS, host, _remote_command(folder, command, os.environ)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None and process.stdout is not None

    def end() -> None:
        with contextlib.suppress(OSError, ValueError):
            process.stdin.close()  # type: ignore[union-attr]
        late = threading.Timer(_END_S, process.kill)
        late.daemon = True
        late.start()

    def watch(descriptor: int) -> None:
        while os.read(descriptor, 1):
            pass
        end()

    signal.signal(signal.SIGTERM, lambda *_: end())
    if lifeline:
        threading.Thread(target=watch, args=(lifeline,), daemon=True).start()
    for line in process.stdout:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        if ready is not None and line.startswith(_READY.encode()):
            with contextlib.suppress(BrokenPipeError):  # nobody waits any more
                os.write(ready, line)
            os.close(ready)
            ready = None
    status = process.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
