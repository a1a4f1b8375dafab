# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The line below the logs of a launched job: what it says of tasks, and how large it gets."""

import os
import re
import signal
import subprocess

import pytest

from tf_fuse.cluster.launcher import status_line
from tf_fuse.cluster.launcher.status_line import StatusLine, Task
from tf_fuse.cluster.launcher.step_counts import Usage


def _text(tasks, width=1000, height=24):
    return StatusLine(lambda: tasks).render(width, height).plain


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def test_tasks_come_by_number():
    names = ["worker:10", "worker:9", "ps:0", "chief:0"]
    text = _text({name: Task(os.getpid(), None, False) for name in names})
    assert text == "chief:0 runs · ps:0 runs · worker:9 runs · worker:10 runs"


def test_what_is_known_of_a_task_here():
    text = _text({"worker:0": Task(os.getpid(), 7, True)})
    assert re.fullmatch(r"worker:0 runs, 0\.0 steps/s, \d+ %, [1-9]\d* MB", text)


def test_steps_per_second(monkeypatch):
    now, steps = [100.0], [7]
    monkeypatch.setattr(status_line.time, "monotonic", lambda: now[0])
    line = StatusLine(lambda: {"worker:0": Task(os.getpid(), steps[0], False)})
    line.render(80, 24)
    now[0], steps[0] = 102.0, 32
    assert line.render(80, 24).plain == "worker:0 runs, 12.5 steps/s"
    assert line.render(80, 24).plain == "worker:0 runs, 12.5 steps/s"  # at the same moment


def test_what_a_host_says_of_a_task(monkeypatch):
    """Its clock counts: it reports when it likes."""
    now, task = [100.0], [Task(os.getpid(), 7, False)]
    monkeypatch.setattr(status_line.time, "monotonic", lambda: now[0])
    line = StatusLine(lambda: {"worker:0": task[0]})

    def at(second, steps, *usage):
        now[0] = second
        if usage:
            task[0] = Task(os.getpid(), steps, False, Usage(*usage))
        return line.render(80, 24).plain

    assert at(100.0, 7) == "worker:0 runs, 0.0 steps/s"
    assert at(101.0, 7, 5000.0, 2.0, 3_000_000) == "worker:0 runs, 0.0 steps/s, 0 %, 3 MB"
    assert at(102.0, 17, 5002.0, 3.0, 4_000_000) == "worker:0 runs, 5.0 steps/s, 50 %, 4 MB"
    assert at(103.0, 17) == "worker:0 runs, 5.0 steps/s, 50 %, 4 MB"
    assert at(108.0, 17) == "worker:0 runs, 0.0 steps/s, 0 %, 4 MB"  # It says no more.
    # It has started again.
    assert at(109.0, 17, 3.0, 0.5, 2_000_000) == "worker:0 runs, 0.0 steps/s, 0 %, 2 MB"


def test_a_task_that_is_stopped_or_has_ended(child):
    tasks = {"worker:0": Task(child.pid, 3, False)}
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert _text(tasks) == "worker:0 stopped, 0.0 steps/s"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert _text(tasks) == "worker:0 ended"
    child.wait()
    assert _text(tasks) == "worker:0 ended"


def test_before_tasks_have_started():
    assert _text({}) == "starts"


def test_many_tasks_leave_room_for_the_logs():
    """A third of the terminal at most; a narrow one says how many tasks there are."""
    tasks = {f"worker:{i}": Task(os.getpid(), None, False) for i in range(100)}
    text = _text(tasks, width=80, height=24)
    assert len(text) <= 8 * 80
    assert text.startswith("worker:0 runs · worker:1 runs · ")
    shown = text.count(" runs")
    assert 30 < shown < 100 and text.endswith(f" · {100 - shown} more")
    assert _text(tasks, width=10, height=1) == "100 more"
