# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`subprocess.Popen`, where a process that runs a Python file is forked; see the package."""

from __future__ import annotations

import atexit
import inspect
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import protocol

VARIABLE = "TF_FUSE_TEST_FORK"
# Of that variable: where the launchers that a test starts are forked, too.
LAUNCHERS = "launchers"
_PROGRAM = Path(__file__).with_name("server.py")
_STOPPED_POLL_S = 0.001

_original: Any = subprocess.Popen
_waitid = os.waitid
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
# What a process that is forked does not know of.
_USUAL = {
    "executable": None,
    "preexec_fn": None,
    "close_fds": True,
    "shell": False,
    "gid": None,
    "gids": None,
    "uid": None,
    "umask": -1,
}
# Read when TensorFlow is loaded, or before. (TF_ENABLE_EAGER_… is read later, and each coordinator
# sets it.)
_EARLY = re.compile(
    "LD_|TF_ENABLE_(?!EAGER_)|TF_XLA_|XLA_|OMP_|ASAN_|TSAN_|PYTHONHOME|PYTHONMALLOC|PYTHONHASHSEED"
)
# Code that imports TensorFlow: what does not is faster where nothing is imported.
_IMPORTS = re.compile(r"^(from|import) [^;(]*\b(tensorflow|tf_fuse)\b", re.MULTILINE)
# What looks at the processes that it has started, or at how it was started itself.
_OWN_START = ("doctor", "launch")


class _Server:
    """Where processes are forked; started when it is first asked for."""

    def __init__(self, address: str | None):
        self._address = address
        self.is_own = address is None
        self._starts = threading.Lock()  # a test may start its processes in threads
        self.early = _early(os.environ)

    def address(self) -> str:
        with self._starts:
            if self._address is None:
                self._address = self._start()
            return self._address

    def _start(self) -> str:
        folder = tempfile.TemporaryDirectory(prefix="tf_fuse_fork_")
        address = str(Path(folder.name) / "server")
        process = _original(
            [sys.executable, str(_PROGRAM), address],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
            stdin=subprocess.PIPE,  # it ends when this process does
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        atexit.register(folder.cleanup)
        atexit.register(process.stdin.close)  # type: ignore[union-attr]
        return address


_server: _Server | None = None


class ForkedPopen(_original):
    """As the class it is derived from; see the package for what is forked."""

    _connection: socket.socket | None = None

    def _execute_child(self, args: Any, *rest: Any) -> None:
        names = inspect.signature(_original._execute_child).parameters
        given = dict(zip(list(names)[1:], (args, *rest), strict=True))
        env = os.environ if given["env"] is None else given["env"]
        by_test = _server.is_own and env.get(VARIABLE) != LAUNCHERS
        argv = _argv(args, by_test)
        if argv is None or not _may_fork(env) or any(given[k] != v for k, v in _USUAL.items()):
            super()._execute_child(args, *rest)
            return
        pipes = [given[name] for name in _PIPES]
        standard = enumerate([given["p2cread"], given["c2pwrite"], given["errwrite"]])
        files = {number: number if file == -1 else file for number, file in standard}
        files |= {file: file for file in given["pass_fds"]}
        request = {
            "argv": argv,
            "env": {os.fsdecode(k): os.fsdecode(v) for k, v in env.items()},
            "folder": os.fsdecode(given["cwd"] or os.getcwd()),
            "files": list(files),
            "group": None if given["process_group"] == -1 else given["process_group"],
            "session": given["start_new_session"],
        }
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(_server.address())
        protocol.send_request(self._connection, request, list(files.values()))
        self.pid = protocol.receive_number(self._connection)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._connection is None:
            return super()._try_wait(wait_flags)
        if wait_flags & os.WNOHANG and not select.select([self._connection], [], [], 0)[0]:
            return 0, 0
        status = protocol.receive_number(self._connection)
        self._connection.close()
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None, **kwargs: Any) -> int | None:
        if self._connection is None:
            return super()._internal_poll(_deadstate, **kwargs)
        if self.returncode is None and self._connection.fileno() < 0:
            # `subprocess` keeps a process that nobody has waited for; the garbage collector may
            # have closed its connection before. As of a child that somebody else has waited for:
            self.returncode = _deadstate
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def _argv(args: Any, by_test: bool = True) -> list[str] | None:
    """What follows the interpreter in a command that is forked; None of what is started as ever.

    Args:
      args: of `Popen`.
      by_test: whether a test starts it that looks at how processes begin; not a program, say a
        quickstart that launches itself.
    """
    if isinstance(args, (str, bytes, os.PathLike)):
        return None
    command = [os.fsdecode(arg) for arg in args]
    if command[0] != sys.executable:
        return None
    argv = command[2:] if command[1:2] == ["-u"] else command[1:]
    if argv[:1] == ["-c"]:
        return argv if _IMPORTS.search(argv[1]) else None
    if argv[:1] == ["-m"]:
        package = argv[1].partition(".")[0]
        is_own = argv[1] == "tf_fuse" and not (by_test and set(_OWN_START) & set(argv[2:3]))
        return argv if is_own or package in ("benchmarks", "examples") else None
    return argv if argv and argv[0].endswith(".py") else None


def command() -> list[str]:
    """Return a command `tf-fuse` that is a process of its own, and forks those that it starts."""
    if _server is None:
        return [sys.executable, "-m", "tf_fuse"]
    return [sys.executable, str(_PROGRAM.with_name("launcher.py")), _server.address()]


def _early(env: Mapping[str, str]) -> dict[str, str]:
    return {key: env[key] for key in sorted(env) if _EARLY.match(key)}


def _may_fork(env: Mapping[str, str]) -> bool:
    return env.get(VARIABLE) != "0" and _early(env) == _server.early


def _wait_of_any(kind: int, number: int, options: int) -> Any:
    """As `os.waitid`; of a process that was forked elsewhere, only whether it has stopped."""
    try:
        return _waitid(kind, number, options)
    except ChildProcessError:
        if not options & os.WSTOPPED:
            raise
    while True:
        try:
            state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return None
        if state in "TtZX":
            return None
        time.sleep(_STOPPED_POLL_S)  # only a parent gets a signal


def install(address: str | None = None) -> None:
    """Let this process fork what it starts.

    Args:
      address: of the server; None for one of its own, which is started when it is needed.
    """
    global _server
    _server = _Server(address)
    subprocess.Popen = ForkedPopen  # type: ignore[misc]
    os.waitid = _wait_of_any
