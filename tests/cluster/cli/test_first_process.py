# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-fuse run` as the first process of a container: signals end it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster.cli import pid_namespaces
from tf_fuse.cluster.ports import HeldPorts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

_ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(not pid_namespaces.are_allowed(), reason=pid_namespaces.NOT_ALLOWED)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it(number):
    with HeldPorts(1) as ports:
        config = {
            "cluster": {"ps": [f"localhost:{ports.numbers[0]}"]},
            "task": {"type": "ps", "index": 0},
            "rpc_layer": "grpc+fuse",
        }
        outside = subprocess.Popen(
            [*pid_namespaces.COMMAND, sys.executable, "-m", "tf_fuse", "run"],
            env={**os.environ, "PYTHONPATH": str(_ROOT), "TF_CONFIG": json.dumps(config)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        ready = next((line for line in outside.stdout if "serve: ready" in line), "")
        assert ready.endswith("pid=1\n")
        (first,) = psutil.Process(outside.pid).children()
        first.send_signal(number)
        assert outside.wait(timeout=100) == 128 + number
