# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The one class that starts tasks, and who uses it."""

import os
import re
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tf_fuse.cluster.child_process import ChildProcess, PipedProcess, end_all
from tf_fuse.cluster.task_process import TaskProcess

_ROOT = Path(__file__).resolve().parents[3]
# Who may start processes otherwise than by ChildProcess, or by a function that waits for the end.
_OTHERS = {
    "tf_fuse/cluster/child_process.py",
    "tf_fuse/cluster/launcher/guardian.py",  # outlives the process that starts it
    "tf_fuse/layout/optimize/methods/integer_program.py",  # a solver
    "examples/two_hosts.py",  # a network
}
_ECHO = """
import sys
print("begins", flush=True)
for line in sys.stdin:
    print(line.strip() * 2, flush=True)
print("last", flush=True)
print("words", file=sys.stderr)
"""


def test_nobody_else_starts_processes():
    found = {
        str(path.relative_to(_ROOT))
        for folder in ("tf_fuse", "examples", "benchmarks", "deploy")
        for path in (_ROOT / folder).rglob("*.py")
        if re.search(r"Popen\(|os\.(fork|spawn|posix_spawn)|multiprocessing", path.read_text())
    }
    # That process forks before it is a launcher.
    assert found == _OTHERS | {"tf_fuse/cluster/launcher/first_process.py"}


@pytest.fixture
def echo(tmp_path):
    process = PipedProcess("echo")
    process.start([sys.executable, "-c", _ECHO], os.environ, tmp_path / "log")
    yield process
    process.kill()


def test_lines_go_both_ways(echo):
    assert echo.receive() == "begins\n"
    echo.send("a")
    assert echo.receive() == "aa\n"


def test_a_process_ends_with_its_standard_input(echo, tmp_path):
    echo.ask_to_end()
    assert list(echo.lines()) == ["begins\n", "last\n"]
    assert echo.receive() == ""
    assert echo.wait() == 0
    assert (tmp_path / "log").read_text() == "words\n"
    with pytest.raises(BrokenPipeError):
        echo.send("b")


def test_output_that_nobody_reads_goes_to_the_log(tmp_path):
    process = PipedProcess("echo")
    command = [sys.executable, "-c", _ECHO]
    process.start(command, os.environ, tmp_path / "log", tmp_path, answers=False)
    process.ask_to_end()
    assert process.wait() == 0
    assert (tmp_path / "log").read_text() == "begins\nlast\nwords\n"


def test_a_process_that_does_not_end_is_killed(tmp_path):
    process = PipedProcess("pause")
    process.start([sys.executable, "-c", "import signal; signal.pause()"], os.environ, None)
    end_all([process, PipedProcess("never started")], 0.0)
    assert process.wait() == -signal.SIGKILL


# Its child waits in its group, and says when it is there.
_LEAVES_A_CHILD = """
import os, sys
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)
    import signal
    signal.pause()
sys.stdin.read()
os._exit(0)
"""


def test_what_is_left_of_the_group_is_killed_and_several_threads_wait(tmp_path):
    process = PipedProcess("parent")
    process.start([sys.executable, "-c", _LEAVES_A_CHILD], os.environ, None)
    child = psutil.Process(int(process.receive()))
    found = []
    threads = [threading.Thread(target=lambda: found.append(process.wait())) for _ in range(4)]
    for one in threads:
        one.start()
    process.ask_to_end()
    for one in threads:
        one.join()
    assert found == [0] * 4
    assert psutil.wait_procs([child], timeout=60)[1] == []


def test_a_process_that_reads_nothing(tmp_path):
    process = ChildProcess("reader")
    command = [sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"]
    process.run(command, os.environ, tmp_path / "log")
    assert process.wait() == 0
    assert (tmp_path / "log").read_text() == "''\n"


def test_the_log_of_a_task_is_what_follows_that_of_an_earlier_one(tmp_path):
    path = tmp_path / "ps-0.log"
    path.write_bytes(b"of an earlier cluster\n")
    task = TaskProcess("ps", 0, "grpc", path)
    assert task.log() == ""
    path.write_bytes(path.read_bytes() + b"new \xff\n")
    assert task.log() == "new \ufffd\n"
    assert TaskProcess("ps", 1, "grpc", tmp_path / "none").log() == ""
