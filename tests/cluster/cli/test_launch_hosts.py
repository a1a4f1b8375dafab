# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-fuse launch --hosts`: tasks that ssh starts; a program stands for it, on this machine."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster.cli import ssh
from tests.cluster.cli.launch_program import ON_SERVERS
from tests.cluster.examples import quickstarts
from tests.fault.coordinator import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_ROOT = Path(__file__).resolve().parents[3]
_EXAMPLES = _ROOT / "examples"


@pytest.fixture
def start(tmp_path):
    """A function that starts a job on hosts; notes of the hosts are in the file `notes`."""
    ssh.install(tmp_path)

    def run(hosts, *arguments, output=subprocess.PIPE, **variables):
        (tmp_path / "hosts").write_text("# of the test\n" + "".join(f"{one}\n" for one in hosts))
        env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        command = [sys.executable, "-m", "tf_fuse", "launch", "--hosts", tmp_path / "hosts"]
        return subprocess.Popen(
            [*command, "--log-dir", tmp_path / "logs", *arguments],
            env=env
            | {
                "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": os.fspath(_ROOT),
                **variables,
            },
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return run


def _notes(tmp_path):
    return sorted((tmp_path / "notes").read_text().split())


def test_servers_and_workers_are_dealt_to_hosts(start, tmp_path):
    hosts = ["localhost", "somebody@127.0.0.1"]
    program = tmp_path / "program.py"
    program.write_text(ON_SERVERS)
    job = start(hosts, "--workers", "2", "--ps", "1", program)
    output, _ = job.communicate(timeout=250)
    assert job.returncode == 0, output
    assert "[chief:0] counted 2\n" in output
    assert _notes(tmp_path) == ["localhost", "localhost", "somebody@127.0.0.1"]
    ready = dict(re.findall(r"ready task=(\S+) address=(\S+):\d+ protocol=grpc\+fuse", output))
    assert ready == {"ps:0": "localhost", "worker:0": "127.0.0.1", "worker:1": "localhost"}
    pids = [int(pid) for pid in re.findall(r"ready .*pid=(\d+)", output)]
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_programs_of_replicas_run_on_the_hosts(start, tmp_path):
    program = tmp_path / "quickstart_mwms.py"
    program.write_text(quickstarts.shortened(program.name), encoding="utf-8")
    job = start(["localhost"], "--workers", "2", program)
    output, _ = job.communicate(timeout=250)
    assert job.returncode == 0, output
    assert _notes(tmp_path) == ["localhost"] * 2
    assert len(re.findall(r"^\[worker:\d\] [\d.]+ steps/s$", output, re.MULTILINE)) == 2


def test_the_status_of_a_program_on_a_host(start, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import sys\nprint(sys.argv[1:], flush=True)\nsys.exit(7)\n")
    job = start(["localhost"], program, "--epochs", "3")
    output, _ = job.communicate(timeout=100)
    assert job.returncode == 7, output
    assert "[worker:0] ['--epochs', '3']\n" in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_programs_on_hosts_end_with_the_launcher(start, tmp_path, number):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal\nprint('waits', os.getpid(), flush=True)\nsignal.pause()\n"
    )
    job = start(["localhost"], program)
    line = next(line for line in job.stdout if "waits" in line)
    job.send_signal(number)
    job.communicate(timeout=100)
    assert job.returncode == (128 + number if number == signal.SIGTERM else -number)
    wait_until(lambda: not psutil.pid_exists(int(line.split()[-1])))


def test_a_terminal_shows_what_tasks_on_hosts_do(start, tmp_path):
    """With the memory that they use there; steps are counted in `test_launch_health`."""
    program = tmp_path / "program.py"
    program.write_text("import signal\nsignal.pause()\n")
    screen, terminal = pty.openpty()
    job = start(
        ["localhost"], "--workers", "2", program, output=terminal, TERM="xterm", COLUMNS="100"
    )
    os.close(terminal)
    seen, task = "", r"worker:{} runs, \d+ %, [1-9]\d* MB"
    while not re.search(f"{task.format(0)} · {task.format(1)}", seen):
        seen += os.read(screen, 4096).decode(errors="replace")
    job.send_signal(signal.SIGTERM)
    with contextlib.suppress(OSError):  # EIO: nobody has the terminal any more.
        while os.read(screen, 4096):
            pass
    assert job.wait(timeout=60) == 128 + signal.SIGTERM
    os.close(screen)


@pytest.mark.parametrize(
    ("ends", "status"), [("ssh-task", 137), ("ssh.py", 137), ("host-task", 255)]
)
def test_a_task_ends_with_its_connection_and_with_the_process_there(start, tmp_path, ends, status):
    """Also what it has started in a session of its own; what the shell there says is shown."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print('waits', os.getpid(), child.pid, os.getppid(), flush=True)\n"
        "signal.pause()\n"
    )
    job = start(["localhost"], program)
    line = next(line for line in job.stdout if "waits" in line)
    on_host = [psutil.Process(int(pid)) for pid in line.split()[-3:]]
    (to_kill,) = [
        one
        for one in psutil.Process(job.pid).children(recursive=True)
        if any(word.endswith(ends) for word in one.cmdline())
    ]
    assert (to_kill in on_host) == (ends == "host-task")
    to_kill.kill()
    output, _ = job.communicate(timeout=100)
    assert job.returncode == status, output
    assert psutil.wait_procs(on_host, timeout=60)[1] == []


def test_a_host_that_cannot_be_reached(start, tmp_path):
    job = start(["localhost", "nobody"], "--workers", "1", "--ps", "1", _EXAMPLES / "keras_ps.py")
    output, _ = job.communicate(timeout=250)
    assert job.returncode == 1
    assert "task worker:0 ended with status 255 before it was ready" in output
    assert "No route to host" in output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (["# nobody"], "expected host or user@host on each line; it has none"),
        (["a b"], "expected host or user@host on each line; found 'a b'"),
        (["user@"], "expected host or user@host on each line; found 'user@'"),
        (["n1", "n2:22"], "expected host or user@host on each line; found 'n2:22'"),
        (["-oProxyCommand=x"], "expected host or user@host on each line; found '-oProxyCommand=x'"),
    ],
)
def test_a_file_without_hosts(start, tmp_path, text, said):
    job = start(text, _EXAMPLES / "keras_ps.py")
    output, _ = job.communicate(timeout=100)
    assert job.returncode == 2
    assert f"--hosts {tmp_path / 'hosts'}: {said}" in output
