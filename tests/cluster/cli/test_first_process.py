# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-fuse` as the first process of a container: signals end it, and no zombies stay."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import pid_namespaces
from tests.fault.coordinator import wait_until
from tests.slow_cases import slow
from tf_fuse.cluster.ports import HeldPorts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

_ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(not pid_namespaces.are_allowed(), reason=pid_namespaces.NOT_ALLOWED)
@pytest.mark.parametrize("number", [signal.SIGTERM, slow(signal.SIGINT)])
def test_signals_end_it(number):
    with HeldPorts(1) as ports:
        config = {
            "cluster": {"ps": [f"localhost:{ports.numbers[0]}"]},
            "task": {"type": "ps", "index": 0},
            "rpc_layer": "grpc+fuse",
        }
        outside = subprocess.Popen(
            [*pid_namespaces.COMMAND, sys.executable, "-m", "tf_fuse", "run"],
            env={**os.environ, "PYTHONPATH": str(_ROOT), "TF_CONFIG": json.dumps(config)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        ready = next((line for line in outside.stdout if "serve: ready" in line), "")
        assert re.search(r"pid=\d+\n$", ready)
        (first,) = psutil.Process(outside.pid).children()
        first.send_signal(number)
        assert outside.wait(timeout=100) == 128 + number


# Stops the import of the package at the module that takes longest.
_STOPS = """
import signal, sys
class Finder:
    def find_spec(name, path=None, target=None):
        if name == "tf_fuse._native":
            print("imports", flush=True)
            while True:
                signal.pause()
sys.meta_path.insert(0, Finder)
"""


@pytest.mark.skipif(not pid_namespaces.are_allowed(), reason=pid_namespaces.NOT_ALLOWED)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("how", ["module", "script"])
def test_a_signal_ends_it_while_it_is_imported(tmp_path, how, number):
    (tmp_path / "sitecustomize.py").write_text(_STOPS)
    script = tmp_path / "tf-fuse"
    script.write_text("import sys\nfrom tf_fuse.__main__ import main\nsys.exit(main())\n")
    command = ["-m", "tf_fuse"] if how == "module" else [script]
    outside = subprocess.Popen(
        [*pid_namespaces.COMMAND, sys.executable, *command, "run"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{_ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert outside.stdout.readline() == "imports\n"
        psutil.Process(outside.pid).children()[0].send_signal(number)
        assert outside.wait(timeout=60) == 128 + number
    finally:
        outside.kill()  # and, with it, what is in the namespace
        outside.communicate()


@pytest.mark.skipif(not pid_namespaces.are_allowed(), reason=pid_namespaces.NOT_ALLOWED)
def test_a_program_that_is_the_first_process_keeps_its_handlers():
    """Only the commands are ended."""
    program = (
        "import signal\n"
        "both = [signal.SIGTERM, signal.SIGINT]  # SIGINT is ignored in a shell's background\n"
        "handlers = [signal.getsignal(one) for one in both]\n"
        "import tf_fuse\n"
        "print(*(signal.getsignal(one) is old for one, old in zip(both, handlers)))"
    )
    done = subprocess.run(
        [*pid_namespaces.COMMAND, sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True True\n"


@pytest.mark.skipif(not pid_namespaces.are_allowed(), reason=pid_namespaces.NOT_ALLOWED)
def test_a_signal_ends_it_while_it_starts():
    with HeldPorts(1) as ports:
        config = {
            "cluster": {"ps": [f"localhost:{ports.numbers[0]}"]},
            "task": {"type": "ps", "index": 0},
            "rpc_layer": "grpc+fuse",
        }
        outside = subprocess.Popen(
            [*pid_namespaces.COMMAND, sys.executable, "-m", "tf_fuse", "run"],
            env={**os.environ, "PYTHONPATH": str(_ROOT), "TF_CONFIG": json.dumps(config)},
            stdout=subprocess.DEVNULL,
        )
        library = "tensorflow/libtensorflow_framework"

        def importing():
            for one in psutil.Process(outside.pid).children(recursive=True):
                if library in Path(f"/proc/{one.pid}/maps").read_text():
                    return True
            return False

        assert wait_until(importing)
        psutil.Process(outside.pid).children()[0].send_signal(signal.SIGTERM)
        assert outside.wait(timeout=100) == 128 + signal.SIGTERM


@pytest.mark.skipif(not pid_namespaces.are_allowed(), reason=pid_namespaces.NOT_ALLOWED)
@pytest.mark.parametrize("platform", ["task", "job"])
def test_a_signal_ends_a_program_that_ignores_it(tmp_path, platform):
    """By the limits of a container, which are in `test_end_limits`: a program may have more."""
    program = tmp_path / "program.py"
    program.write_text(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('waits', flush=True)\nwhile True:\n    signal.pause()\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    if platform == "task":
        config = {"cluster": {"chief": ["localhost:1"]}, "task": {"type": "chief", "index": 0}}
        env["TF_CONFIG"] = json.dumps(config)
    outside = subprocess.Popen(
        [*pid_namespaces.COMMAND, sys.executable, "-m", "tf_fuse", "launch", program],
        env={**env, "PYTHONPATH": str(_ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert any("waits" in line for line in outside.stdout)
    (first,) = psutil.Process(outside.pid).children()
    processes = first.children(recursive=True)
    first.send_signal(signal.SIGTERM)
    outside.communicate(timeout=100)
    assert outside.returncode == 128 + signal.SIGTERM
    assert psutil.wait_procs(processes, timeout=60)[1] == []


# A shell leaves a process behind, whose parent is then the first process.
_LEAVES = '(sleep 0.1 &); exec "$@"'


@pytest.mark.skipif(not pid_namespaces.are_allowed(), reason=pid_namespaces.NOT_ALLOWED)
def test_processes_whose_parents_have_ended_do_not_stay_as_zombies():
    with HeldPorts(1) as ports:
        config = {
            "cluster": {"ps": [f"localhost:{ports.numbers[0]}"]},
            "task": {"type": "ps", "index": 0},
        }
        outside = subprocess.Popen(
            [*pid_namespaces.COMMAND, "sh", "-c", _LEAVES, "sh", sys.executable, "-m", "tf_fuse",
             "run"],
            env={**os.environ, "PYTHONPATH": str(_ROOT), "TF_CONFIG": json.dumps(config)},
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        wait_until(lambda: psutil.Process(outside.pid).children())
        (first,) = psutil.Process(outside.pid).children()
        next(line for line in outside.stdout if "serve: ready" in line)
        names = wait_until(lambda: _only_the_command(first))
        assert names == ["python"], names
        first.send_signal(signal.SIGTERM)
        assert outside.wait(timeout=100) == 128 + signal.SIGTERM


def _only_the_command(first):
    """Return the names of the children if it is one: the command."""
    names = [one.name().rstrip("0123456789.") for one in first.children()]
    return names if len(names) == 1 else []


@pytest.mark.skipif(not pid_namespaces.are_allowed(), reason=pid_namespaces.NOT_ALLOWED)
@pytest.mark.parametrize(
    ("code", "status"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("pass", 0)]
)
def test_its_status_is_that_of_the_program(tmp_path, code, status):
    program = tmp_path / "program.py"
    program.write_text(f"import os, sys\nprint('first', os.getppid() != 1)\n{code}\n")
    config = {"cluster": {"chief": ["localhost:1"]}, "task": {"type": "chief", "index": 0}}
    done = subprocess.run(
        [*pid_namespaces.COMMAND, sys.executable, "-m", "tf_fuse", "launch", program],
        env={**os.environ, "PYTHONPATH": str(_ROOT), "TF_CONFIG": json.dumps(config)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert "first True\n" in done.stdout
