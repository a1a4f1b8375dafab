# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The end of a launched job: signals, and that nothing is left."""

import contextlib
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.cluster.cli.launch_program import run, start
from tests.fault.coordinator import wait_until
from tf_fuse.cluster.ports import HeldPorts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_WAITS = """
    import os, signal, sys
    def end(number, frame):
        print("ends in order", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, {handler})
    print("pid", os.getpid(), flush=True)
    while True:
        signal.pause()
"""


def _waiting(tmp_path, handler, workers):
    """Start programs that wait; return the launcher, and their processes."""
    launcher = start(tmp_path, _WAITS.format(handler=handler), "--workers", str(workers))
    lines = []
    while sum("pid" in line for line in lines) < workers:
        lines.append(launcher.stdout.readline())
        assert lines[-1], lines
    return launcher, [int(line.split()[-1]) for line in lines if "pid" in line]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_in_order(tmp_path, number):
    launcher, pids = _waiting(tmp_path, "end", 2)
    launcher.send_signal(number)
    output, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + number
    assert output.count("ends in order") == 2
    assert f"tf-fuse launch: ended by {number.name}" in output
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_second_signal_ends_all_at_once(tmp_path):
    launcher, pids = _waiting(tmp_path, "signal.SIG_IGN", 2)
    launcher.send_signal(signal.SIGTERM)
    ignores = [psutil.Process(pid) for pid in pids]
    # The launcher has replaced its handler when it waits for the first program to end.
    wait_until(lambda: _catches_next(launcher.pid))
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + signal.SIGTERM
    assert psutil.wait_procs(ignores, timeout=60)[1] == []


def _answer(port):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_after_the_program_leaves_its_status(tmp_path, number):
    """The launcher waits for whoever reads its output: nobody."""
    mark = tmp_path / "mark"
    program = f"""
        import os
        while not os.path.exists({str(mark)!r}):
            pass
        print("x" * 300_000)
    """
    with HeldPorts(1) as ports:
        (port,) = ports.numbers
        launcher = start(tmp_path, program, "--health-port", str(port))
        wait_until(lambda: _answer(port) == 200)
        mark.touch()
        wait_until(lambda: _answer(port) != 200)
        launcher.send_signal(number)
        assert launcher.wait(timeout=100) == 0


def _catches_next(pid):
    """Return whether a process has taken the signal that was sent to it."""
    status = Path(f"/proc/{pid}/status").read_text()
    (pending,) = re.findall(r"^ShdPnd:\s*(\w+)$", status, re.MULTILINE)
    return not int(pending, 16) & 1 << signal.SIGTERM - 1


def test_nothing_outlives_a_launcher_that_was_killed(tmp_path):
    """But the logs in a folder that the user has named."""
    launcher, pids = _waiting(tmp_path, "signal.SIG_IGN", 2)
    processes = psutil.Process(launcher.pid).children(recursive=True)
    assert {one.pid for one in processes} > set(pids)
    launcher.kill()
    launcher.communicate(timeout=60)
    assert psutil.wait_procs(processes, timeout=60)[1] == []
    assert "pid" in (tmp_path / "logs" / "worker-0.log").read_text()


def test_a_guardian_that_is_killed_does_not_end_the_job(tmp_path):
    mark = tmp_path / "mark"
    program = f"import os, time\nwhile not os.path.exists({str(mark)!r}):\n    time.sleep(0.01)\n"
    launcher = start(tmp_path, program)
    wait_until(lambda: len(psutil.Process(launcher.pid).children()) == 2)
    (guardian,) = [
        one
        for one in psutil.Process(launcher.pid).children()
        if "guardian.py" in " ".join(one.cmdline())
    ]
    guardian.kill()
    mark.touch()
    output, _ = launcher.communicate(timeout=100)
    assert launcher.returncode == 0, output


@pytest.mark.parametrize("reads", [True, False], ids=["read", "unread"])
def test_a_guardian_that_does_not_answer_does_not_keep_a_signal_waiting(tmp_path, reads):
    """Nor a program that ignores the signal, whose output nobody reads."""
    program = f"""
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("x" * {300 if reads else 300_000}, flush=True)
        while True:
            signal.pause()
    """
    launcher = start(tmp_path, program)
    log = tmp_path / "logs" / "worker-0.log"
    wait_until(lambda: log.exists() and log.stat().st_size > 300)
    processes = psutil.Process(launcher.pid).children(recursive=True)
    (guardian,) = [one for one in processes if "guardian.py" in " ".join(one.cmdline())]
    guardian.suspend()
    launcher.send_signal(signal.SIGTERM)
    if reads:
        launcher.communicate(timeout=200)
    assert launcher.wait(timeout=200) == 128 + signal.SIGTERM
    assert psutil.wait_procs(processes, timeout=60)[1] == []


# A child in its group, one in a session of its own, and one that has no environment either.
_CHILDREN = """
    import os, subprocess, sys
    def start(**options):
        print("child", subprocess.Popen(["sleep", "1000"], **options).pid, flush=True)
    start(env={})
    start(start_new_session=True)
"""


def _end_of_children(output, count):
    pids = [int(pid) for pid in re.findall(r"child (\d+)", output)]
    assert len(pids) == count
    gone = [pid for pid in pids if not psutil.pid_exists(pid)]
    return gone + [pid for pid in pids if pid not in gone and _is_zombie(pid)] == pids


def _is_zombie(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("options", [[], ["--workers", "2"]], ids=["one", "two"])
def test_processes_of_the_program_end_with_it(tmp_path, options):
    status, output = run(tmp_path, _CHILDREN, *options)
    assert status == 0
    assert _end_of_children(output, 2 * max(1, len(options)))


def test_processes_of_a_program_end_before_it_starts_again(tmp_path):
    program = (
        _CHILDREN
        + """
    import pathlib
    file = pathlib.Path(sys.argv[1])
    if file.exists():
        others = [int(pid) for pid in file.read_text().split()]
        left = [pid for pid in others if os.path.exists(f"/proc/{pid}/exe")]
        print("left", left, flush=True)
        sys.exit(0)
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    file.write_text(str(child.pid))
    sys.exit(1)
    """
    )
    arguments = [tmp_path / "children"]
    status, output = run(tmp_path, program, "--max-restarts", "1", arguments=arguments)
    assert status == 0, output
    assert "[worker:0] left []\n" in output


def test_a_job_that_a_job_starts_ends_with_it(tmp_path):
    """Also if the inner launcher cannot end anything: all are killed."""
    (tmp_path / "inner.py").write_text(
        "import signal\nprint('inner', flush=True)\nsignal.pause()\n"
    )
    program = f"""
        import os, signal, subprocess, sys
        del os.environ["TF_CONFIG"]
        command = [sys.executable, "-m", "tf_fuse", "launch", {str(tmp_path / "inner.py")!r}]
        inner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        while "[worker:0] inner" not in inner.stdout.readline():
            pass
        print("runs", flush=True)
        signal.pause()
    """
    launcher = start(tmp_path, program)
    for line in launcher.stdout:
        if "] runs" in line:
            break
    processes = psutil.Process(launcher.pid).children(recursive=True)
    assert sum("inner.py" in " ".join(one.cmdline()) for one in processes) == 2
    launcher.kill()
    launcher.communicate(timeout=60)
    assert psutil.wait_procs(processes, timeout=60)[1] == []
