# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-fuse launch` when a task is killed while it starts, trains, saves or ends; taken ports."""

import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.fault.coordinator import wait_until
from tests.slow_cases import slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(300)]

_ROOT = Path(__file__).resolve().parents[3]
_LAUNCH = [sys.executable, "-m", "tf_fuse", "launch"]
# Counts to eight on a server, with a checkpoint at each step, from which it goes on. Once, at the
# phase that its second argument says, it kills the task that its third one says.
_TRAIN = """
    import os, pathlib, re, sys
    import tensorflow as tf
    import tf_fuse

    folder, phase, to_kill = pathlib.Path(sys.argv[1]), *sys.argv[2:]
    tf.config.optimizer.set_experimental_options({"tf_fuse": True})
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        count = tf.Variable(0)
    checkpoint = tf.train.Checkpoint(count=count)
    manager = tf.train.CheckpointManager(checkpoint, str(folder / "checkpoints"), max_to_keep=2)
    manager.restore_or_initialize()
    print("begins at", int(count.numpy()), flush=True)

    def kill(now):
        mark = folder / "killed"
        if now == phase and not mark.exists():
            mark.touch()
            pid = os.getpid()
            if to_kill != "chief-0":
                log = (folder / "logs" / f"{to_kill}.log").read_text()
                pid = int(re.findall(r"ready .*pid=(\\d+)", log)[-1])
            os.kill(pid, 9)

    step = tf.function(lambda: count.assign_add(1))
    while (before := int(count.numpy())) < 8:
        coordinator.schedule(step)
        if before == 5:
            kill("training")
        coordinator.join()
        if int(count.numpy()) == 5:
            kill("saving")
        manager.save()
    print("ends at", int(count.numpy()), flush=True)
    kill("ending")
    os._exit(0)  # Python would wait for threads of TensorFlow.
"""


def _start(tmp_path, *command, **env):
    return subprocess.Popen(
        [*_LAUNCH, *map(str, command)],
        env={
            **{name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
            "PYTHONPATH": os.fspath(_ROOT),
            "GRPC_FAIL_FAST": "use_caller",
            **env,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# (`test_launch` ends a worker and a server while the program trains.)
_DEFAULT = [("saving", "ps-0")]
_CASES = slow_but(
    itertools.product(("training", "saving", "ending"), ("worker-0", "ps-0", "chief-0")),
    lambda case: case in _DEFAULT,
)


@pytest.mark.parametrize(("phase", "task"), _CASES)
def test_a_task_is_killed(tmp_path, phase, task):
    """The job counts to eight: again from a checkpoint, or with another worker."""
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(_TRAIN))
    options = ["--workers", "2", "--ps", "1", "--max-restarts", "1", "--log-dir", tmp_path / "logs"]
    job = _start(tmp_path, *options, program, tmp_path, phase, task)
    output, _ = job.communicate(timeout=280)
    assert job.returncode == 0, output
    ends = [int(one) for one in re.findall(r"\[chief:0\] ends at (\d+)", output)]
    assert ends and min(ends) >= 8 and max(ends) <= 9  # a killed worker's step may count twice
    begins = [int(one) for one in re.findall(r"\[chief:0\] begins at (\d+)", output)]
    again = {"training": 5, "saving": 4, "ending": 8}[phase]
    if task == "worker-0" or (task, phase) == ("ps-0", "ending"):
        assert begins[0] == 0 and begins[1:] in ([], [again])
    else:
        assert begins == [0, again]


@pytest.mark.parametrize("task", ["worker 0", "ps 0"])
def test_a_task_is_killed_while_it_starts(tmp_path, task):
    """The job ends, and says whose log to read."""
    program = tmp_path / "program.py"
    program.write_text("")
    job = _start(tmp_path, "--workers", "1", "--ps", "1", "--log-dir", tmp_path / "logs", program)
    kind, index = task.split()

    def starting():
        for one in psutil.Process(job.pid).children():
            if "serve.py" in " ".join(one.cmdline()):
                config = json.loads(one.environ()["TF_CONFIG"])["task"]
                if config == {"type": kind, "index": int(index)}:
                    return one
        return None

    wait_until(lambda: starting() is not None)
    starting().kill()
    output, _ = job.communicate(timeout=100)
    assert job.returncode == 1, output
    text = (
        f"error: task {kind}:{index} ended with status -9 before it was ready; the end of its log"
    )
    assert text in output


def test_a_port_that_is_taken(tmp_path):
    """A task of a platform says so, and ends with the status of that."""
    program = tmp_path / "program.py"
    program.write_text("")
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        cluster = {"chief": ["localhost:1"], "ps": [f"localhost:{port}"], "worker": ["localhost:2"]}
        config = json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}})
        task = _start(tmp_path, program, TF_CONFIG=config)
        output, _ = task.communicate(timeout=100)
    assert task.returncode == 4
    assert f"port {port} of task ps:0 (address localhost:{port}) is in use" in output


_MOUNT = ["unshare", "--user", "--map-root-user", "--mount"]


def _may_mount():
    if not shutil.which("unshare"):
        return False
    return subprocess.run([*_MOUNT, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _may_mount(), reason="this user may not mount a disk that can be full")
def test_a_full_disk(tmp_path):
    """Programs get the error; the launcher goes on, and has their status."""
    program = tmp_path / "program.py"
    program.write_text("import sys\nprint('x' * (1 << 20), flush=True)\n")
    folder = tmp_path / "small"
    folder.mkdir()
    script = f'mount -t tmpfs -o size=64k none {folder} && exec "$@"'
    done = subprocess.run(
        [*_MOUNT, "sh", "-c", script, "sh", *_LAUNCH, "--log-dir", folder, program],
        env={**os.environ, "PYTHONPATH": os.fspath(_ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr
    assert "worker:0 ended, status 1; --max-restarts is 0" in done.stdout


def test_a_signal_while_tasks_start(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("")
    job = _start(tmp_path, "--workers", "2", "--ps", "1", program)
    launcher = psutil.Process(job.pid)
    wait_until(lambda: len(launcher.children()) >= 3)
    tasks = launcher.children(recursive=True)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=100)
    assert job.returncode == 128 + signal.SIGTERM
    assert psutil.wait_procs(tasks, timeout=100)[1] == []
