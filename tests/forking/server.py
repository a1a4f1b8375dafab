# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The process that others are forked from.

python tests/forking/server.py SOCKET

It ends when its standard input does.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
# Above all files that a request may name.
_HIGH_FILE = 512


class _Server:
    """Forks, and tells those who asked when what they asked for has ended."""

    def __init__(self, address: str):
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._clients: dict[int, socket.socket] = {}
        # The kernel writes into the pipe when a child has ended.
        self._ended, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        for file in (0, self._listener, self._ended):
            self._selector.register(file, selectors.EVENT_READ)

    def serve(self) -> tuple[dict[str, Any], list[int]]:
        """Returns in each forked process only, with what to do there; see `_become`."""
        print("ready", flush=True)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0 and not os.read(0, 1):
                    os._exit(0)
                elif key.fileobj == self._ended:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._ended, 4096)
                    self._tell_ends()
                elif key.fileobj is self._listener:
                    task = self._fork()
                    if task is not None:
                        return task

    def _fork(self) -> tuple[dict[str, Any], list[int]] | None:
        from tests.forking import protocol

        client, _ = self._listener.accept()
        try:
            request, files = protocol.receive_request(client)
        except EOFError:
            client.close()
            return None
        pid = os.fork()
        if pid == 0:
            # Or these numbers would be closed when they are others' already.
            for one in (client, self._listener, self._selector, *self._clients.values()):
                one.close()
            return request, files
        for file in files:
            os.close(file)
        self._clients[pid] = client
        with contextlib.suppress(OSError):  # who asked may be gone
            protocol.send_number(client, pid)
        return None

    def _tell_ends(self) -> None:
        from tests.forking import protocol

        while self._clients:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._clients.pop(pid) as client, contextlib.suppress(OSError):
                protocol.send_number(client, status)


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Makes this process what a new one would be: files, signals, environment, arguments."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    high = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _HIGH_FILE) for file in files]
    os.closerange(0, _HIGH_FILE)
    for file, target in zip(high, request["files"], strict=True):
        os.dup2(file, target)
    os.closerange(_HIGH_FILE, 4 * _HIGH_FILE)
    if request["group"] is not None:
        os.setpgid(0, request["group"])
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    sys.path[:0] = filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))
    sys.path.insert(0, _folder_of(sys.argv[0]))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = os.fdopen(number, "w" if number else "r", buffering=1, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    # Or all forked processes would draw the same numbers.
    import numpy as np

    random.seed()
    np.random.seed()


def _folder_of(first: str) -> str:
    """What the interpreter puts in front of its path, by its first argument."""
    if first == "-c":
        return ""
    return os.getcwd() if first == "-m" else str(Path(first).resolve().parent)


def _run() -> None:
    """Runs what the command line names as `__main__`."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    first = sys.argv[0]
    if first == "-m":
        name = sys.argv.pop(1)
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]
        return
    if first == "-c":
        code = compile(sys.argv.pop(1), "<string>", "exec", dont_inherit=True)
    else:
        module.__file__ = first
        code = compile(Path(first).read_bytes(), first, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def _status() -> int:
    """Runs it; returns the status with which a process ends."""
    try:
        _run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # as the interpreter itself says it
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def main(address: str) -> None:
    """Serves; in a forked process, does what was asked for and returns."""
    import tensorflow as tf

    # Modules that TensorFlow imports when they are first named; not `tf.keras`, which the
    # environment chooses.
    _ = tf.raw_ops, tf.compat.v1.Session
    _ = tf.distribute.ParameterServerStrategy, tf.distribute.MultiWorkerMirroredStrategy
    _ = tf.distribute.coordinator.ClusterCoordinator
    # Nor do forked processes look at, and so copy, what is here already.
    gc.collect()
    gc.freeze()
    request, files = _Server(address).serve()
    from tests.forking import popen

    sys.path.remove(str(_ROOT))
    _become(request, files)
    popen.install(address)
    status = _status()
    # The end of a process but for what frees the memory of each module, which takes a second.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    # In place of this folder.
    sys.path[0] = str(_ROOT)
    main(sys.argv[1])
