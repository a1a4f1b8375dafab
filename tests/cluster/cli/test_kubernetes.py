# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The recipes for Kubernetes and the container: valid, and their tasks start and answer."""

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tf_fuse.cluster.ports import HeldPorts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

_ROOT = Path(__file__).resolve().parents[3]
_FOLDER = _ROOT / "deploy" / "kubernetes"
_VERSION = "1.31"
_TASKS = {"ps": 2, "worker": 4, "chief": 1}
# The fields of JobSet's v1alpha2 that are used, from its definition; a job's are Kubernetes' own.
_JOBSET = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "jobset.x-k8s.io/v1alpha2"},
        "kind": {"const": "JobSet"},
        "metadata": {"type": "object"},
        "spec": {
            "additionalProperties": False,
            "properties": {
                "network": {
                    "additionalProperties": False,
                    "properties": {
                        "enableDNSHostnames": {"type": "boolean"},
                        "subdomain": {"type": "string", "pattern": "^[a-z0-9]+$"},
                    },
                },
                "successPolicy": {
                    "additionalProperties": False,
                    "required": ["operator"],
                    "properties": {
                        "operator": {"enum": ["All", "Any"]},
                        "targetReplicatedJobs": {"type": "array", "items": {"type": "string"}},
                    },
                },
                "failurePolicy": {
                    "additionalProperties": False,
                    "properties": {"maxRestarts": {"type": "integer", "minimum": 0}},
                },
                "replicatedJobs": {
                    "type": "array",
                    "items": {
                        "additionalProperties": False,
                        "required": ["name", "template"],
                        "properties": {
                            "name": {"type": "string"},
                            "replicas": {"type": "integer", "minimum": 0},
                            "template": {"type": "object", "required": ["spec"]},
                        },
                    },
                },
            },
        },
    },
}


def _read(name):
    return yaml.safe_load((_FOLDER / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def jobs():
    """The specifications of the jobs, by name."""
    replicated = _read("jobset.yaml")["spec"]["replicatedJobs"]
    return {one["name"]: one["template"]["spec"] for one in replicated}


def _container(job):
    (container,) = job["template"]["spec"]["containers"]
    return container


def test_the_jobset():
    jobset = _read("jobset.yaml")
    jsonschema.validate(jobset, _JOBSET)
    assert jobset["spec"]["successPolicy"]["targetReplicatedJobs"] == ["chief"]


@pytest.mark.parametrize("name", _TASKS)
def test_jobs(jobs, name):
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": jobs[name]}
    kubernetes_validate.validate(job, _VERSION, strict=True)
    assert jobs[name]["parallelism"] == jobs[name]["completions"] == _TASKS[name]


def test_a_field_that_there_is_not(jobs):
    """Or the validation would find nothing."""
    spec = {**jobs["ps"], "paralelism": 3}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "ps"}, "spec": spec}
    with pytest.raises(kubernetes_validate.ValidationError, match="paralelism"):
        kubernetes_validate.validate(job, _VERSION, strict=True)


def test_the_network_policy(jobs):
    policy = _read("networkpolicy.yaml")
    kubernetes_validate.validate(policy, _VERSION, strict=True)
    labels = policy["spec"]["podSelector"]["matchLabels"]
    assert all(one["template"]["metadata"]["labels"] == labels for one in jobs.values())
    tasks, counters = policy["spec"]["ingress"]
    assert tasks == {"from": [{"podSelector": {"matchLabels": labels}}]}
    assert counters["ports"] == [{"protocol": "TCP", "port": "health"}]


def test_what_kustomize_puts_together(jobs):
    kustomization = _read("kustomization.yaml")
    assert all((_FOLDER / name).is_file() for name in kustomization["resources"])
    (generated,) = kustomization["configMapGenerator"]
    (file,) = generated["files"]
    assert (_FOLDER / file.partition("=")[2]).is_file()
    (image,) = kustomization["images"]
    assert {_container(job)["image"] for job in jobs.values()} == {image["name"]}
    for job in jobs.values():
        reference = _container(job)["env"][0]["valueFrom"]["configMapKeyRef"]
        assert reference == {"name": generated["name"], "key": file.partition("=")[0]}


def test_the_hosts_are_the_pods():
    jobset = _read("jobset.yaml")
    name, subdomain = jobset["metadata"]["name"], jobset["spec"]["network"]["subdomain"]
    cluster = json.loads((_FOLDER / "cluster.json").read_text(encoding="utf-8"))
    assert cluster == {
        job: [f"{name}-{job}-0-{i}.{subdomain}:2222" for i in range(count)]
        for job, count in _TASKS.items()
    }


def _tf_config(job, cluster, index):
    """TF_CONFIG as Kubernetes makes it: `$(NAME)` is another variable."""
    values = {"CLUSTER": json.dumps(cluster), "INDEX": str(index)}
    (text,) = [one["value"] for one in _container(job)["env"] if one["name"] == "TF_CONFIG"]
    return re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], text)


def test_each_task_is_told_which_it_is(jobs):
    cluster = json.loads((_FOLDER / "cluster.json").read_text(encoding="utf-8"))
    for name, count in _TASKS.items():
        for index in range(count):
            assert json.loads(_tf_config(jobs[name], cluster, index)) == {
                "cluster": cluster,
                "task": {"type": name, "index": index},
                "rpc_layer": "grpc+fuse",
            }


def test_the_container():
    text = (_ROOT / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    entry, command = (
        json.loads(found) for found in re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", text, re.MULTILINE)
    )
    (user,) = re.findall(r"^USER (\d+)$", text, re.MULTILINE)
    assert entry == ["tf-fuse"]
    for job in _read("jobset.yaml")["spec"]["replicatedJobs"]:
        pod = job["template"]["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsUser"] == int(user)
        if job["name"] != "chief":
            assert pod["containers"][0]["args"] == command


@pytest.mark.parametrize("name", ["ps", "worker"])
def test_a_task_starts_and_answers_its_probes(jobs, name):
    container = _container(jobs[name])
    health = {one["name"]: one["containerPort"] for one in container["ports"]}["health"]
    arguments = list(container["args"])
    port = arguments.index("--health-port") + 1
    assert arguments[port] == str(health)
    arguments[port] = "0"  # any free one
    probes = [container[key] for key in ("startupProbe", "readinessProbe", "livenessProbe")]
    with HeldPorts(1) as ports:
        cluster = {name: [f"localhost:{ports.numbers[0]}"]}
        task = subprocess.Popen(
            [sys.executable, "-m", "tf_fuse", *arguments],
            env={
                **os.environ,
                "PYTHONPATH": str(_ROOT),
                "TF_CONFIG": _tf_config(jobs[name], cluster, 0),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            url = ""
            for line in task.stdout:
                if "health at" in line:
                    url = line.split()[-1].replace("0.0.0.0", "127.0.0.1")
                if "serve: ready" in line:
                    break
            for probe in probes:
                assert probe["httpGet"]["port"] == "health"
                address = url.replace("/healthz", probe["httpGet"]["path"])
                with contextlib.closing(urllib.request.urlopen(address, timeout=60)) as answer:
                    assert answer.status == 200
        finally:
            task.kill()
            task.communicate()
