# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-fuse launch --health-port`, and the steps that it counts."""

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import forking
from tests.cluster.cli import ssh
from tf_fuse.cluster.launcher import step_counts
from tf_fuse.cluster.ports import HeldPorts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_ROOT = Path(__file__).resolve().parents[3]
# Says what the launcher answers, and by how much a number of steps changes that.
_ASKS = """
    import os, re, sys, urllib.request
    import tensorflow as tf
    import tf_fuse

    def ask(path):
        answer = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}{path}", timeout=60)
        return answer.read().decode()

    def steps():
        line = r'^tf_fuse_(?:collective_)?steps_total{task="(.*)"} (\\d+)$'
        found = re.findall(line, ask("/metrics"), re.MULTILINE)
        return {task: int(count) for task, count in found}

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
"""
_ON_SERVERS = """
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        count = tf.Variable(0)
    step = tf.function(lambda: count.assign_add(1))
    coordinator.schedule(step)
    coordinator.join()
    before = steps()
    for _ in range(20):
        coordinator.schedule(step)
    coordinator.join()
    after = steps()
    print("tasks", sorted(after), flush=True)
    print(ask("/metrics").splitlines()[0], flush=True)
    print("steps", sum(after.values()) - sum(before.values()), flush=True)
    print("answers", ask("/healthz") + ask("/readyz"), flush=True)
    os._exit(0)
"""
_ON_REPLICAS = """
    strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    name = f"worker:{resolver.task_id}"

    def twice():
        context = tf.distribute.get_replica_context()
        return context.all_reduce("sum", context.all_reduce("sum", tf.ones([2])))

    step = tf.function(lambda: strategy.run(twice))
    step()
    before = steps()[name]
    for _ in range(10):
        step()
    print("steps", steps()[name] - before, flush=True)
"""


# As `_ON_SERVERS`, but hosts say their counts each second.
_ON_HOSTS = """
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        count = tf.Variable(0)
    step = tf.function(lambda: count.assign_add(1))
    for _ in range(20):
        coordinator.schedule(step)
    coordinator.join()
    while sum(steps().values()) < 20:
        pass
    print("tasks", sorted(steps()), flush=True)
    os._exit(0)
"""


def _env(**variables):
    env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    return {**env, "PYTHONPATH": os.fspath(_ROOT), **variables}


def _launch(tmp_path, text, *options, **variables):
    """Run a program with a port where it can ask; return what the launcher wrote."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(_ASKS) + textwrap.dedent(text))
    with HeldPorts(1) as ports:
        (port,) = ports.numbers
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tf_fuse", "launch", *options),
                *("--health-port", str(port), str(program), str(port)),
            ],
            env=_env(**forking.LAUNCHED | variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    assert f"tf-fuse launch: health at http://127.0.0.1:{port}/healthz\n" in done.stdout
    return done.stdout


def test_steps_of_workers(tmp_path):
    output = _launch(tmp_path, _ON_SERVERS, "--workers", "2", "--ps", "1")
    assert "[chief:0] tasks ['worker:0', 'worker:1']\n" in output
    assert "[chief:0] steps 20\n" in output
    assert "[chief:0] # TYPE tf_fuse_steps_total counter\n" in output
    assert "[chief:0] answers ok\n[chief:0] ok\n" in output


def test_steps_of_workers_on_hosts(tmp_path):
    ssh.install(tmp_path)
    (tmp_path / "hosts").write_text("localhost\n")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    options = ["--workers", "2", "--ps", "1", "--hosts", str(tmp_path / "hosts")]
    output = _launch(tmp_path, _ON_HOSTS, *options, PATH=path)
    assert "[chief:0] tasks ['worker:0', 'worker:1']\n" in output


def test_steps_of_replicas(tmp_path):
    output = _launch(tmp_path, _ON_REPLICAS, "--workers", "2")
    assert sorted(re.findall(r"^\[(worker:\d)\] steps 10$", output, re.MULTILINE)) == [
        "worker:0", "worker:1",
    ]  # fmt: skip


def test_a_program_beside_servers_has_no_steps(tmp_path):
    """They are calls of workers."""
    cluster = {"chief": ["localhost:1"], "ps": ["localhost:2"], "worker": ["localhost:3"]}
    config = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    options = ["--health-address", "127.0.0.1"]
    text = "print('metrics', repr(ask('/metrics')))"
    output = _launch(tmp_path, text, *options, TF_CONFIG=json.dumps(config))
    assert "\nmetrics ''\n" in output


def test_a_task_of_a_platform(tmp_path):
    """It listens on the address that it is given."""
    config = {"cluster": {"worker": ["localhost:1"]}, "task": {"type": "worker", "index": 0}}
    text = "print(steps(), ask('/healthz'), ask('/readyz'))"
    options = ["--health-address", "127.0.0.1"]
    output = _launch(tmp_path, text, *options, TF_CONFIG=json.dumps(config))
    assert "{'worker:0': 0} ok\n ok\n" in output


@pytest.mark.parametrize("config", ["", "chief"], ids=["job", "task"])
def test_a_port_that_is_taken(tmp_path, config):
    (tmp_path / "program.py").write_text("")
    variables = {}
    if config:
        cluster = {"cluster": {"chief": ["localhost:1"]}, "task": {"type": "chief", "index": 0}}
        variables["TF_CONFIG"] = json.dumps(cluster)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        options = ["--health-address", "127.0.0.1", "--health-port", str(port)]
        done = subprocess.run(
            [sys.executable, "-m", "tf_fuse", "launch", *options, str(tmp_path / "program.py")],
            env=_env(**variables),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 4
    assert done.stderr == (
        f"tf-fuse launch: error: --health-port {port} is in use by another process on this "
        "machine\n"
    )


def _import_with(variable):
    name = step_counts.VARIABLE
    program = (
        "import os, tensorflow as tf, tf_fuse\n"
        f"print(tf_fuse.metrics()['steps'], os.environ.get({name!r}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=_env(**{name: variable}),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_counts_go_on_in_the_memory_of_the_launcher():
    """And programs that a task starts do not count there."""
    count = step_counts.StepCount("steps")
    path = count.variable[step_counts.VARIABLE]
    with open(path, "r+b") as memory:
        memory.write((41).to_bytes(8, sys.byteorder))
    assert count.read() == 41
    assert _import_with(path) == "41 None\n"


def test_a_file_of_others_stays_unread(tmp_path):
    """A variable that has outlived its launcher may name one."""
    file = tmp_path / "file"
    file.write_bytes(b"1" * 16)
    with open(file, "rb") as opened:
        path = f"/proc/{os.getpid()}/fd/{opened.fileno()}"
        assert _import_with(path) == "0 None\n"
    assert _import_with(str(tmp_path / "none")) == "0 None\n"
    assert file.read_bytes() == b"1" * 16
