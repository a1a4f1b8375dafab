# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`BackupAndRestore` of Keras 3 on parameter servers when its program is killed in a backup."""

import itertools
import sys

import pytest

from tests.cluster.keras.interrupted_saves import POINTS
from tests.fault import coordinator
from tests.fault.parameter_server import keras_fit_program as program
from tests.slow_cases import slow

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("workers", "data"),
    [slow(1, "arrays"), slow(2, "arrays"), slow(2, "function"), (1, "function")],
)
def test_weights_and_step_of_a_backup_belong_together(tmp_path, workers, data):
    """The program is killed in its second backup, at another point each time it is started."""
    found = coordinator.run(__file__, tmp_path, workers, data, seconds=800)
    whole, last = found["whole"], found["killed"].pop()
    assert [one["status"] for one in found["killed"]] == [-9] * len(POINTS)
    in_epoch = program.steps_in_epoch(workers, data)
    begun = [one["begun"] for one in (*found["killed"], last)]
    steps = [step for _, _, step in begun]
    assert steps == [epoch * in_epoch + batch for epoch, batch, _ in begun]
    assert all(after > before for before, after in itertools.pairwise(steps))
    assert last["trained"]["step"] == whole["step"] == program.EPOCHS * in_epoch
    if workers == 1:
        assert last["trained"]["variables"] == whole["variables"]


def _main(folder, workers, data):
    job = coordinator.Job("off", int(workers), 1)
    cluster = {name: job.cluster.cluster_spec[name] for name in ("worker", "ps")}

    def killed():
        runs = [program.run(cluster, f"{folder}/killed", 2, data, point) for point in (*POINTS, "")]
        return [{"status": status, **found} for status, found in runs]

    def whole():
        return program.run(cluster, f"{folder}/whole", 2, data)[1]["trained"]

    coordinator.finish({"whole": whole, "killed": killed})


if __name__ == "__main__":
    _main(*sys.argv[1:])
