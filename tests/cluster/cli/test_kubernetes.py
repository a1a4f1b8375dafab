# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The recipes for Kubernetes and the container: valid, and their tasks start and answer."""

import contextlib
import copy
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.cluster.cli import kubernetes_kinds
from tf_fuse.cluster.launcher import platforms
from tf_fuse.cluster.ports import HeldPorts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

_ROOT = Path(__file__).resolve().parents[3]
_FOLDER = _ROOT / "deploy" / "kubernetes"
_VERSION = "1.31"
_TASKS = {"ps": 2, "worker": 4, "chief": 1}
_LABELS = {"app.kubernetes.io/name": "train"}


def _read(name):
    return yaml.safe_load((_FOLDER / name).read_text(encoding="utf-8"))


# Patches are lists.
_FILES = sorted(
    name
    for name in (str(path.relative_to(_FOLDER)) for path in _FOLDER.rglob("*.yaml"))
    if isinstance(_read(name), dict)
)


def _jobs(name):
    """The specifications of the jobs in a file, by the names of what they run."""
    return _jobs_in(_read(name))


def _jobs_in(found):
    if found["kind"] == "Job":
        return {"train": found["spec"]}
    spec = found["spec"] if found["kind"] == "JobSet" else found["spec"]["template"]["spec"]
    return {one["name"]: one["template"]["spec"] for one in spec["replicatedJobs"]}


_WITH_JOBS = ["jobset/jobset.yaml", "trainjob/runtime.yaml", "indexed-job/job.yaml"]


def _container(job):
    (container,) = job["template"]["spec"]["containers"]
    return container


def _check(manifest):
    schema = kubernetes_kinds.SCHEMAS.get(manifest["kind"])
    if schema:
        jsonschema.validate(manifest, schema)
    else:
        kubernetes_validate.validate(manifest, _VERSION, strict=True)


def _check_job(name, spec):
    """Check a job that another kind makes, too."""
    _check({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})


@pytest.mark.parametrize("name", _FILES)
def test_each_file_is_valid(name):
    _check(_read(name))


@pytest.mark.parametrize("name", _FILES)
def test_a_field_that_there_is_not_is_found(name):
    """Or the validation would find nothing."""
    manifest = copy.deepcopy(_read(name))
    place = manifest.get("spec", manifest)
    place["paralelism"] = 3
    errors = (jsonschema.ValidationError, kubernetes_validate.ValidationError)
    with pytest.raises(errors, match="paralelism"):
        _check(manifest)


@pytest.mark.parametrize("file", _WITH_JOBS)
def test_jobs(file):
    counts = _TASKS if "indexed" not in file else {"train": sum(_TASKS.values())}
    jobs = _jobs(file)
    assert {name: job["completions"] for name, job in jobs.items()} == counts
    for name, spec in jobs.items():
        _check_job(name, spec)
        assert spec["parallelism"] == spec["completions"]
        assert spec["completionMode"] == "Indexed"
        assert spec["template"]["metadata"]["labels"] == _LABELS


def test_a_job_ends_with_its_program():
    """Servers and workers serve until they are ended."""
    for spec in (
        _read("jobset/jobset.yaml")["spec"],
        _read("trainjob/runtime.yaml")["spec"]["template"]["spec"],
    ):
        assert spec["successPolicy"]["targetReplicatedJobs"] == ["chief"]
    rules = _read("indexed-job/job.yaml")["spec"]["successPolicy"]["rules"]
    assert rules == [{"succeededIndexes": "0"}]


def test_what_selects_the_pods():
    policy = _read("base/networkpolicy.yaml")["spec"]
    assert policy["podSelector"]["matchLabels"] == _LABELS
    tasks, counters = policy["ingress"]
    assert tasks == {"from": [{"podSelector": {"matchLabels": _LABELS}}]}
    assert counters["ports"] == [{"protocol": "TCP", "port": "health"}]
    monitor = _read("base/podmonitor.yaml")["spec"]
    budget = _read("base/poddisruptionbudget.yaml")["spec"]
    service = _read("indexed-job/service.yaml")["spec"]
    assert budget["minAvailable"] == sum(_TASKS.values())
    assert monitor["selector"] == budget["selector"] == {"matchLabels": _LABELS}
    assert service["selector"] == _LABELS
    assert [one["port"] for one in monitor["podMetricsEndpoints"]] == ["health"]


_FOLDERS = {"jobset": "JobSet", "indexed-job": "Job", "trainjob": "TrainingRuntime"}


@pytest.mark.parametrize("folder", ["base", *_FOLDERS])
def test_what_kustomize_puts_together(folder):
    kustomization = _read(f"{folder}/kustomization.yaml")
    named = {(_FOLDER / folder / name).resolve() for name in kustomization["resources"]}
    assert all(path.exists() for path in named)
    beside = {path for path in (_FOLDER / folder).glob("*.yaml") if path.stem != "kustomization"}
    assert beside <= named
    if folder != "base":
        assert _FOLDER / "base" in named
        (image,) = kustomization["images"]
        (file,) = [one for one in _WITH_JOBS if one.startswith(f"{folder}/")]
        assert {_container(job)["image"] for job in _jobs(file).values()} == {image["name"]}


def _patched(manifest, patches):
    """Apply patches as of RFC 6902, which add."""
    manifest = copy.deepcopy(manifest)
    for patch in patches:
        assert patch["op"] == "add"
        *steps, name = patch["path"].removeprefix("/").split("/")
        place = manifest
        for step in steps:
            place = place[int(step) if isinstance(place, list) else step]
        assert name not in place  # It would be lost.
        place[name] = patch["value"]
    return manifest


def _patches(kind):
    """The patches of the component for a kind: one file of them."""
    component = _read("checkpoints/kustomization.yaml")
    found = [one["path"] for one in component["patches"] if one["target"]["kind"] == kind]
    return [_read(f"checkpoints/{name}") for name in found]


@pytest.mark.parametrize("file", _WITH_JOBS)
def test_the_component_mounts_a_volume_in_each_task(file):
    manifest, claim = _read(file), _read("checkpoints/volume.yaml")
    component = _read("checkpoints/kustomization.yaml")
    assert component["resources"] == ["volume.yaml"]
    (patches,) = _patches(manifest["kind"])
    manifest = _patched(manifest, patches)
    _check(manifest)
    for name, spec in _jobs_in(manifest).items():
        _check_job(name, spec)
        pod = spec["template"]["spec"]
        (volume,) = pod["volumes"]
        assert volume["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
        assert _container(spec)["volumeMounts"] == [
            {"name": volume["name"], "mountPath": "/checkpoints"}
        ]
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"]


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl, with kustomize, is not here")
@pytest.mark.parametrize("mounts", [False, True], ids=["", "checkpoints"])
@pytest.mark.parametrize("folder", _FOLDERS)
def test_what_kustomize_makes(folder, mounts, tmp_path):
    """By kustomize itself: each file of the folder and its base, with the image and the volume."""
    recipes = tmp_path / "kubernetes"
    shutil.copytree(_FOLDER, recipes)
    if mounts:  # As the component says.
        with (recipes / folder / "kustomization.yaml").open("a") as file:
            file.write("components: [../checkpoints]\n")
    command = ["kubectl", "kustomize", recipes / folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    names = {f"{one}/{name}" for one in ("base", folder) for name in _resources(one)}
    names |= {"checkpoints/volume.yaml"} if mounts else set()
    expected = {one["kind"]: one for one in map(_read, names)}
    if mounts:
        (patches,) = _patches(_FOLDERS[folder])
        expected[_FOLDERS[folder]] = _patched(expected[_FOLDERS[folder]], patches)
    for job in _jobs_in(expected[_FOLDERS[folder]]).values():
        (image,) = _read(f"{folder}/kustomization.yaml")["images"]
        _container(job)["image"] = f"{image['newName']}:{image['newTag']}"
    assert made == expected
    for one in made.values():
        _check(one)


def _resources(folder):
    """The files that a kustomization names, without other folders."""
    named = _read(f"{folder}/kustomization.yaml")["resources"]
    return [name for name in named if name.endswith(".yaml")]


def test_the_example_of_a_tfjob():
    text = (_ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    job = yaml.safe_load(block)
    _check(job)
    replicas = job["spec"]["tfReplicaSpecs"]
    assert {name: one["replicas"] for name, one in replicas.items()} == {
        "Chief": 1, "PS": 2, "Worker": 4,
    }  # fmt: skip
    for one in replicas.values():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "task"}}
        _check(pod | {"spec": one["template"]["spec"]})
        container = _container(one)
        assert container["name"] == "tensorflow"  # The operator asks for that name.
        assert one["template"]["metadata"]["labels"] == _LABELS
        assert _fences(one) == _fences(_jobs("jobset/jobset.yaml")["worker"])
        assert container["ports"] == [{"name": "health", "containerPort": 8080}]
        arguments = container["args"]
        assert arguments[arguments.index("--health-port") + 1] == "8080"


def _fences(job):
    """What keeps a task from rights that it does not need."""
    pod = job["template"]["spec"]
    own = _container(job)["securityContext"]
    return pod["securityContext"], pod["automountServiceAccountToken"], own


def test_probes():
    """Servers and workers have the same everywhere, as all pods of an Indexed Job."""
    keys = ("startupProbe", "readinessProbe", "livenessProbe")
    probes = {
        (file, name): [_container(job).get(key) for key in keys]
        for file in _WITH_JOBS
        for name, job in _jobs(file).items()
    }
    expected = probes["jobset/jobset.yaml", "worker"]
    assert all(expected)
    for (_, name), found in probes.items():
        assert found == ([None] * 3 if name == "chief" else expected)


def test_wheels_are_those_of_the_machine():
    """In a container and on a node, of whatever processor."""
    for file in ("docker/Dockerfile", "README.md"):
        text = (_ROOT / "deploy" / file).read_text(encoding="utf-8")
        (name,) = re.findall(r"\$\(ls \S*/(tf_fuse-.*?\.whl)\)", text)
        assert name == "tf_fuse-*_$(uname -m).whl"


@pytest.mark.parametrize("file", _WITH_JOBS)
def test_each_pod_finds_its_task(file, monkeypatch):
    monkeypatch.setattr(socket, "getfqdn", lambda name: f"{name}.train.ns.svc.cluster.local")
    found = []
    for name, job in _jobs(file).items():
        arguments = _container(job)["args"]
        workers, servers = (
            int(arguments[arguments.index(one) + 1]) for one in ("--workers", "--ps")
        )
        for index in range(job["completions"]):
            host = f"train-{index}" if name == "train" else f"train-{name}-0-{index}"
            environ = {
                "KUBERNETES_SERVICE_HOST": "10.0.0.1",
                "JOB_COMPLETION_INDEX": str(index),
                "HOSTNAME": host,
            }
            place = platforms.find_task(environ, workers, servers)
            assert place.cluster[place.job][place.index].partition(".")[0] == host
            found.append(place)
    assert sorted((one.job, one.index) for one in found) == sorted(
        (job, index) for job, count in _TASKS.items() for index in range(count)
    )
    assert len({json.dumps(one.cluster) for one in found}) == 1
    ports = {address.rpartition(":")[2] for one in found for address in one.cluster[one.job]}
    named = {
        port["containerPort"]
        for job in _jobs(file).values()
        for port in _container(job)["ports"]
        if port["name"] == "tensorflow"
    }
    assert ports == {str(port) for port in named} == {"2222"}


def _docker():
    text = (_ROOT / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    entry, command = (
        json.loads(found) for found in re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", text, re.MULTILINE)
    )
    (user,) = re.findall(r"^USER (\d+)$", text, re.MULTILINE)
    return entry, command, int(user)


@pytest.mark.parametrize("file", _WITH_JOBS)
def test_the_container(file):
    entry, _, user = _docker()
    assert entry == ["tf-fuse"]
    for job in _jobs(file).values():
        pod = job["template"]["spec"]
        assert pod["securityContext"]["runAsUser"] == user
        assert pod["containers"][0]["args"][0] == "launch"


def test_the_port_of_a_program_is_free():
    """The launcher answers probes beside it."""
    text = (_ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    (port,) = re.findall(r"start_http_server\((\d+)\)", text)
    taken = set()
    for file in _WITH_JOBS:
        for job in _jobs(file).values():
            container = _container(job)
            taken |= {str(one["containerPort"]) for one in container["ports"]}
            arguments = container["args"]
            taken.add(arguments[arguments.index("--health-port") + 1])
    assert taken == {"2222", "8080"}
    assert port not in taken


@pytest.mark.parametrize("name", ["ps", "worker"])
def test_a_task_starts_and_answers_its_probes(name):
    """With the container's own command, where TF_CONFIG says the task."""
    container = _container(_jobs("jobset/jobset.yaml")[name])
    health = {one["name"]: one["containerPort"] for one in container["ports"]}["health"]
    arguments = list(_docker()[1])
    port = arguments.index("--health-port") + 1
    assert arguments[port] == str(health)
    arguments[port] = "0"  # any free one
    arguments[arguments.index("/job/train.py")] = str(_ROOT / "examples" / "keras_ps.py")
    probes = [container[key] for key in ("startupProbe", "readinessProbe", "livenessProbe")]
    with HeldPorts(1) as ports:
        cluster = {
            "chief": ["localhost:1"], "ps": ["localhost:2"], "worker": ["localhost:3"],
            name: [f"localhost:{ports.numbers[0]}"],
        }  # fmt: skip
        config = {"cluster": cluster, "task": {"type": name, "index": 0}}
        task = subprocess.Popen(
            [sys.executable, "-m", "tf_fuse", *arguments],
            env={**os.environ, "PYTHONPATH": str(_ROOT), "TF_CONFIG": json.dumps(config)},
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
                    assert "protocol=grpc+fuse" in line  # which TF_CONFIG does not say
                    break
            for probe in probes:
                assert probe["httpGet"]["port"] == "health"
                address = url.replace("/healthz", probe["httpGet"]["path"])
                with contextlib.closing(urllib.request.urlopen(address, timeout=60)) as answer:
                    assert answer.status == 200
        finally:
            task.kill()
            task.communicate()
