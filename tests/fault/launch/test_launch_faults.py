# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A task of `tf-fuse launch` is killed while it starts, trains, saves or ends."""

import contextlib
import functools
import json
import math
import os
import re
import signal
import time

import psutil
import pytest

from tests.cluster.cli import ssh
from tests.fault import table
from tests.fault.coordinator import wait_until
from tests.fault.launch import killing_program
from tests.fault.launch.launched_job import ROOT, LaunchedJob
from tests.slow_cases import slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(600)]

_AT = {"training": 5, "saving": 4, "ending": 8}  # what the last checkpoint has
# Case: the kind of job, the phase, and the task that is killed.
_KILLS = {
    "worker_starting": ("servers", "starting", "worker-0"),
    "worker_training": ("servers", "training", "worker-0"),
    "worker_saving": ("servers", "saving", "worker-0"),
    "worker_ending": ("servers", "ending", "worker-0"),
    "server_starting": ("servers", "starting", "ps-0"),
    "server_training": ("servers", "training", "ps-0"),
    "server_saving": ("servers", "saving", "ps-0"),
    "server_ending": ("servers", "ending", "ps-0"),
    "program_starting": ("servers", "starting", "chief-0"),
    "program_training": ("servers", "training", "chief-0"),
    "program_saving": ("servers", "saving", "chief-0"),
    "program_ending": ("servers", "ending", "chief-0"),
    "replica_starting": ("replicas", "starting", "worker-1"),
    "replica_training": ("replicas", "training", "worker-1"),
    "replica_saving": ("replicas", "saving", "worker-1"),
    "replica_ending": ("replicas", "ending", "worker-1"),
    "saver_starting": ("replicas", "starting", "worker-0"),
    "saver_training": ("replicas", "training", "worker-0"),
    "saver_saving": ("replicas", "saving", "worker-0"),
    "saver_ending": ("replicas", "ending", "worker-0"),
    "host_worker_starting": ("servers", "starting", "ssh-worker-0"),
    "host_worker_training": ("servers", "training", "ssh-worker-0"),
    "host_worker_saving": ("servers", "saving", "ssh-worker-0"),
    "host_worker_ending": ("servers", "ending", "ssh-worker-0"),
    "host_server_starting": ("servers", "starting", "ssh-ps-0"),
    "host_server_training": ("servers", "training", "ssh-ps-0"),
    "host_server_saving": ("servers", "saving", "ssh-ps-0"),
    "host_server_ending": ("servers", "ending", "ssh-ps-0"),
    "host_replica_starting": ("replicas", "starting", "ssh-worker-0"),
    "host_replica_training": ("replicas", "training", "ssh-worker-0"),
    "host_replica_saving": ("replicas", "saving", "ssh-worker-0"),
    "host_replica_ending": ("replicas", "ending", "ssh-worker-0"),
}
# `test_launch` kills tasks that train, `test_launch_hosts` their connections.
_DEFAULT = ("worker_starting", "saver_saving")


def _kill_while_it_starts(job, folder, to_kill):
    """Kills a server's or worker's process, or its ssh, before it is ready, and notes when."""
    if to_kill.startswith("ssh-"):
        starting = functools.partial(killing_program.pids_of_ssh, folder, to_kill[4:])
    else:
        kind, index = to_kill.split("-")
        task = {"type": kind, "index": int(index)}
        starting = functools.partial(_servers, job.process.pid, task)
    wait_until(lambda: starting() != [])
    (folder / "killed").write_text(str(time.monotonic()))
    os.kill(*starting(), signal.SIGKILL)


def _servers(launcher, task):
    return [
        one.pid
        for one in psutil.Process(launcher).children()
        if "serve.py" in " ".join(one.cmdline())
        and json.loads(one.environ()["TF_CONFIG"])["task"] == task
    ]


def _numbers(lines, text):
    """The numbers at the ends of lines with a text, and when the first one came."""
    found = [(when, line) for when, line in lines if text in line]
    return {int(line.split()[-1]) for _, line in found}, found[0][0] if found else math.inf


def _what_follows(job, folder, phase, kind, to_kill):
    """What becomes of the job, and how long that takes."""
    status, end = job.end()
    assert status == 0, job.output
    killed = float((folder / "killed").read_text())
    ends, _ = _numbers(job.lines, "] ends at")
    # The step of a killed worker may count twice.
    assert ends and ends <= ({8, 9} if "worker" in to_kill and kind == "servers" else {8})
    if "(1 of 1)" not in job.output:
        assert phase == "ending" and kind == "servers" and to_kill != "chief-0"
        return "status 0", end - killed  # It had ended before anybody saw that.
    if kind == "servers" and "worker" in to_kill and phase != "starting":
        assert re.search(r"worker:0 ended, .*: it starts again \(1 of 1\)", job.output)
        back = [when for when, line in job.lines if "ready task=worker:0" in line]
        # (If the program ends first, nobody waits for the worker.)
        return "task", (back[1] if len(back) > 1 else end) - killed
    # (A line of before can come after the kill.)
    again = [": the job starts again (1 of 1)" in line for _, line in job.lines].index(True)
    begins, when = _numbers(job.lines[again:], "] begins at")
    (at,) = begins
    if phase == "saving" and (to_kill == "worker-1" or "ssh" in to_kill):
        assert 4 <= at <= 8  # Others may save meanwhile.
    else:
        assert at == _AT.get(phase, 0)
    if phase == "saving" and "ssh" not in to_kill:
        assert f"] left [{killing_program.LIMIT}]" in job.output  # not whole
    return "job", when - killed


@pytest.mark.parametrize("case", slow_but(table.cases(__file__), lambda case: case in _DEFAULT))
def test_a_task_is_killed(case, tmp_path):
    """The job counts to eight, from the last whole checkpoint or with another worker."""
    kind, phase, to_kill = _KILLS[case]
    killing_program.install(tmp_path)
    path = os.pathsep.join(map(os.fspath, (tmp_path, ROOT)))
    options = ["--workers", "2", *(["--ps", "1"] if kind == "servers" else [])]
    if to_kill.startswith("ssh-"):
        ssh.install(tmp_path)
        (tmp_path / "hosts").write_text("localhost\n127.0.0.1\n")
        options += ["--hosts", tmp_path / "hosts"]
    job = LaunchedJob(
        tmp_path,
        *(*options, "--max-restarts", "1", "--log-dir", tmp_path / "logs"),
        *(killing_program.__file__, tmp_path, phase, to_kill),
        PYTHONPATH=path,
        PATH=os.pathsep.join((os.fspath(tmp_path), os.environ["PATH"])),
    )
    try:
        if phase == "starting" and kind == "servers" and to_kill != "chief-0":
            _kill_while_it_starts(job, tmp_path, to_kill)
        outcome, seconds = _what_follows(job, tmp_path, phase, kind, to_kill)
    finally:
        job.process.kill()  # Nothing goes on if the test has failed.
    wait_until(lambda: not _left(tmp_path))
    assert not _left(tmp_path)
    here = {"outcome": outcome, "seconds": round(seconds, 3)}
    table.check(__file__, case, {"outcome": "n/a"}, here)


def _left(folder):
    """Processes that have the folder in their environment: all of the job's have it."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if os.fspath(folder) in one.environ().get("PYTHONPATH", ""):
                found.append(one)
    return found
