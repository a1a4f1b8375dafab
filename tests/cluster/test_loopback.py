# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Jobs on one machine listen where no other machine can connect."""

import ipaddress
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import listening, scripted
from tests.slow_cases import slow
from tf_fuse.cluster.local_cluster import LocalCluster
from tf_fuse.cluster.task_process import ONE_HOST, Host

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

_ROOT = Path(__file__).resolve().parents[2]
# Runs a step on servers, then says at which addresses each process of the job listens.
_PROGRAM = """
    import json, os, psutil, sys
    sys.path.insert(0, {root!r})
    import tensorflow as tf
    import tf_fuse
    from tests import listening

    tf.config.optimizer.set_experimental_options({{"tf_fuse": True}})
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    {step}
    launcher = psutil.Process(os.getppid())
    pids = [launcher.pid, *(one.pid for one in launcher.children(recursive=True))]
    found = listening.tcp_addresses(pids)
    print("listens", json.dumps(sorted(map(sorted, found.values()))), flush=True)
    os._exit(0)
"""
# The same of a process that starts a cluster of its own; by connecting it becomes a server, too.
_CALLER = """
    import json, os, sys
    sys.path.insert(0, {root!r})
    import tensorflow as tf
    import tf_fuse
    from tests import listening
    from tf_fuse.cluster.local_cluster import LocalCluster

    tf.config.optimizer.set_experimental_options({{"tf_fuse": True}})
    cluster = LocalCluster(1, {servers}, "grpc+fuse", sys.argv[1])
    resolver = cluster.resolver()
    {step}
    own = listening.tcp_addresses([os.getpid()])[os.getpid()]
    found = listening.tcp_addresses(cluster.pids.values())
    cluster.close()
    print("listens", json.dumps([sorted(own), *map(sorted, found.values())]), flush=True)
    os._exit(0)
"""
_ON_SERVERS = """
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        weight = tf.Variable(tf.zeros([1 << 20]))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    coordinator.schedule(tf.function(lambda: weight.assign_add(tf.ones([1 << 20]))))
    coordinator.join()
"""
_ON_REPLICAS = """
    strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    total = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce(
        "sum", tf.ones([1 << 20])))
"""

_ON_WORKER = """
    tf.config.experimental_connect_to_cluster(
        resolver, "chief", protocol="grpc+fuse", make_master_device_default=False
    )
    with tf.device("/job:worker/task:0"):
        assert tf.reduce_sum(tf.ones([1 << 20])).numpy() == 1 << 20
"""


def _run(tmp_path, text, *command):
    """Run a program with this text, after a command; return what it has written."""
    program = tmp_path / "program.py"
    program.write_text(
        "\n".join(line.removeprefix("    ") for line in text.splitlines()), encoding="utf-8"
    )
    env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    done = subprocess.run(
        [sys.executable, *command, program, tmp_path / "logs"],
        env={**env, "PYTHONPATH": os.fspath(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def _has_ipv6():
    return Path("/proc/net/if_inet6").exists() and "::1" in {
        str(ipaddress.ip_address(bytes.fromhex(line.split()[0])))
        for line in Path("/proc/net/if_inet6").read_text().splitlines()
    }


def _loopback():
    return {"127.0.0.1", "::1"} if _has_ipv6() else {"127.0.0.1"}


@pytest.mark.parametrize("servers", [1, 0], ids=["servers", "worker"])
def test_a_local_cluster(tmp_path, servers):
    """With the process that has started it; its cluster spec does not name that."""
    step = _ON_SERVERS if servers else _ON_WORKER
    done = _run(tmp_path, _CALLER.format(root=os.fspath(_ROOT), step=step, servers=servers))
    own, *tasks = json.loads(done.stdout.partition("listens ")[2])
    assert set(own) == _loopback()
    assert [set(one) for one in tasks] == [_loopback()] * (1 + servers)


def test_a_task_that_is_reached_by_another_name(tmp_path):
    """Whoever has inherited the variable of a job on one machine may be in one on several."""
    hosts = {"worker": Host(scripted.OTHER_HOST)}
    with LocalCluster(1, 0, "grpc+fuse", tmp_path, env=ONE_HOST, hosts=hosts) as cluster:
        (found,) = listening.tcp_addresses(cluster.pids.values()).values()
        assert not found <= _loopback()


def test_stock_servers_listen_everywhere(tmp_path):
    """What the tables of the kernel say would be seen."""
    with LocalCluster(1, 0, "grpc", tmp_path) as cluster:
        (found,) = listening.tcp_addresses(cluster.pids.values()).values()
        assert not found <= _loopback()


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (_ON_SERVERS, ["--workers", "1", "--ps", "1"]),
        (_ON_REPLICAS, ["--workers", "2"]),
        slow(_ON_REPLICAS, []),
    ],
    ids=["servers", "replicas", "replica"],
)
def test_a_launched_job(tmp_path, step, options):
    text = _PROGRAM.format(root=os.fspath(_ROOT), step=step)
    done = _run(tmp_path, text, "-m", "tf_fuse", "launch", *options)
    lines = [line for line in done.stdout.splitlines() if "] listens " in line]
    assert lines
    for line in lines:
        everywhere = json.loads(line.partition("listens ")[2])
        assert set().union(*everywhere) == _loopback(), line
