# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A replica that ends does not take others' state along, and keeps nobody waiting."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import forking
import pytest

from examples import standalone

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

_PROGRAM = Path(__file__).with_name("shard_update_program.py")
_ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def _programs(*roles):
    held = standalone.cluster_package().ports.HeldPorts(len(roles))
    addresses = [f"127.0.0.1:{port}" for port in held.numbers]
    programs = []
    try:
        for index, role in enumerate(roles):
            env = {
                **os.environ,
                "PYTHONPATH": str(_ROOT),
                forking.VARIABLE: "0",  # its end is what is tested
                "TF_CONFIG": json.dumps(
                    {
                        "cluster": {"worker": addresses},
                        "task": {"type": "worker", "index": index},
                        "rpc_layer": "grpc+fuse",
                    }
                ),
            }
            programs.append(
                subprocess.Popen(
                    [sys.executable, str(_PROGRAM), *role.split()],
                    env=env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        yield programs
    finally:
        for program in programs:
            program.kill()
            program.communicate()
        held.close()


def test_the_last_one_may_read_what_the_first_ones_have():
    assert _read_last("end") == _read_last("first_use")


def _read_last(gather):
    with _programs(*(f"{role} {gather}" for role in ("read", "end", "end"))) as programs:
        for program in programs:
            assert program.stdout.readline() == "trained\n", program.stderr.read()
        told, errors = programs[0].communicate("read\n", timeout=100)
        assert programs[0].returncode == 0, errors
        assert len(told.strip()) == 64
        for program in programs[1:]:
            _, errors = program.communicate(timeout=100)
            assert program.returncode == 0, errors
    return told


def test_nobody_waits_for_one_that_waits_itself():
    with _programs("train", "end") as programs:
        _, errors = programs[1].communicate(timeout=100)
        assert programs[1].returncode == 0, errors
        _, errors = programs[0].communicate(timeout=100)
        assert programs[0].returncode == 1
        assert "UnavailableError" in errors or "CancelledError" in errors, errors[-3000:]


def test_an_exception_ends_a_process_at_once():
    with _programs("read", "fail") as programs:
        for program in programs:
            assert program.stdout.readline() == "trained\n", program.stderr.read()
        _, errors = programs[1].communicate("fail\n", timeout=100)
        assert programs[1].returncode == 1
        assert "ValueError: on purpose" in errors
        _, errors = programs[0].communicate("read\n", timeout=100)
        assert "restart the program from its last checkpoint" in errors, errors[-3000:]
