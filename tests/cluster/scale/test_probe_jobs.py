# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The jobs that `tf-fuse calibrate` measures."""

import pytest

from tf_fuse.scale.calibration import measure
from tf_fuse.scale.errors import ScaleError

pytest.importorskip("scipy")


@pytest.mark.cluster
@pytest.mark.parametrize("mode", ["local", "stock", "fused"])
def test_a_job_measures_its_probes(mode):
    ended = []
    job = measure.Job(mode, 1, 1, ("nothing",))
    found = measure.run_jobs([job], lambda one, probe: ended.append((one.name, probe)))
    assert ended == [(job.name, "nothing")]
    probe = found[job.name]["nothing"]
    assert probe["seconds"] > 0
    roles = ["coordinator"] if mode == "local" else ["coordinator", "worker", "ps"]
    assert all(probe["cpu_s"][role] > 0 for role in roles)


def test_jobs_that_run_twice_have_the_mean_of_both(monkeypatch):
    assert [job.name for job in measure.JOBS] == [job.name for job in reversed(measure.JOBS)]
    runs = [
        {"nothing": {"seconds": 1.0, "cpu_s": {"worker": 2.0, "ps": 4.0}, "steps": 30}},
        {"nothing": {"seconds": 2.0, "cpu_s": {"worker": 3.0, "ps": 8.0}, "steps": 15}},
    ]
    given = iter(runs)
    monkeypatch.setattr(measure, "_run_job", lambda job, on_probe: next(given))
    found = measure.run_jobs([measure.Job("stock"), measure.Job("stock")], lambda *_: None)
    mean = {"seconds": 1.5, "cpu_s": {"worker": 2.5, "ps": 6.0}, "steps": 30}
    assert found == {"stock 1x2": {"nothing": mean}}


def test_a_job_that_fails_says_why():
    with pytest.raises(ScaleError, match=r"(?s)the job local ended with exit status 1: .*'none'"):
        measure.run_jobs([measure.Job("local", probes=("none",))], lambda *_: None)
