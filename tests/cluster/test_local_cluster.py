# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Local clusters: starting, failing to start, signals, restart, and that nothing is left behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from examples import standalone
from tests import forking

cluster_package = standalone.cluster_package()
LocalCluster = cluster_package.LocalCluster
local_cluster = sys.modules[f"{cluster_package.__name__}.local_cluster"]

_ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.cluster

# Starts a cluster, stops one of its tasks, says who they are, and waits to be killed.
_PARENT = """
import json, signal
from examples import standalone
cluster = standalone.cluster_package().LocalCluster(1, 2, "grpc")
cluster.stop("ps:1")
print(json.dumps([cluster.pids, str(cluster.log_dir)]), flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def _as_users_start_it(monkeypatch):
    """How the processes of a cluster begin and end is what is tested here."""
    monkeypatch.setenv(forking.VARIABLE, "0")


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_life_of_a_cluster(tmp_path):
    env, task_env = {"TF_FUSE_TEST": "1"}, {"ps": {"A": "job", "B": "job"}, "ps:1": {"B": "task"}}
    with LocalCluster(1, 2, "grpc", tmp_path, env, task_env=task_env) as cluster:
        assert cluster.tasks == ["worker:0", "ps:0", "ps:1"]
        assert {job: len(tasks) for job, tasks in cluster.cluster_spec.items()} == {
            "worker": 1,
            "ps": 2,
        }
        addresses = [a for tasks in cluster.cluster_spec.values() for a in tasks]
        assert len(set(addresses)) == 3
        assert all(map(_listens, addresses))
        for task, pid in cluster.pids.items():
            assert re.search(
                rf"^tf_fuse serve: ready task={task} address=\S+ protocol=grpc pid={pid}$",
                cluster.logs(task),
                re.MULTILINE,
            )
            environ = psutil.Process(pid).environ()
            assert environ["TF_FUSE_TEST"] == "1"
            expected = {"ps:0": ("job", "job"), "ps:1": ("job", "task")}.get(task, (None, None))
            assert (environ.get("A"), environ.get("B")) == expected
            maps = {m.path for m in psutil.Process(pid).memory_maps()}
            assert not any("libtf_fuse" in path for path in maps), "stock means no plugin"
        assert all(seconds > 0 for seconds in cluster.cpu_seconds().values())

        first = cluster.pids["ps:1"]
        cluster.kill("ps:1")
        assert not psutil.pid_exists(first)
        assert not _listens(cluster.cluster_spec["ps"][1])
        with pytest.raises(RuntimeError, match=rf"ps:1 \(pid {first}\) has ended with status -9"):
            cluster.stop("ps:1")
        cluster.restart("ps:1")
        assert cluster.pids["ps:1"] != first
        assert _listens(cluster.cluster_spec["ps"][1])
        assert cluster.logs("ps:1").count("tf_fuse serve: ready") == 2

        cluster.stop("worker:0")
        cluster.cont("worker:0")
        cluster.stop("ps:0")
        with pytest.raises(KeyError, match="no task 'ps:7' in this cluster"):
            cluster.kill("ps:7")
        pids = cluster.pids
    assert not any(map(psutil.pid_exists, pids.values()))
    cluster.close()
    assert (tmp_path / "ps-1.log").exists()


def test_nothing_outlives_a_killed_parent():
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT], cwd=_ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids, _ = json.loads(parent.stdout.readline())
    children = [psutil.Process(pid) for pid in pids.values()]
    assert psutil.Process(pids["ps:1"]).status() == psutil.STATUS_STOPPED
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    for process in alive:
        process.kill()
    assert alive == []
    parent.stdout.close()


def test_dead_task_is_reported_with_its_log(tmp_path):
    with pytest.raises(cluster_package.ClusterStartError) as caught:
        LocalCluster(1, 1, {"worker": "grpc", "ps": "nonesuch"}, tmp_path)
    text = str(caught.value)
    assert text.startswith("task ps:0 ended with status 3 before it was ready; the end of its log")
    assert "cannot start task ps:0 at localhost:" in text
    assert "with protocol 'nonesuch'" in text
    children = psutil.Process().children(recursive=True)
    assert [c for c in children if "serve.py" in " ".join(c.cmdline())] == []


def test_a_taken_port_is_chosen_anew(monkeypatch):
    real, asked = local_cluster.HeldPorts, []
    with socket.create_server(("localhost", 0)) as taken:

        def first_taken(count):
            held = real(count)
            if count:
                asked.append(count)
                if len(asked) == 1:
                    held.numbers[0] = taken.getsockname()[1]
            return held

        monkeypatch.setattr(local_cluster, "HeldPorts", first_taken)
        with LocalCluster(1, 0, "grpc") as cluster:
            assert asked == [2, 2]
            assert cluster.cluster_spec["worker"] != [f"localhost:{taken.getsockname()[1]}"]
            log_dir = cluster.log_dir
    assert not os.path.exists(log_dir)


def test_a_host_of_no_task_is_refused():
    message = r"hosts names \['ps:1'\]; this cluster has \['worker:0', 'ps:0'\] and chief"
    with pytest.raises(ValueError, match=message):
        LocalCluster(
            1, 1, "grpc", hosts={"ps:1": cluster_package.Host(), "chief": cluster_package.Host()}
        )
