# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-fuse run --health-port`: what probes and Prometheus are answered, and when."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tf_fuse.cluster.http_endpoints import TaskHealth
from tf_fuse.cluster.ports import HeldPorts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

_ROOT = Path(__file__).resolve().parents[3]
_HEALTH = "tf_fuse serve: health at http://127.0.0.1:"


def _ask(port, path, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def _start(port, *arguments, protocol="grpc+fuse"):
    config = {
        "cluster": {"ps": [f"localhost:{port}"]},
        "task": {"type": "ps", "index": 0},
        "rpc_layer": protocol,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tf_fuse", "run", *arguments],
        env={**os.environ, "PYTHONPATH": str(_ROOT), "TF_CONFIG": json.dumps(config)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _line(process, beginning):
    return next((line for line in process.stdout if line.startswith(beginning)), "")


@pytest.fixture(scope="module", params=["grpc+fuse", "grpc"])
def task(request):
    """A running task, and the port of its health."""
    with HeldPorts(1) as ports:
        process = _start(ports.numbers[0], "--health-port", "0", protocol=request.param)
        try:
            line = _line(process, _HEALTH)
            assert _line(process, "tf_fuse serve: ready")
            yield process, int(line.removeprefix(_HEALTH).partition("/")[0])
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/healthz?verbose"])
def test_a_task_that_serves(task, path):
    assert _ask(task[1], path) == (200, "ok\n")
    assert _ask(task[1], path, "HEAD") == (200, "")


def test_counters(task):
    status, text = _ask(task[1], "/metrics")
    assert status == 200
    assert "\ntf_fuse_frames_total{" in text


def test_other_paths(task):
    assert _ask(task[1], "/") == (404, "there are /healthz, /readyz, /metrics\n")
    assert _ask(task[1], "/healthz", "POST")[0] == 501


def test_a_client_that_says_nothing_keeps_nobody_waiting(task):
    with socket.create_connection(("127.0.0.1", task[1])) as silent:
        assert _ask(task[1], "/readyz") == (200, "ok\n")
        assert silent.recv(1) == b""  # It is given up.


def test_a_server_that_has_not_started_and_one_that_is_gone():
    with socket.create_server(("127.0.0.1", 0)) as task:
        host, port = task.getsockname()
        server = TaskHealth("127.0.0.1", 0, (host, port))
        assert _ask(server.server_port, "/healthz") == (200, "starts\n")
        assert _ask(server.server_port, "/readyz") == (503, "the task's server has not started\n")
        server.has_started = True
        assert _ask(server.server_port, "/readyz") == (200, "ok\n")
    for path in ("/healthz", "/readyz"):
        status, text = _ask(server.server_port, path)
        assert status == 503
        why = f"the task's server does not accept connections at 127.0.0.1:{port}: "
        assert text.startswith(why)
    server.shutdown()
    server.server_close()


def test_many_probes_at_once(task):
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(_ask(task[1], "/healthz")))
        for _ in range(30)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [(200, "ok\n")] * 30


@pytest.mark.parametrize("option", ["--health-port", "--metrics-port"])
def test_a_port_that_is_taken(option):
    with socket.create_server(("127.0.0.1", 0)) as other, HeldPorts(1) as ports:
        port = str(other.getsockname()[1])
        process = _start(ports.numbers[0], option, port)
        _, errors = process.communicate(timeout=100)
    assert process.returncode == 4
    text = f"tf_fuse serve: error: {option} {port} is in use by another process on this machine\n"
    assert errors.endswith(text)


def test_an_address_of_another_machine():
    with HeldPorts(1) as ports:
        process = _start(ports.numbers[0], "--health-port", "0", "--health-address", "192.0.2.1")
        _, errors = process.communicate(timeout=100)
    assert process.returncode == 3
    assert "--health-port 0 cannot be listened on at 192.0.2.1: Cannot assign" in errors


def test_a_signal_ends_a_task_that_answers(task):
    process, port = task
    assert _ask(port, "/healthz")[0] == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=100) == -signal.SIGTERM
