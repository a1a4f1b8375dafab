# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A job of this machine, whose processes are stand-ins."""

import pytest

from tf_fuse.cluster.launcher import local_job

_RUNS = [5, 0]  # status of the program, by run


@pytest.mark.parametrize("servers", [1, 0])
def test_a_job_that_starts_again_is_not_ready_meanwhile(tmp_path, monkeypatch, servers):
    found, runs = [], iter(_RUNS)

    class Health:
        has_started = False

        def __init__(self, *args):
            found.append(self)

    class Cluster:
        cluster_spec, chief_address, pids = {"worker": ["localhost:1"]}, "localhost:2", {}

        def __init__(self, *args, **kwargs):
            found.append(("servers start", found[0].has_started))

        def close(self, grace_s):
            found.append(("servers end", found[0].has_started))

    class TaskProgram:
        name, pid = "chief:0", 1

        def __init__(self, *args):
            pass

        def wait(self):
            found.append(("program runs", found[0].has_started))
            return next(runs)

    monkeypatch.setattr(local_job, "JobHealth", Health)
    monkeypatch.setattr(local_job, "LocalCluster", Cluster)
    monkeypatch.setattr(local_job, "TaskProgram", TaskProgram)
    monkeypatch.setattr(local_job, "first_to_end", lambda pids: pids[0])
    monkeypatch.setattr(
        local_job, "end_all", lambda *args: found.append(("program ends", found[0].has_started))
    )
    job = local_job.Job(["program.py"], 1, servers, tmp_path, 1, health=("127.0.0.1", 0))
    assert local_job.launch(job) == 0
    program = [("program runs", True), ("program ends", False)]
    once = [("servers start", False), *program, ("servers end", False)] if servers else program
    assert found[1:] == once * len(_RUNS)
