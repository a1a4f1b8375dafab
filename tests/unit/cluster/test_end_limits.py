# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How long the parts of a job may take to end: what the limits add up to, and what keeps them."""

import signal
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

from tf_fuse.cluster import end_limits, local_cluster
from tf_fuse.cluster.interruption import Interrupted
from tf_fuse.cluster.launcher import guardian, local_job
from tf_fuse.cluster.launcher.platforms import task

_ROOT = Path(__file__).resolve().parents[3]
_TOTALS = {"JOB": 10.0, "CONTAINER": 2.0}


@pytest.mark.parametrize("name", _TOTALS)
def test_the_parts_fit_into_the_whole(name):
    limits = getattr(end_limits, name)
    assert limits.total_s == _TOTALS[name]
    assert 0 < limits.sum_s < limits.total_s


def test_a_program_that_needs_longer_has_longer():
    limits = end_limits.CONTAINER.with_program(30.0)
    assert limits.program_s == 30.0
    assert limits.total_s == 31.0
    assert limits.sum_s < limits.total_s


@pytest.fixture
def waits(monkeypatch):
    """The seconds that a launcher is ready to wait at its end; a signal comes when all runs."""
    found = []

    def interrupt(*pids):
        raise Interrupted(signal.SIGTERM)

    class Cluster:
        cluster_spec, chief_address, pids = {"worker": ["localhost:1"]}, "localhost:2", {}

        def __init__(self, *args, **kwargs):
            pass

        def close(self, grace_s):
            found.append(grace_s)

    class Follower(local_job.LogFollower):
        def __enter__(self):
            return self

        def __exit__(self, *exc):
            found.append(self._end_s)

    def wait(process, timeout):
        found.append(timeout)
        return real_wait(process)

    real_wait = subprocess.Popen.wait
    monkeypatch.setattr(local_job, "LocalCluster", Cluster)
    monkeypatch.setattr(guardian.subprocess.Popen, "wait", wait)
    monkeypatch.setattr(guardian, "_kill_marked", lambda job, seconds: found.append(seconds))
    for module in (local_job, task):
        monkeypatch.setattr(module, "TaskProgram", lambda *args: types.SimpleNamespace(pid=1))
        monkeypatch.setattr(module, "end_all", lambda children, grace_s: found.append(grace_s))
        monkeypatch.setattr(module, "first_to_end", interrupt)
        monkeypatch.setattr(module, "LogFollower", Follower)
    return found


@pytest.mark.parametrize("name", _TOTALS)
def test_a_job_that_is_interrupted_waits_by_the_limits(waits, monkeypatch, name, tmp_path):
    limits = getattr(end_limits, name)
    monkeypatch.setattr(end_limits, "_limits", limits)
    job = local_job.Job(["program.py"], workers=1, ps=1, log_dir=tmp_path)
    assert local_job.launch(job) == 128 + signal.SIGTERM
    assert sum(waits) == pytest.approx(limits.sum_s)
    assert sum(waits) < _TOTALS[name]


@pytest.mark.parametrize("name", _TOTALS)
def test_a_task_that_is_interrupted_waits_by_the_limits(waits, monkeypatch, name, tmp_path):
    """It has no servers, and looks for what is left once."""
    limits = getattr(end_limits, name)
    monkeypatch.setattr(end_limits, "_limits", limits)
    status = task.run_program("chief:0", ["program.py"], "{}", False, None, tmp_path)
    assert status == 128 + signal.SIGTERM
    assert sum(waits) == pytest.approx(limits.sum_s - limits.tasks_s - limits.left_s)


@pytest.mark.parametrize("name", _TOTALS)
def test_servers_that_start_are_waited_for_by_the_limits(monkeypatch, name, tmp_path):
    limits = getattr(end_limits, name)
    found = []

    def interrupt(*args):
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr(end_limits, "_limits", limits)
    monkeypatch.setattr(local_cluster.TaskProcess, "wait_ready", interrupt)
    monkeypatch.setattr(local_cluster.TaskProcess, "start", lambda *args: None)
    monkeypatch.setattr(local_cluster, "end_all", lambda tasks, grace_s: found.append(grace_s))
    with pytest.raises(Interrupted):
        local_cluster.LocalCluster(1, 1, "grpc", tmp_path)
    assert found == [limits.tasks_s]


def _run(text):
    """Run a program in which a signal has come; return its status and output."""
    begin = """
        import dataclasses, os, signal
        from examples import standalone
        cluster = standalone.cluster_package()
        import importlib
        limits, interruption = (
            importlib.import_module(f"{cluster.__name__}.{name}")
            for name in ("end_limits", "interruption")
        )
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(text)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_an_alarm_is_set_when_a_signal_comes():
    status, output = _run("""
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
        try:
            with interruption.interruptible():
                os.kill(os.getpid(), signal.SIGTERM)
        except interruption.Interrupted:
            print(0 < signal.getitimer(signal.ITIMER_REAL)[0] <= limits.JOB.total_s)
    """)
    assert (status, output) == (0, "True\n")


def test_an_end_that_hangs_is_cut():
    status, output = _run("""
        limits.use(dataclasses.replace(limits.JOB, total_s=0.01))
        try:
            with interruption.interruptible():
                os.kill(os.getpid(), signal.SIGTERM)
        except interruption.Interrupted:
            while True:
                signal.pause()
    """)
    assert (status, output) == (128 + signal.SIGTERM, "")


def test_the_first_process_of_a_container_gives_its_child_less():
    status, output = _run("""
        first = importlib.import_module(f"{cluster.__name__}.launcher.first_process")
        print(limits.current() == limits.JOB, flush=True)
        first.leave_to_child()
        print(limits.current() == limits.CONTAINER, flush=True)
    """)
    assert (status, output) == (0, "True\nTrue\n")
