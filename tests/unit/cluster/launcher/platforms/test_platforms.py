# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which task a process is, by the environment in which Slurm or Kubernetes starts it."""

import json
import os
import socket

import pytest

from tests import slurm
from tf_fuse.cluster import serve
from tf_fuse.cluster.launcher import platforms
from tf_fuse.cluster.task_process import tf_config


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """A program of that name, which does what Slurm's does."""
    slurm.install(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


def _slurm(rank, nodes="n[9-10],m01", counts="2(x2),1", **more):
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": counts,
        **more,
    }


def _kubernetes(host, index):
    return {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "JOB_COMPLETION_INDEX": str(index),
        "HOSTNAME": host,
    }


@pytest.fixture(autouse=True)
def domain(monkeypatch):
    """Pods of a headless Service have a domain."""
    monkeypatch.setattr(socket, "getfqdn", lambda name: f"{name}.train.ns.svc.cluster.local")


def test_no_platform_has_started_this_process():
    assert platforms.find_task({}, None, 0) is None
    alone = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}  # an interactive shell
    assert platforms.find_task(alone, None, 0) is None
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "shell"}
    assert platforms.find_task(pod, None, 0) is None


@pytest.mark.usefixtures("scontrol")
def test_slurm_counts_tasks_in_the_order_of_the_nodes():
    cluster = {
        "chief": ["n9:8888"],
        "ps": ["n9:8889"],
        "worker": ["n10:8888", "n10:8889", "m01:8888"],
    }
    found = [platforms.find_task(_slurm(rank), None, 1) for rank in range(5)]
    assert [(one.job, one.index) for one in found] == [
        ("chief", 0), ("ps", 0), ("worker", 0), ("worker", 1), ("worker", 2),
    ]  # fmt: skip
    assert all(one.cluster == cluster and one.platform == "Slurm" for one in found)
    assert [one.is_server for one in found] == [False, True, True, True, True]


@pytest.mark.usefixtures("scontrol")
def test_slurm_workers_alone_and_another_port():
    found = platforms.find_task(_slurm(4), 5, 0, port=7000)
    assert found.cluster == {"worker": ["n9:7000", "n9:7001", "n10:7000", "n10:7001", "m01:7000"]}
    assert (found.job, found.index, found.is_server) == ("worker", 4, False)


@pytest.mark.usefixtures("scontrol")
@pytest.mark.parametrize(
    ("nodes", "counts", "hosts"),
    [
        ("r[0-1]n[1-2],m1", "1(x5)", ["r0n1", "r0n2", "r1n1", "r1n2", "m1"]),
        ("n1-ib,n2-ib", "3,2", ["n1-ib", "n1-ib", "n1-ib", "n2-ib", "n2-ib"]),
    ],
)
def test_slurm_names_with_several_numbers(nodes, counts, hosts):
    found = platforms.find_task(_slurm(0, nodes, counts), None, 0)
    assert [one.rpartition(":")[0] for one in found.cluster["worker"]] == hosts


@pytest.mark.usefixtures("scontrol")
@pytest.mark.parametrize(
    ("environ", "workers", "servers", "text"),
    [
        (
            _slurm(0), 4, 2,
            "Slurm has started 5 tasks, but 4 worker(s), 2 server(s) and a program are 7: change "
            "srun --ntasks, or --workers and --ps",
        ),
        (
            _slurm(0), None, 4,
            "Slurm has started 5 tasks, but 0 worker(s), 4 server(s) and a program are 5: change "
            "srun --ntasks, or --workers and --ps",
        ),
        (
            _slurm(1, SLURMD_NODENAME="n10"), None, 1,
            "Slurm's task 1 is on n10, but in the order of the nodes it would be on n9: start the "
            "tasks with srun --distribution=block",
        ),
        (
            _slurm(1, counts="two"), None, 1,
            "SLURM_STEP_TASKS_PER_NODE is 'two'; expected as in '2(x3),1'",
        ),
        (_slurm("x"), None, 1, "SLURM_PROCID is 'x'; expected a whole number"),
        (
            _slurm(0) | {"SLURM_STEP_NUM_TASKS": "many"}, None, 1,
            "SLURM_STEP_NUM_TASKS is 'many'; expected a whole number",
        ),
        (
            _slurm(5), None, 1,
            "Slurm's task 5 is not one of those that SLURM_STEP_TASKS_PER_NODE says, [2, 2, 1] on "
            "the hosts ['n9', 'n10', 'm01']",
        ),
        (
            _slurm(0, counts="5"), None, 1,
            "Slurm's task 0 is not one of those that SLURM_STEP_TASKS_PER_NODE says, [5] on the "
            "hosts ['n9', 'n10', 'm01']",
        ),
        (
            _slurm(1, nodes="n[1-2]-ib"), None, 1,
            "scontrol show hostnames n[1-2]-ib failed: Invalid hostlist: n[1-2]-ib",
        ),
    ],
)  # fmt: skip
def test_slurm_mistakes_are_named(environ, workers, servers, text):
    with pytest.raises(platforms.PlatformError) as error:
        platforms.find_task(environ, workers, servers)
    assert str(error.value) == text


def test_a_missing_scontrol_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(platforms.PlatformError, match="scontrol show hostnames n1 failed: "):
        platforms.find_task(_slurm(0, nodes="n1", counts="5"), None, 0)


def test_the_pods_of_an_indexed_job():
    found = [platforms.find_task(_kubernetes(f"train-{i}", i), 2, 1) for i in range(4)]
    pods = [f"train-{i}.train.ns.svc.cluster.local:2222" for i in range(4)]
    assert {json.dumps(one.cluster) for one in found} == {
        json.dumps({"worker": pods[2:], "chief": pods[:1], "ps": pods[1:2]})
    }
    assert [(one.job, one.index) for one in found] == [
        ("chief", 0), ("ps", 0), ("worker", 0), ("worker", 1),
    ]  # fmt: skip


def test_the_pods_of_a_trainjob_train_together():
    """Its one job is named "node"."""
    found = platforms.find_task(_kubernetes("mine-node-0-1", 1), 2, 0)
    assert found.cluster == {
        "worker": [f"mine-node-0-{i}.train.ns.svc.cluster.local:2222" for i in range(2)]
    }
    assert (found.job, found.index) == ("worker", 1)


def test_the_pods_of_a_jobset():
    hosts = ["mine-chief-0-0", "mine-ps-0-1", "mine-worker-0-2"]
    found = [platforms.find_task(_kubernetes(host, host[-1]), 3, 2) for host in hosts]
    assert [(one.job, one.index) for one in found] == [("chief", 0), ("ps", 1), ("worker", 2)]
    domain = "train.ns.svc.cluster.local:2222"
    assert all(
        one.cluster
        == {
            "chief": [f"mine-chief-0-0.{domain}"],
            "ps": [f"mine-ps-0-{i}.{domain}" for i in range(2)],
            "worker": [f"mine-worker-0-{i}.{domain}" for i in range(3)],
        }
        for one in found
    )


@pytest.mark.parametrize(
    ("host", "index", "workers", "servers", "text"),
    [
        (
            "train-0", 0, None, 1,
            "Kubernetes does not say how many tasks the job has: give --workers",
        ),
        (
            "train-abcde", 1, 2, 0,
            "this pod is the task 1 of an Indexed Job, but its full host name is "
            "'train-abcde.train.ns.svc.cluster.local', not NAME-1.SUBDOMAIN: give the pods the "
            "subdomain of a headless Service",
        ),
        (
            "mine-ps-0-2", 2, 2, 2,
            "this pod is the task 2 of 'ps', but by --workers and --ps that job has 2 tasks: give "
            "the numbers of the JobSet",
        ),
        (
            "mine-ps-0-0", 0, 2, 0,
            "this pod is the task 0 of 'ps', but by --workers and --ps that job has 0 tasks: give "
            "the numbers of the JobSet",
        ),
        (
            "train-3", 3, 2, 0,
            "Kubernetes has started 4 tasks, but 2 worker(s) are 2: change completions, or "
            "--workers and --ps",
        ),
    ],
)  # fmt: skip
def test_mistakes_in_kubernetes_are_named(host, index, workers, servers, text):
    with pytest.raises(platforms.PlatformError) as error:
        platforms.find_task(_kubernetes(host, index), workers, servers)
    assert str(error.value) == text


def test_a_tf_config_is_taken_with_the_protocol():
    """As Kubeflow's TFJob makes it: without `rpc_layer`."""
    cluster = {"chief": ["a:2222"], "ps": ["b:2222"], "worker": ["c:2222", "d:2222"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 1}, "environment": "cloud"}
    found = platforms.find_task({"TF_CONFIG": json.dumps(config)}, None, None)
    assert found == platforms.PlatformTask("TF_CONFIG", cluster, "worker", 1)
    text = tf_config(found.cluster, found.job, found.index, serve.FUSED_PROTOCOL)
    assert json.loads(text) == {
        "cluster": cluster,
        "task": {"type": "worker", "index": 1},
        "rpc_layer": "grpc+fuse",
    }


def test_a_tf_config_without_a_coordinator():
    config = {"cluster": {"ps": ["b:1"], "worker": ["c:1"]}, "task": {"type": "ps", "index": 0}}
    with pytest.raises(platforms.PlatformError) as error:
        platforms.find_task({"TF_CONFIG": json.dumps(config)}, None, None)
    assert str(error.value) == (
        "TF_CONFIG has parameter servers and no coordinator: its cluster has the jobs ['ps', "
        "'worker']; add a task 'chief' (a TFJob: a replica type Chief)"
    )


@pytest.mark.parametrize("listed", [True, False], ids=["TFJob", "by hand"])
@pytest.mark.parametrize("job", ["evaluator", "chief", "ps"])
def test_an_evaluator_runs_the_program_outside_of_the_cluster(listed, job):
    """Of all tasks' cluster: the coordinator would wait for its server."""
    cluster = {"chief": ["c:1"], "ps": ["p:1"], "worker": ["w:1"]}
    given = cluster | ({"evaluator": ["e:1"]} if listed else {})
    config = {"cluster": given, "task": {"type": job, "index": 0}}
    found = platforms.find_task({"TF_CONFIG": json.dumps(config)}, None, None)
    assert found == platforms.PlatformTask("TF_CONFIG", cluster, job, 0)
    assert found.is_server == (job == "ps")


def test_an_evaluator_in_a_cluster_of_its_own():
    """As TensorFlow's tutorial writes it."""
    config = {"cluster": {"evaluator": ["e:1"]}, "task": {"type": "evaluator", "index": 0}}
    found = platforms.find_task({"TF_CONFIG": json.dumps(config)}, None, None)
    assert found == platforms.PlatformTask("TF_CONFIG", {"evaluator": ["e:1"]}, "evaluator", 0)


def test_a_tf_config_with_a_gap():
    cluster = {"worker": {"0": "a:1", "2": "b:1"}}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 2}}
    with pytest.raises(platforms.PlatformError) as error:
        platforms.find_task({"TF_CONFIG": json.dumps(config)}, None, None)
    assert str(error.value) == (
        'TF_CONFIG["cluster"]["worker"] has the indices [0, 2]; expected 0 to 1'
    )


def test_a_pod_without_a_domain(monkeypatch):
    """Or it would wait for names that nobody knows."""
    monkeypatch.setattr(socket, "getfqdn", lambda name: name)
    with pytest.raises(platforms.PlatformError, match=r"is 'train-0', not NAME-0\.SUBDOMAIN"):
        platforms.find_task(_kubernetes("train-0", 0), 1, 0)


def test_a_pod_without_a_number():
    with pytest.raises(platforms.PlatformError) as error:
        platforms.find_task(_kubernetes("train-x", "x"), 1, 0)
    assert str(error.value) == "JOB_COMPLETION_INDEX is 'x'; expected a whole number"


def test_a_tf_config_that_is_none():
    with pytest.raises(platforms.PlatformError, match="TF_CONFIG is not JSON"):
        platforms.find_task({"TF_CONFIG": "{"}, None, None)


_CLUSTER = {"chief": ["a:1"], "ps": ["b:2", "c:3"], "worker": ["d:4"]}
_REPLICAS = {"chief": ["a:1"], "worker": ["d:4", "e:5"]}


@pytest.mark.parametrize(
    ("cluster", "numbers", "said"),
    [
        (_CLUSTER, (None, None, None), ""),
        (_CLUSTER, (1, 2, 4), ""),
        (_CLUSTER, (4, 2, None), "--workers is 4, ~where that is 1: leave out --workers"),
        (_CLUSTER, (None, 0, None), "--ps is 0, ~where that is 2: leave out --ps"),
        (_CLUSTER, (None, None, 8888), "--port is 8888, ~where that is 4: leave out --port"),
        (_REPLICAS, (3, 0, None), ""),
        (_REPLICAS, (2, None, None), "--workers is 2, ~where that is 3: leave out --workers"),
    ],
)
def test_numbers_that_are_not_those_of_tf_config_are_refused(cluster, numbers, said):
    """They would be ignored, and a job of one task would run."""
    environ = {"TF_CONFIG": tf_config(cluster, "worker", 0, "grpc")}
    if not said:
        assert platforms.find_task(environ, *numbers).cluster == cluster
        return
    with pytest.raises(platforms.PlatformError) as caught:
        platforms.find_task(environ, *numbers)
    middle = f"but by TF_CONFIG this process is the task worker:0 of {cluster}, "
    end = " to run this task, or unset TF_CONFIG to start a job here"
    assert str(caught.value) == said.replace("~", middle) + end
