# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-fuse launch` gets signals, or lacks a port, a disk or a host: rows of docs/faults.md."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests import pid_namespaces
from tests.cluster.cli import ssh
from tests.fault import table
from tests.fault.coordinator import wait_until
from tests.fault.launch.launched_job import LaunchedJob
from tf_fuse.cluster.ports import HeldPorts

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(300)]

# Waits, as does its child, which is in a session of its own; by SIGTERM it says so and ends.
_WAITS = """
    import os, signal, subprocess, sys

    def end(number, frame):
        print("ends in order", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, {handler})
    wait = "import signal; signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", wait], start_new_session=True)
    print("waits", os.getpid(), child.pid, flush=True)
    while True:
        signal.pause()
"""
_MOUNT = ["unshare", "--user", "--map-root-user", "--mount"]


def _program(folder, text):
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    return path


def _waiting(folder, handler="end", workers=2):
    """A job whose programs wait; all of its processes but the launcher."""
    job = LaunchedJob(
        folder, "--workers", workers, _program(folder, _WAITS.format(handler=handler))
    )
    for _ in range(workers):
        job.read_until("] waits ")
    pids = re.findall(r"\] waits (\d+) (\d+)", job.output)
    programs = [psutil.Process(int(pid)) for both in pids for pid in both]
    assert len(programs) == 2 * workers
    return job, {*programs, *psutil.Process(job.process.pid).children(recursive=True)}


def _ended(processes):
    """Waits for the end of processes; returns when that was."""
    assert psutil.wait_procs(processes, timeout=100)[1] == []
    return time.monotonic()


def _logs(folder):
    """Temporary folders of the launcher."""
    return list(folder.glob("tf_fuse_launch_*"))


def _killed(folder):
    """With SIGKILL; its programs ignore SIGTERM."""
    job, processes = _waiting(folder, "signal.SIG_IGN")
    assert len(_logs(folder)) == 1
    begin = time.monotonic()
    job.process.kill()
    end = _ended(processes)
    job.end()
    assert not _logs(folder)
    return "nothing is left", end - begin


def _signalled(handler, times=1):
    number = signal.SIGTERM

    def fault(folder):
        job, processes = _waiting(folder, handler)
        begin = time.monotonic()
        job.process.send_signal(number)
        for _ in range(times - 1):
            # The next one is another one only when this one was taken.
            wait_until(lambda: not _is_pending(job.process.pid, number))
            job.process.send_signal(number)
        status, end = job.end()
        assert status == 128 + number
        _ended(processes)
        assert len(_logs(folder)) == (1 if times == 1 else 0)
        by_themselves = job.output.count("ends in order")
        return {0: "killed", 2: "programs end themselves"}[by_themselves], end - begin

    return fault


def _is_pending(pid, number):
    status = Path(f"/proc/{pid}/status").read_text()
    (pending,) = re.findall(r"^ShdPnd:\s*(\w+)$", status, re.MULTILINE)
    return bool(int(pending, 16) & 1 << number - 1)


def _signalled_while_tasks_start(folder):
    options = ["--workers", "2", "--ps", "1"]
    job = LaunchedJob(folder, *options, _program(folder, ""))
    launcher = psutil.Process(job.process.pid)
    wait_until(lambda: sum("serve.py" in " ".join(one.cmdline()) for one in launcher.children()))
    tasks = launcher.children(recursive=True)
    begin = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    status, end = job.end()
    _ended(tasks)
    return f"status {status}", end - begin


def _fails(folder):
    job = LaunchedJob(folder, "--workers", "2", _program(folder, "import sys\nsys.exit(7)\n"))
    begin = time.monotonic()
    status, end = job.end()
    assert re.search(r"worker:\d ended, status 7; --max-restarts is 0", job.output)
    return f"status {status}", end - begin


def _config(port):
    cluster = {"chief": ["localhost:1"], "ps": [f"localhost:{port}"], "worker": ["localhost:2"]}
    return {"cluster": cluster, "rpc_layer": "grpc+fuse"}


def _port_is_taken(folder):
    """Of a task of a platform; LocalCluster takes other ports."""
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        config = _config(port) | {"task": {"type": "ps", "index": 0}}
        begin = time.monotonic()
        task = LaunchedJob(folder, _program(folder, ""), TF_CONFIG=json.dumps(config))
        status, end = task.end()
    assert f"port {port} of task ps:0 (address localhost:{port}) is in use" in task.output
    return f"status {status}, which port", end - begin


def _may_mount():
    if not shutil.which("unshare"):
        return False
    return subprocess.run([*_MOUNT, "true"], capture_output=True, check=False).returncode == 0


def _disk_is_full(folder):
    """The program gets the error."""
    if not _may_mount():
        pytest.skip("this user may not mount a disk that can be full")
    small = folder / "small"
    small.mkdir()
    script = f'mount -t tmpfs -o size=64k none {small} && exec "$@"'
    program = _program(folder, "print('x' * (1 << 20), flush=True)\n")
    begin = time.monotonic()
    prefix = [*_MOUNT, "sh", "-c", script, "sh"]
    job = LaunchedJob(folder, "--log-dir", small, program, prefix=prefix)
    status, end = job.end()
    assert "worker:0 ended, status 1; --max-restarts is 0" in job.output
    return f"status {status}", end - begin


def _disk_is_full_at_a_restart(folder):
    """A folder for the logs cannot be made."""
    if not _may_mount():
        pytest.skip("this user may not mount a disk that can be full")
    small = folder / "small"
    small.mkdir()
    # (The folder itself is one of its files; the log is the second one.)
    script = f'mount -t tmpfs -o nr_inodes=2 none {small} && exec "$@"'
    program = _program(folder, "import sys\nsys.exit(7)\n")
    begin = time.monotonic()
    prefix = [*_MOUNT, "sh", "-c", script, "sh"]
    job = LaunchedJob(folder, "--max-restarts", 1, "--log-dir", small, program, prefix=prefix)
    status, end = job.end()
    assert "error: [Errno 28] No space left on device" in job.output
    return f"status {status}, the error", end - begin


def _host_cannot_be_reached(folder):
    ssh.install(folder)
    hosts = folder / "hosts"
    hosts.write_text("localhost\nnobody\n")
    options = ["--hosts", hosts, "--workers", "1", "--ps", "1"]
    begin = time.monotonic()
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    job = LaunchedJob(folder, *options, _program(folder, ""), PATH=path)
    status, end = job.end()
    assert "No route to host" in job.output
    return f"status {status}, ssh's message", end - begin


# A link, behind which the address of a host is known and nobody answers.
_SILENCE = """
    ip link set lo up
    ip link add name near type veth peer name far
    ip address add 198.18.0.1/30 dev near
    ip link set near up
    ip link set far up
    ip neigh replace {host} lladdr 02:00:00:00:00:02 nud permanent dev near
    exec "$@"
"""
_NETWORK = ["unshare", "--user", "--map-root-user", "--net", "sh", "-ec"]


def _host_is_silent(folder):
    """By the machine's own ssh."""
    script = _SILENCE.format(host="198.18.0.2")
    for command in (["ssh", "-V"], [*_NETWORK, script, "sh", "true"]):
        done = shutil.which(command[0]) and subprocess.run(
            command, capture_output=True, check=False
        )
        if not done or done.returncode:
            pytest.skip(f"this user has no {command[0]}: {done and done.stderr.decode().strip()}")
    hosts = folder / "hosts"
    hosts.write_text("198.18.0.2\n")
    options = ["--hosts", hosts, "--workers", "1", "--ps", "1"]
    begin = time.monotonic()
    job = LaunchedJob(folder, *options, _program(folder, ""), prefix=[*_NETWORK, script, "sh"])
    status, end = job.end()
    assert "ssh: connect to host 198.18.0.2 port 22: Connection timed out" in job.output
    return f"status {status}, ssh's message", end - begin


def _in_container(job):
    """The process that is the first one of a container; it has a child, the command."""
    wait_until(lambda: psutil.Process(job.process.pid).children())
    (first,) = psutil.Process(job.process.pid).children()
    return first


def _container(task, text, outcome):
    def fault(folder):
        if not pid_namespaces.are_allowed():
            pytest.skip(pid_namespaces.NOT_ALLOWED)
        with HeldPorts(1) as ports:
            config = _config(ports.numbers[0]) | {"task": {"type": task, "index": 0}}
            program = _program(folder, _WAITS.format(handler="end"))
            prefix = pid_namespaces.COMMAND
            job = LaunchedJob(folder, program, prefix=prefix, TF_CONFIG=json.dumps(config))
            job.read_until(text)
            first = _in_container(job)
            processes = [first, *first.children(recursive=True)]
            begin = time.monotonic()
            first.send_signal(signal.SIGTERM)
            status, end = job.end()
            assert status == 128 + signal.SIGTERM  # by SIGKILL it would be another one
            _ended(processes)
            assert ("ends in order" in job.output) == (task == "chief")
        return outcome, end - begin

    return fault


def _container_while_it_starts(folder):
    if not pid_namespaces.are_allowed():
        pytest.skip(pid_namespaces.NOT_ALLOWED)
    with HeldPorts(1) as ports:
        config = _config(ports.numbers[0]) | {"task": {"type": "ps", "index": 0}}
        prefix = pid_namespaces.COMMAND
        job = LaunchedJob(folder, _program(folder, ""), prefix=prefix, TF_CONFIG=json.dumps(config))
        first = _in_container(job)

        def imports_tensorflow():
            return any(
                "tensorflow/libtensorflow_framework" in Path(f"/proc/{one.pid}/maps").read_text()
                for one in first.children()
            )

        wait_until(imports_tensorflow)
        begin = time.monotonic()
        first.send_signal(signal.SIGTERM)
        status, end = job.end()
    assert status == 128 + signal.SIGTERM
    return "it ends", end - begin


_FAULTS = {
    "program_fails": _fails,
    "launcher_killed": _killed,
    "terminated": _signalled("end"),
    "terminated_in_vain": _signalled("signal.SIG_IGN"),
    "terminated_twice": _signalled("signal.SIG_IGN", times=2),
    "terminated_while_tasks_start": _signalled_while_tasks_start,
    "port_taken": _port_is_taken,
    "disk_full": _disk_is_full,
    "disk_full_at_a_restart": _disk_is_full_at_a_restart,
    "host_not_reached": _host_cannot_be_reached,
    "host_silent": _host_is_silent,
    "container_of_the_program": _container("chief", "waits ", "it ends itself"),
    "container_of_a_server": _container("ps", "serve: ready", "it ends"),
    "container_while_it_starts": _container_while_it_starts,
}


@pytest.mark.parametrize("case", table.cases(__file__))
def test_a_fault(case, tmp_path):
    outcome, seconds = _FAULTS[case](tmp_path)
    here = {"outcome": outcome, "seconds": round(seconds, 3)}
    table.check(__file__, case, {"outcome": "n/a"}, here)
