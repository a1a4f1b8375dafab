# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The quickstarts and the Keras example under `tf-fuse launch`: here, and as a container's command.

`test_launch_platforms` runs them under the stand-in for Slurm. The tests of a default run have each
quickstart at one of the three.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples import two_hosts
from tests import forking, pid_namespaces
from tests.cluster.examples import quickstarts
from tests.slow_cases import slow
from tf_fuse.cluster.ports import HeldPorts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_ROOT = Path(__file__).resolve().parents[3]
_NEEDS_CONTAINERS = pytest.mark.skipif(
    not pid_namespaces.are_allowed(), reason=pid_namespaces.NOT_ALLOWED
)


def _command(program):
    """The command of deploy/docker/Dockerfile, whose program is this one."""
    text = (_ROOT / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    entry, arguments = (
        json.loads(found) for found in re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", text, re.MULTILINE)
    )
    assert entry == ["tf-fuse"]
    words = [str(program) if word == "/job/train.py" else word for word in arguments]
    words[words.index("--health-port") + 1] = "0"  # any free one
    return [sys.executable, "-m", "tf_fuse", *words]


def _start(command, **variables):
    removed = ("TF_CONFIG", "HOSTNAME")
    env = {name: value for name, value in os.environ.items() if name not in removed}
    return subprocess.Popen(
        command,
        env={**env, "PYTHONPATH": os.fspath(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _run(command, **variables):
    process = _start(command, **variables)
    output, _ = process.communicate(timeout=280)
    return process.returncode, output


@pytest.fixture
def quickstart(name, unchanged, tmp_path):
    """A quickstart's file: its own, or one with fewer steps."""
    if unchanged:
        return _ROOT / "examples" / name
    path = tmp_path / name
    path.write_text(quickstarts.shortened(name), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "unchanged"), quickstarts.cases("quickstart_ps.py", "quickstart_session.py")
)
def test_here(quickstart, unchanged):
    """The task is in a cluster of one, whose TF_CONFIG a program need not use."""
    variables = {} if unchanged else forking.LAUNCHED
    status, output = _run([sys.executable, "-m", "tf_fuse", "launch", quickstart], **variables)
    assert status == 0, output
    expected = quickstarts.RATE if "mwms" in quickstart.name else quickstarts.SPEED_UP
    assert len(re.findall(rf"^\[worker:0\] {expected}$", output, re.MULTILINE)) == 1


@_NEEDS_CONTAINERS
@pytest.mark.parametrize(("name", "unchanged"), quickstarts.cases("quickstart_keras.py"))
@pytest.mark.parametrize("platform", [slow("TFJob"), "none"])
def test_as_the_command_of_a_container(quickstart, platform):
    """As the first process of a PID namespace: one task of a TFJob, or the whole job."""
    variables, label = {}, r"\[worker:0\] "
    with HeldPorts(1) as ports:
        if platform == "TFJob":
            label = ""
            cluster = {"worker": [f"localhost:{ports.numbers[0]}"]}
            config = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
            variables["TF_CONFIG"] = json.dumps(config | {"environment": "cloud"})
        status, output = _run([*pid_namespaces.COMMAND, *_command(quickstart)], **variables)
    assert status == 0, output
    expected = quickstarts.RATE if "mwms" in quickstart.name else quickstarts.SPEED_UP
    assert len(re.findall(rf"^{label}{expected}$", output, re.MULTILINE)) == 1


@_NEEDS_CONTAINERS
def test_a_tfjob_with_servers():
    """Each task is a container; the evaluator that TF_CONFIG names is not waited for."""
    names = ["chief", "ps", "worker"]
    with HeldPorts(4) as ports, contextlib.ExitStack() as stack:
        cluster = {
            name: [f"localhost:{port}"]
            for name, port in zip([*names, "evaluator"], ports.numbers, strict=True)
        }
        tasks = {}
        for name in names:
            config = {"cluster": cluster, "task": {"type": name, "index": 0}}
            command = [*pid_namespaces.COMMAND, *_command(_ROOT / "examples" / "keras_ps.py")]
            tasks[name] = _start(command, TF_CONFIG=json.dumps(config))
            stack.callback(tasks[name].communicate)
            stack.callback(tasks[name].kill)
        output, _ = tasks["chief"].communicate(timeout=280)
    assert tasks["chief"].returncode == 0, output
    assert len(re.findall(r"^accuracy after .*: [\d.]+$", output, re.MULTILINE)) == 2


# A file of hosts in place of the machine's, as each pod has one, and a name of its own.
_POD = 'mount --bind {hosts} /etc/hosts && exec "$@"'


@_NEEDS_CONTAINERS
def test_the_pods_of_a_jobset(tmp_path):
    """Two replicas, each the first process of namespaces of its own, at the port of all pods."""
    if reason := two_hosts.why_not():
        pytest.skip(reason)
    program = tmp_path / "quickstart_mwms.py"
    program.write_text(quickstarts.shortened(program.name), encoding="utf-8")
    domain = "train.default.svc.cluster.local"
    with two_hosts.TwoHosts() as hosts, contextlib.ExitStack() as stack:
        places = list(hosts.of({"first": 0, "second": 1}).values())
        pods = [f"train-worker-0-{index}" for index in range(2)]
        lines = [
            f"{place['address']} {pod}.{domain} {pod}"
            for place, pod in zip(places, pods, strict=True)
        ]
        (tmp_path / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n")
        tasks = []
        for index, (place, pod) in enumerate(zip(places, pods, strict=True)):
            command = _command(program)
            command[command.index("launch") + 1 :] = [
                "--workers", "2", *command[command.index("launch") + 1 :],
            ]  # fmt: skip
            script = _POD.format(hosts=tmp_path / "hosts")
            tasks.append(
                _start(
                    [
                        *place["command"],
                        *pid_namespaces.COMMAND,
                        "sh",
                        "-c",
                        script,
                        "sh",
                        *command,
                    ],
                    HOSTNAME=pod,
                    KUBERNETES_SERVICE_HOST="10.0.0.1",
                    JOB_COMPLETION_INDEX=str(index),
                )
            )
            stack.callback(tasks[-1].communicate)
            stack.callback(tasks[-1].kill)
        outputs = [task.communicate(timeout=280)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    for index, output in enumerate(outputs):
        assert f"tf-fuse launch: task worker:{index} of " in output
        assert f"'train-worker-0-1.{domain}:2222'" in output
        assert len(re.findall(rf"^{quickstarts.RATE}$", output, re.MULTILINE)) == 1
