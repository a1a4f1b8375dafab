# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-fuse launch` as a task that Slurm or a container's platform has started."""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from examples import two_hosts
from tests import forking, slurm
from tests.cluster.cli.launch_program import ON_SERVERS
from tests.cluster.examples import quickstarts
from tf_fuse.cluster.ports import HeldPorts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_ROOT = Path(__file__).resolve().parents[3]
_EXAMPLES = _ROOT / "examples"
_LAUNCH = [sys.executable, "-m", "tf_fuse", "launch"]
_ENV = {
    **{name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
    "PYTHONPATH": os.fspath(_ROOT),
    "TF_CPP_MIN_LOG_LEVEL": "1",
}


@contextlib.contextmanager
def _ports_in_turn(count):
    """Yield the first of some free ports that follow each other, and are held."""
    while True:
        with contextlib.ExitStack() as stack:
            (first,) = stack.enter_context(HeldPorts(1)).numbers
            try:
                for port in range(first + 1, first + count):
                    one = stack.enter_context(socket.socket())
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    one.bind(("", port))
            except OSError:
                continue
            yield first
            return


@pytest.fixture
def sbatch(tmp_path):
    """A function that runs the recipe with a program; returns its status and output.

    With `forks`, launchers fork what they start.
    """
    slurm.install(tmp_path)

    def run(tasks, servers, *command, follow=None, forks=False, **variables):
        launcher = forking.command() if forks else [sys.executable, "-m", "tf_fuse"]
        (tmp_path / "tf-fuse").write_text(f'#!/bin/sh\nexec {shlex.join(launcher)} "$@"\n')
        (tmp_path / "tf-fuse").chmod(0o755)
        with _ports_in_turn(tasks) as port:
            job = subprocess.Popen(
                ["bash", _ROOT / "deploy" / "slurm" / "train.sbatch", *command],
                env={
                    **_ENV,
                    "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
                    "SLURM_NTASKS": str(tasks),
                    "SLURM_JOB_ID": "1",
                    "SERVERS": str(servers),
                    "PORT": str(port),
                    **variables,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=tmp_path,
            )
            said = follow(job) if follow else ""
            output, _ = job.communicate()
        assert not list(tmp_path.glob(".status*"))
        return job.returncode, said + output

    return run


def test_the_recipe_for_slurm_trains_on_servers(sbatch, tmp_path):
    """Its step ends with the program, whose status it has; each task has a log, too."""
    status, output = sbatch(4, 1, _EXAMPLES / "keras_ps.py", forks=True, LOGS="of/job")
    assert status == 0, output
    tasks = [line for line in output.splitlines() if " by Slurm" in line]
    assert sorted(line.partition(" of {")[0] for line in tasks) == [
        "0: tf-fuse launch: task chief:0",
        "1: tf-fuse launch: task ps:0",
        "2: tf-fuse launch: task worker:0",
        "3: tf-fuse launch: task worker:1",
    ]
    assert "0: " in output and "loss" in output
    logs = {path.stem: path.read_text() for path in (tmp_path / "of" / "job").iterdir()}
    assert sorted(logs) == ["chief-0", "ps-0", "worker-0", "worker-1"]
    assert logs.pop("chief-0").count("accuracy after the loop: ") == 1
    assert output.count("0: accuracy after the loop: ") == 1
    for name, text in logs.items():
        assert text.count(f"ready task={name.replace('-', ':')} ") == 1
    assert output.count(": tf_fuse serve: ready task=") == 3


@pytest.mark.parametrize(("name", "unchanged"), quickstarts.cases("quickstart_mwms.py"))
def test_the_recipe_for_slurm_runs_each_quickstart(sbatch, tmp_path, name, unchanged):
    """As replicas: both tasks run the program; all but one start clusters of their own."""
    program = _EXAMPLES / name
    if not unchanged:
        program = tmp_path / name
        program.write_text(quickstarts.shortened(name), encoding="utf-8")
    status, output = sbatch(2, 0, program, forks=not unchanged)
    assert status == 0, output
    assert "1: tf-fuse launch: task worker:1 of" in output
    expected = quickstarts.RATE if "mwms" in name else quickstarts.SPEED_UP
    found = re.findall(rf"^(\d): {expected}$", output, re.MULTILINE)
    assert sorted(found) == ["0", "1"], output


# The second task ends at once; the first one is not through when srun has seen that.
_ONE_IS_LATE = """
import json, os
from pathlib import Path
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
launcher = Path("launcher")
if index:
    Path("new").write_text(str(os.getppid()))
    os.rename("new", launcher)
else:
    while not launcher.exists() or Path("/proc", launcher.read_text()).exists():
        pass
    for _ in range(10_000_000):
        pass
    print("the first one is through")
"""


def test_a_replica_that_is_late_is_waited_for(sbatch, tmp_path):
    """As a chief that saves the model; the stand-in kills at once what srun kills later."""
    program = tmp_path / "late.py"
    program.write_text(_ONE_IS_LATE)
    status, output = sbatch(2, 0, program, STAND_IN_WAITS="0")
    assert status == 0, output
    assert "0: the first one is through\n" in output


def test_the_recipe_for_slurm_on_two_nodes(sbatch, tmp_path):
    """Two network namespaces: each has the same ports, and tasks reach each other by addresses."""
    if reason := two_hosts.why_not():
        pytest.skip(reason)
    program = tmp_path / "program.py"
    program.write_text(ON_SERVERS)
    with two_hosts.TwoHosts() as hosts:
        nodes = hosts.of({"first": 0, "second": 1}).values()
        first, second = (one["address"] for one in nodes)
        network, _, number = first.rpartition(".")
        assert second == f"{network}.{int(number) + 1}"
        status, output = sbatch(
            4,
            1,
            program,
            SLURM_JOB_NODELIST=f"{network}.[{number}-{int(number) + 1}]",
            SLURM_TASKS_PER_NODE="2(x2)",
            STAND_IN_COMMANDS=json.dumps({one["address"]: one["command"] for one in nodes}),
        )
    assert status == 0, output
    ready = dict(re.findall(r"ready task=(\S+) address=(\S+):\d+ protocol=grpc\+fuse", output))
    assert ready == {"ps:0": first, "worker:0": second, "worker:1": second}
    assert "0: counted 2\n" in output


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("n[9-11,007],m01,a", ["n9", "n10", "n11", "n007", "m01", "a"]),
        ("r[0-1]n[1-2]", ["r0n1", "r0n2", "r1n1", "r1n2"]),
        ("a[0-1]b[0-1]c[0-1]", [f"a{a}b{b}c{c}" for b in "01" for a in "01" for c in "01"]),
        ("r[0-1]n[1,03]x", None),
        ("n1-ib,n2-ib", ["n1-ib", "n2-ib"]),
        ("n[1-2]-ib", None),
        ("n[2-1]", None),
        ("n[a]", None),
    ],
)
def test_the_stand_in_for_scontrol(tmp_path, nodes, hosts):
    """Against what Slurm's manual and source say of such lists."""
    slurm.install(tmp_path)
    command = [tmp_path / "scontrol", "show", "hostnames", nodes]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == (hosts or [])
    assert done.stderr == ("" if hosts else f"Invalid hostlist: {nodes}\n")


# When the server is there.
_FAILS = """
import json, os, socket, sys
host, port = json.loads(os.environ["TF_CONFIG"])["cluster"]["ps"][0].split(":")
while socket.socket().connect_ex((host, int(port))):
    pass
print(sys.argv[1:], flush=True)
sys.exit(7)
"""


def test_a_program_that_fails_ends_the_step(sbatch, tmp_path):
    program = tmp_path / "fails.py"
    program.write_text(_FAILS)
    status, output = sbatch(3, 1, program, "--epochs", "3", forks=True)
    assert status == 7, output
    assert "0: ['--epochs', '3']\n" in output


def test_a_wrong_number_of_tasks_is_named(sbatch, tmp_path):
    """By all tasks at once: the first one that ends has the others ended."""
    program = tmp_path / "program.py"
    program.write_text("")
    status, output = sbatch(2, 1, program)
    assert status in (2, 128 + signal.SIGTERM), output
    assert "Slurm has started 2 tasks, but 0 worker(s), 1 server(s) and a program are 2" in output


# Ends in order by SIGTERM, after a while.
_ENDS = """
import signal, sys, time
def end(number, frame):
    print("saves", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
print("waits", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("servers", [1, 0])
def test_a_job_that_is_cancelled_ends_in_order(sbatch, tmp_path, servers):
    """Slurm signals the script, and the first process of each task; then it waits."""
    program = tmp_path / "ends.py"
    program.write_text(_ENDS)

    def cancel(job):
        said = ""
        while "0: waits\n" not in said:
            said += (line := job.stdout.readline())
            assert line, said
        (srun,) = psutil.Process(job.pid).children()
        job.terminate()
        srun.terminate()
        return said

    status, output = sbatch(2 + servers, servers, program, follow=cancel, STAND_IN_WAITS="60")
    assert output.count("0: saves\n") == 1, output
    assert status == 128 + signal.SIGTERM


def test_a_status_of_an_earlier_run_is_not_that_of_the_job(sbatch, tmp_path):
    """A job that is requeued has the same number, and may fail before its program does."""
    (tmp_path / ".status-1").write_text("0\n")
    program = tmp_path / "program.py"
    program.write_text("")
    status, output = sbatch(2, 1, program)
    assert status in (2, 128 + signal.SIGTERM), output


# The program of a container; its child waits for ever.
_WAITS = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print("waits", os.getpid(), child.pid, flush=True)
signal.pause()
"""


def _task_config(job, port):
    cluster = {"chief": ["localhost:1"], "ps": [f"localhost:{port}"], "worker": ["localhost:2"]}
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}})


# Says so by its number of runs, and fails at the first one.
_COUNTS = """
import sys
print("run", 1 + sys.argv.count("again"), flush=True)
sys.stdout.write("last")
sys.exit(0 if "again" in sys.argv else 5)
"""


def test_a_task_that_starts_again_adds_to_its_log(tmp_path):
    """Its lines are shown without a mark: the platform shows whose they are."""
    program = tmp_path / "program.py"
    program.write_text(_COUNTS)
    for arguments, status in (([], 5), (["again"], 0)):
        done = subprocess.run(
            [*_LAUNCH, "--log-dir", tmp_path / "logs", program, *arguments],
            env={**_ENV, "TF_CONFIG": _task_config("chief", 3)},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode == status
        assert done.stdout.splitlines()[1:] == [f"run {1 + len(arguments)}", "last"]
    (log,) = (tmp_path / "logs").iterdir()
    assert (log.name, log.read_text()) == ("chief-0.log", "run 1\nlastrun 2\nlast")


def test_a_server_with_a_log_ends_by_a_signal(tmp_path):
    with HeldPorts(1) as ports:
        task = subprocess.Popen(
            [*_LAUNCH, "--log-dir", tmp_path / "logs", __file__],
            env={**_ENV, "TF_CONFIG": _task_config("ps", ports.numbers[0])},
            stdout=subprocess.PIPE,
            text=True,
        )
        ready = next(line for line in task.stdout if "serve: ready" in line)
        processes = psutil.Process(task.pid).children(recursive=True)
        task.send_signal(signal.SIGTERM)
        task.communicate(timeout=100)
    assert task.returncode == 128 + signal.SIGTERM
    assert psutil.wait_procs(processes, timeout=60)[1] == []
    assert ready in (tmp_path / "logs" / "ps-0.log").read_text()


def test_a_container_has_no_file_of_a_log(tmp_path):
    """Unless somebody names a folder: its platform keeps what it writes."""
    program = tmp_path / "program.py"
    program.write_text("print('x')\n")
    subprocess.run(
        [*_LAUNCH, program],
        env={**_ENV, "TF_CONFIG": _task_config("chief", 3), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        check=True,
    )
    assert list(tmp_path.iterdir()) == [program]


@pytest.mark.parametrize("option", ["--hosts", "--max-restarts"])
def test_options_of_whole_jobs_are_refused(tmp_path, option):
    """A task would ignore them."""
    program = tmp_path / "program.py"
    program.write_text("")
    done = subprocess.run(
        [*_LAUNCH, option, "1", program],
        env={**_ENV, "TF_CONFIG": _task_config("chief", 3)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    assert (
        f"{option} is for a job that launch starts itself; TF_CONFIG says that this is one task of "
        "a job\n"
    ) in done.stderr
    assert list(tmp_path.iterdir()) == [program]


@pytest.mark.parametrize("options", [["--workers", "2"], None], ids=["local", "task"])
def test_nothing_is_left_by_a_launcher_that_was_killed(tmp_path, options):
    """Not even what the program has started."""
    program = tmp_path / "program.py"
    program.write_text(_WAITS)
    env = _ENV if options else {**_ENV, "TF_CONFIG": _task_config("chief", 3)}
    launcher = subprocess.Popen(
        [*_LAUNCH, *(options or ()), program], env=env, stdout=subprocess.PIPE, text=True
    )
    programs = int(options[1]) if options else 1
    found = []
    while len(found) < programs:
        line = launcher.stdout.readline()
        assert line
        found += [line.split()[-2:]] if "waits" in line else []
    left = [psutil.Process(int(pid)) for pids in found for pid in pids]
    others = psutil.Process(launcher.pid).children(recursive=True)
    launcher.kill()
    launcher.wait()
    gone, alive = psutil.wait_procs({*left, *others}, timeout=100)
    assert len(gone) >= 2 * programs
    assert not alive
