# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks of the doctor one at a time: installed versions, the task's address."""

import json
import socket
import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest

from tf_fuse import _native
from tf_fuse.cli import doctor

pytestmark = pytest.mark.cluster

_BUILT = _native.build_info()
_VERSION = _BUILT["tensorflow"]


# --- One check at a time, in this process --------------------------------------------------------


@pytest.fixture
def only(monkeypatch):
    """A function that leaves one check, without what it needs."""

    def leave(name):
        (check,) = [check for check in doctor.CHECKS if check.name == name]
        monkeypatch.setattr(doctor, "CHECKS", (check,))

    return leave


def _installed(versions):
    return (
        f"tf_fuse {_BUILT['tf_fuse']} was built against TensorFlow {_VERSION} with protobuf "
        f"{_BUILT['protobuf']}; installed: {versions}, protobuf "
        f"{doctor.metadata.version('protobuf')}"
    )


_OVER_ONE_ANOTHER = (
    ". tensorflow and tensorflow-cpu lie over one another in one folder: whichever is removed or "
    "updated breaks the other\n"
    "     remedy: python -m pip uninstall -y tensorflow tensorflow-cpu && python -m pip install "
    f'"{_BUILT["tensorflow_distribution"]}=={_VERSION}"\n'
)


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu"])
def test_one_distribution_is_well(name, only, monkeypatch, capsys):
    monkeypatch.setattr(_native, "tensorflow_versions", lambda: {name: _VERSION})
    only("versions")
    assert doctor.run(None) == 0
    assert capsys.readouterr().out == f"OK   versions: {_installed(f'{name} {_VERSION}')}\n"


def test_both_distributions_are_a_warning_with_the_command(only, monkeypatch, capsys):
    both = {"tensorflow": _VERSION, "tensorflow-cpu": _VERSION}
    monkeypatch.setattr(_native, "tensorflow_versions", lambda: both)
    only("versions")
    assert doctor.run(None) == 0
    text = _installed(f"tensorflow {_VERSION}, tensorflow-cpu {_VERSION}")
    assert capsys.readouterr().out == f"WARN versions: {text}{_OVER_ONE_ANOTHER}"


def test_both_distributions_of_which_one_does_not_fit_fail(only, monkeypatch, capsys):
    both = {"tensorflow": _VERSION, "tensorflow-cpu": "2.20.0"}
    monkeypatch.setattr(_native, "tensorflow_versions", lambda: both)
    only("versions")
    assert doctor.run(None) == 1
    assert capsys.readouterr().out == (
        f"FAIL versions: tf_fuse {_BUILT['tf_fuse']} was built against TensorFlow {_VERSION}, but "
        f"tensorflow {_VERSION} and tensorflow-cpu 2.20.0 are installed in this environment"
        f"{_OVER_ONE_ANOTHER}"
    )


@pytest.fixture
def port():
    """A TCP port that this process keeps from others by a bound socket that does not listen."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield held.getsockname()[1]


@contextmanager
def _listener(port, env):
    """Another process that listens on the port."""
    code = (
        "import socket, sys\n"
        "with socket.socket() as sock:\n"
        "    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        f"    sock.bind(('', {port}))\n"
        "    sock.listen()\n"
        "    print('listens', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as process:
        assert process.stdout.readline() == b"listens\n"
        yield process
        process.stdin.close()


def _tf_config(port):
    cluster = {"worker": ["elsewhere:2222"], "ps": [f"here.invalid:{port}"]}
    return json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}})


def test_address_of_the_task_is_free(port, only, monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", _tf_config(port))
    only("task address")
    assert doctor.run(None) == 0
    assert capsys.readouterr().out == (
        f"OK   task address: port {port} of task ps:0 (address here.invalid:{port}) is free\n"
    )


def test_address_of_the_task_is_in_use_by_another(port, only, monkeypatch, capsys, isolated_env):
    monkeypatch.setenv("TF_CONFIG", _tf_config(port))
    only("task address")
    with _listener(port, isolated_env) as process:
        assert doctor.run(None) == 1
        command = " ".join(psutil.Process(process.pid).cmdline())
    assert capsys.readouterr().out == (
        f"FAIL task address: port {port} of task ps:0 (address here.invalid:{port}) is in use by "
        f"process {process.pid} ({command[:100]}...)\n"
        "     remedy: stop that process, or give the task another port in "
        'TF_CONFIG["cluster"] of every task\n'
    )


def test_address_of_the_task_is_in_use_by_the_task(port, only, monkeypatch, capsys, isolated_env):
    monkeypatch.setenv("TF_CONFIG", _tf_config(port))
    only("task address")
    with _listener(port, {**isolated_env, "TF_CONFIG": _tf_config(port)}) as process:
        assert doctor.run(None) == 0
    assert capsys.readouterr().out.startswith(
        f"OK   task address: port {port} of task ps:0 (address here.invalid:{port}) is in use by "
        f"this very task: process {process.pid} ("
    )


def test_address_is_in_use_by_a_process_that_cannot_be_seen(
    port, only, monkeypatch, capsys, isolated_env
):
    def denied(kind):
        raise PermissionError

    monkeypatch.setenv("TF_CONFIG", _tf_config(port))
    monkeypatch.setattr(psutil, "net_connections", denied)
    only("task address")
    with _listener(port, isolated_env):
        assert doctor.run(None) == 1
    assert capsys.readouterr().out.splitlines()[0] == (
        f"FAIL task address: port {port} of task ps:0 (address here.invalid:{port}) is in use by a "
        "process of another user or container (root can see which: ss -tlnp)"
    )


def test_bad_tf_config(only, monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", "{}")
    only("task address")
    assert doctor.run(None) == 1
    assert capsys.readouterr().out == (
        'FAIL task address: TF_CONFIG["cluster"] must be an object of job name to addresses, found '
        "null\n"
        "     remedy: correct TF_CONFIG, or unset it where no task of a cluster is to run\n"
    )


@pytest.mark.parametrize("value", [None, " "])
def test_no_line_about_the_address_without_tf_config(value, only, monkeypatch, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if value is not None:
        monkeypatch.setenv("TF_CONFIG", value)
    only("task address")
    assert doctor.run(None) == 0
    assert capsys.readouterr().out == ""
