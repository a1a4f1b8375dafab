# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A replica that ends hands its shards of the state over first, and keeps nobody waiting."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples import standalone
from tests import forking
from tests.slow_cases import slow

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

_PROGRAM = Path(__file__).with_name("worker_program.py")
_ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module", params=["1", slow("0")], ids=["forked", "not forked"])
def start(request):
    """Starts programs; the whole end of a process that is not forked is Python's own."""
    return functools.partial(_programs, request.param)


@contextlib.contextmanager
def _programs(is_forked, *roles):
    held = standalone.cluster_package().ports.HeldPorts(len(roles))
    addresses = [f"127.0.0.1:{port}" for port in held.numbers]
    programs = []
    try:
        for index, role in enumerate(roles):
            env = {
                **os.environ,
                "PYTHONPATH": str(_ROOT),
                forking.VARIABLE: is_forked,
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


@pytest.fixture(scope="module")
def stock(start):
    """What the variables have after the steps, as stock TensorFlow computes it."""
    with start("stock", "stock", "stock") as programs:
        _wait_for(programs, "trained")
        return _told(programs[0], "read")


def _wait_for(programs, word):
    for program in programs:
        assert program.stdout.readline() == f"{word}\n", program.stderr.read()


def _told(program, command):
    """Gives a program a command; returns its next line."""
    program.stdin.write(f"{command}\n")
    program.stdin.flush()
    line = program.stdout.readline()
    assert line, program.communicate()[1]
    return line.strip()


def _log_has(program, text):
    """Returns when a program has logged a text."""
    line = None
    while line != "" and text not in (line or ""):
        line = program.stderr.readline()
    assert line, text


def _end(program, command=None):
    """How a program ends: its exit status, what it printed, and its log."""
    printed, log = program.communicate(command and f"{command}\n", timeout=100)
    return program.returncode, printed, log


@pytest.mark.parametrize("gather", [slow("end"), "first_use"])
def test_who_stays_has_what_the_others_leave(start, stock, gather):
    with start(gather, gather, gather) as programs:
        _wait_for(programs, "trained")
        # The chief goes first, and hands over to one that has a SIGTERM in the middle of a step.
        status, _, log = _end(programs[0], "end")
        assert status == 0, log
        assert _told(programs[1], "step") == "begins"
        # TensorFlow catches it, and the process goes on, until it is killed.
        programs[1].terminate()
        _log_has(programs[1], "has had a SIGTERM")
        programs[1].kill()
        assert _told(programs[2], "read") == stock
        status, _, log = _end(programs[2], "end")
        assert status == 0, log
        assert "is lost" not in log


def test_who_loses_the_others_in_a_step_has_what_they_leave(start, stock):
    with start("end", "end", "end exit") as programs:
        _wait_for(programs, "trained")
        assert _told(programs[0], "step") == "begins"
        programs[2].terminate()
        status, printed, log = _end(programs[2])
        assert (status, printed) == (3, "handled\n"), log
        status, _, log = _end(programs[1], "fail")
        assert status == 1
        assert "ValueError: on purpose" in log
        assert programs[0].stdout.readline() in ("UnavailableError\n", "CancelledError\n")
        assert _told(programs[0], "read") == stock


def test_what_is_left_to_one_is_read_by_another(start, stock):
    with start("end default", "end", "end") as programs:
        _wait_for(programs, "trained")
        # It does not answer; so another one gets what is left.
        programs[1].send_signal(signal.SIGSTOP)
        programs[0].terminate()
        status = programs[0].wait(timeout=100)
        programs[1].send_signal(signal.SIGCONT)
        assert status == -signal.SIGTERM, _end(programs[0])
        assert _told(programs[1], "read") == stock


def test_nobody_waits_for_others_that_end_too(start):
    with start("end", "end") as programs:
        _wait_for(programs, "trained")
        for program in programs:
            program.stdin.write("end\n")
            program.stdin.flush()
        for program in programs:
            status, _, log = _end(program)
            assert status == 0, log
            assert "is lost" not in log


def test_what_a_step_is_changing_is_not_left_to_others(start):
    with start("end", "end default") as programs:
        _wait_for(programs, "trained")
        for program in programs:
            assert _told(program, "loop") == "begins"
        for program in programs:
            _log_has(program, "loops")
        programs[1].terminate()
        status, _, log = _end(programs[1])
        assert status == -signal.SIGTERM, log
        assert "state after step 3 is lost when its process ends" in log
        assert "a step has changed it that has failed, or has not ended within 5 s" in log
        assert programs[0].stdout.readline() in ("UnavailableError\n", "CancelledError\n")
        # Its own part is of many steps later than the third one.
        assert _told(programs[0], "read") == "UnavailableError"
