# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Another thread hears of a SIGTERM, and the process ends or goes on as without that."""

import os
import signal
import subprocess
import sys

import pytest

_BEGIN = """
import ctypes, os, signal, threading
from tf_fuse import _native
library = _native.library()
library.tf_fuse_wait_for_sigterm.argtypes = [ctypes.c_double]
library.tf_fuse_wait_for_sigterm.restype = ctypes.c_bool
"""
_PROGRAMS = {
    # Nobody ends the process in time, and Python is busy for ever: its lock is held.
    "ends in time": (
        """
library.tf_fuse_catch_sigterm()
threading.Thread(target=library.tf_fuse_wait_for_sigterm, args=[0.1], daemon=True).start()
os.kill(os.getpid(), signal.SIGTERM)
ctypes.PyDLL(None).sleep(100)
""",
        -signal.SIGTERM,
    ),
    "the program's handler runs": (
        """
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(3))
library.tf_fuse_catch_sigterm()
heard = threading.Event()
def wait():
    if not library.tf_fuse_wait_for_sigterm(0.1):
        heard.set()
threading.Thread(target=wait, daemon=True).start()
signal.signal(signal.SIGTERM, lambda number, frame: None)  # instead of both
os.kill(os.getpid(), signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda number, frame: heard.wait(60) and os._exit(3))
library.tf_fuse_catch_sigterm()
os.kill(os.getpid(), signal.SIGTERM)
heard.wait(60)
os._exit(4)
""",
        3,
    ),
    "a default action that came later": (
        """
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(3))
library.tf_fuse_catch_sigterm()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
library.tf_fuse_catch_sigterm()
os.kill(os.getpid(), signal.SIGTERM)
os._exit(9 if library.tf_fuse_wait_for_sigterm(60) else 10)
""",
        9,
    ),
    "a later handler calls the former one": (
        """
libc, kind = ctypes.CDLL(None), ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, kind], ctypes.c_void_p
seen, former = [], []
first = kind(lambda number, info, context: seen.append("first"))
second = kind(lambda *args: (seen.append("second"), former[-1](*args)) and None)
libc.signal(signal.SIGTERM, first)
library.tf_fuse_catch_sigterm()
former.append(kind(libc.signal(signal.SIGTERM, second)))
for _ in range(2):
    library.tf_fuse_catch_sigterm()
    os.kill(os.getpid(), signal.SIGTERM)
    assert not library.tf_fuse_wait_for_sigterm(60)
assert seen == ["second", "first"] * 2, seen
for _ in range(20):
    # Those that take turns do not add up.
    libc.signal(signal.SIGTERM, first)
    library.tf_fuse_catch_sigterm()
    libc.signal(signal.SIGTERM, second)
    library.tf_fuse_catch_sigterm()
os.kill(os.getpid(), signal.SIGTERM)
assert not library.tf_fuse_wait_for_sigterm(60)
assert seen == ["second", "first"] * 3, seen
os._exit(11)
""",
        11,
    ),
    "a forked child ends, and its parent does not": (
        """
library.tf_fuse_catch_sigterm()
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(5)
os._exit(6 if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM else 7)
""",
        6,
    ),
    "released": (
        """
library.tf_fuse_catch_sigterm()
library.tf_fuse_release_sigterm()
os.kill(os.getpid(), signal.SIGTERM)
os._exit(8)
""",
        -signal.SIGTERM,
    ),
}


@pytest.mark.parametrize("case", _PROGRAMS)
def test_sigterm(case):
    program, status = _PROGRAMS[case]
    run = subprocess.run(
        [sys.executable, "-c", _BEGIN + program],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == status, run.stderr
