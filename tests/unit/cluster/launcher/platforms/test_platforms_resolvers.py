# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `tf-fuse launch` reads of the environment, against TensorFlow's own resolvers."""

import json
import os

import pytest
import tensorflow as tf

from tests import slurm
from tf_fuse.cluster import serve
from tf_fuse.cluster.launcher import platforms
from tf_fuse.cluster.task_process import tf_config

_resolvers = tf.distribute.cluster_resolver
# Nodes, tasks of each, and hosts by task.
_NODES = {
    "one": ("n7", "3", ["n7"] * 3),
    "range": ("n[1-3]", "2(x2),1", ["n1", "n1", "n2", "n2", "n3"]),
    "zeros": ("n[08-10],n12", "1(x4)", ["n08", "n09", "n10", "n12"]),
    "several": ("a1,b[1,3-4]", "1,2,1(x2)", ["a1", "b1", "b1", "b3", "b4"]),
}
# Where the resolver by itself gives another order, or none.
_WITHOUT_IT = {
    "numbers": ("n[9-10]", "2,1", ["n9", "n9", "n10"]),
    "names": ("n[1-2],m1", "1(x3)", ["n1", "n2", "m1"]),
    "ranges": ("r[0-1]n[1-2]", "1(x4)", ["r0n1", "r0n2", "r1n1", "r1n2"]),
}


class _Host(str):
    """A host whose order is its place in Slurm's list: the resolver sorts hosts."""

    def __new__(cls, name, place):
        host = super().__new__(cls, name)
        host.place = place
        return host

    def __lt__(self, other):
        return self.place < other.place


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A function that puts this process into a step of Slurm, as the task of a number."""
    slurm.install(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("TF_CONFIG", raising=False)

    def start(rank, nodes, counts, hosts):
        for name, value in {
            "SLURM_PROCID": rank,
            "SLURM_STEP_NUM_TASKS": len(hosts),
            "SLURM_STEP_NODELIST": nodes,
            "SLURM_STEP_TASKS_PER_NODE": counts,
        }.items():
            monkeypatch.setenv(name, str(value))

    return start


def _resolved(resolver):
    cluster = resolver.cluster_spec().as_dict()
    return cluster, *resolver.get_task_info(), resolver.rpc_layer


def _found(place):
    text = tf_config(place.cluster, place.job, place.index, serve.FUSED_PROTOCOL)
    assert json.loads(text)["cluster"] == place.cluster
    return place.cluster, place.job, place.index, json.loads(text)["rpc_layer"]


def _arguments(place, counts):
    """Return what the resolver can be given; it does not count without GPUs."""
    return {
        "jobs": {job: len(tasks) for job, tasks in place.cluster.items()},
        "gpus_per_node": max(counts),
        "gpus_per_task": 1,
        "auto_set_gpu": False,
        "rpc_layer": serve.FUSED_PROTOCOL,
    }


@pytest.mark.parametrize("servers", [0, 1])
@pytest.mark.parametrize("case", [*_NODES, *_WITHOUT_IT])
def test_slurm_by_the_resolver_with_its_hosts_in_order(start, case, servers):
    nodes, counts, hosts = {**_NODES, **_WITHOUT_IT}[case]
    of_host = {_Host(name, i): hosts.count(name) for i, name in enumerate(dict.fromkeys(hosts))}
    for rank in range(len(hosts)):
        start(rank, nodes, counts, hosts)
        place = platforms.find_task(os.environ, None, servers)
        resolver = _resolvers.SlurmClusterResolver(
            tasks_per_node=of_host, **_arguments(place, of_host.values())
        )
        assert _resolved(resolver) == _found(place)


@pytest.mark.parametrize("servers", [0, 1])
@pytest.mark.parametrize("case", _NODES)
def test_slurm_by_the_resolver_itself(start, case, servers):
    nodes, counts, hosts = _NODES[case]
    for rank in range(len(hosts)):
        start(rank, nodes, counts, hosts)
        place = platforms.find_task(os.environ, None, servers, port=7000)
        arguments = _arguments(place, [hosts.count(one) for one in hosts])
        resolver = _resolvers.SlurmClusterResolver(port_base=7000, **arguments)
        assert _resolved(resolver) == _found(place)


@pytest.mark.parametrize("case", _WITHOUT_IT)
def test_why_the_resolver_alone_does_not_do(start, case):
    """If this fails, TensorFlow has mended it."""
    nodes, counts, hosts = _WITHOUT_IT[case]
    start(0, nodes, counts, hosts)
    place = platforms.find_task(os.environ, None, 0)
    assert [one.rpartition(":")[0] for one in place.cluster["worker"]] == hosts
    arguments = _arguments(place, [hosts.count(one) for one in hosts])
    if case == "ranges":
        with pytest.raises(ValueError, match="Invalid hostlist format"):
            _resolvers.SlurmClusterResolver(**arguments)
    else:
        cluster = _resolved(_resolvers.SlurmClusterResolver(**arguments))[0]
        assert sorted(cluster["worker"]) == sorted(place.cluster["worker"])
        assert cluster != place.cluster


def test_the_resolver_does_not_count_without_gpus(start):
    nodes, counts, hosts = _NODES["range"]
    start(0, nodes, counts, hosts)
    with pytest.raises(ValueError, match="must not be zero"):
        _resolvers.SlurmClusterResolver(gpus_per_node=0).cluster_spec()


@pytest.mark.parametrize(
    ("cluster", "task"),
    [
        ({"worker": ["a:1", "b:1"]}, ("worker", 1)),
        ({"chief": ["c:1"], "ps": ["p:1"], "worker": ["a:1", "b:1"]}, ("ps", 0)),
        ({"chief": ["c:1"], "ps": ["p:1"], "worker": ["a:1"]}, ("chief", 0)),
        ({"worker": {"0": "a:1", "1": "b:1"}}, ("worker", "1")),
        ({"master": ["m:1"], "ps": ["p:1"], "worker": ["a:1"]}, ("master", 0)),
    ],
)
def test_tf_config_of_a_tfjob(cluster, task, monkeypatch):
    """Which has no `rpc_layer`; and what the task then gets, which has."""
    given = {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(given | {"environment": "cloud"}))
    found = _found(platforms.find_task(os.environ, None, None))
    stock = _resolvers.TFConfigClusterResolver(rpc_layer=serve.FUSED_PROTOCOL)
    seen = stock.cluster_spec().as_dict(), stock.task_type, stock.task_id, stock.rpc_layer
    assert seen == found
    monkeypatch.setenv("TF_CONFIG", tf_config(*found))
    own = _resolvers.TFConfigClusterResolver()
    assert (own.cluster_spec().as_dict(), own.task_type, own.task_id, own.rpc_layer) == found
