# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A task of `tf-fuse launch` is killed while it starts, trains, saves or ends."""

import json
import textwrap
import time

import psutil
import pytest

from tests.fault import table
from tests.fault.coordinator import wait_until
from tests.fault.launch.launched_job import LaunchedJob
from tests.slow_cases import slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(300)]

# Counts to eight on a server, with a checkpoint at each step, from which it goes on. Once, at the
# phase that its second argument says, it kills the task that its third one says, and notes when.
_TRAIN = """
    import os, pathlib, re, sys, time
    import tensorflow as tf
    import tf_fuse

    folder, phase, to_kill = pathlib.Path(sys.argv[1]), *sys.argv[2:]

    def kill(now):
        mark = folder / "killed"
        if now == phase and not mark.exists():
            pid = os.getpid()
            if to_kill != "chief-0":
                log = (folder / "logs" / f"{to_kill}.log").read_text()
                pid = int(re.findall(r"ready .*pid=(\\d+)", log)[-1])
            mark.write_text(str(time.monotonic()))
            os.kill(pid, 9)

    kill("starting")
    tf.config.optimizer.set_experimental_options({"tf_fuse": True})
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        count = tf.Variable(0)
    checkpoint = tf.train.Checkpoint(count=count)
    manager = tf.train.CheckpointManager(checkpoint, str(folder / "checkpoints"), max_to_keep=2)
    manager.restore_or_initialize()
    print("begins at", int(count.numpy()), flush=True)

    step = tf.function(lambda: count.assign_add(1))
    while (before := int(count.numpy())) < 8:
        coordinator.schedule(step)
        if before == 5:
            kill("training")
        coordinator.join()
        if int(count.numpy()) == 5:
            kill("saving")
        manager.save()
    print("ends at", int(count.numpy()), flush=True)
    kill("ending")
    os._exit(0)  # Python would wait for threads of TensorFlow.
"""
_AT = {"training": 5, "saving": 4, "ending": 8}  # what the last checkpoint has
# Case: the phase, and the task that is killed.
_KILLS = {
    "worker_starting": ("starting", "worker-0"),
    "server_starting": ("starting", "ps-0"),
    "program_starting": ("starting", "chief-0"),
    "worker_training": ("training", "worker-0"),
    "server_training": ("training", "ps-0"),
    "program_training": ("training", "chief-0"),
    "worker_saving": ("saving", "worker-0"),
    "server_saving": ("saving", "ps-0"),
    "program_saving": ("saving", "chief-0"),
    "worker_ending": ("ending", "worker-0"),
    "server_ending": ("ending", "ps-0"),
    "program_ending": ("ending", "chief-0"),
}
_DEFAULT = ("worker_starting", "server_saving")  # `test_launch` kills tasks that train.


def _kill_while_it_starts(job, folder, kind, index):
    """Kills a server's or worker's process before it is ready, and notes when."""

    def starting():
        for one in psutil.Process(job.process.pid).children():
            if "serve.py" in " ".join(one.cmdline()):
                config = json.loads(one.environ()["TF_CONFIG"])["task"]
                if config == {"type": kind, "index": index}:
                    return one
        return None

    wait_until(lambda: starting() is not None)
    (folder / "killed").write_text(str(time.monotonic()))
    starting().kill()


def _what_follows(job, folder, phase, kind):
    """What becomes of the job, and how long that takes."""
    status, end = job.end()
    assert status == 0, job.output
    killed = float((folder / "killed").read_text())
    ends = [int(line.split()[-1]) for _, line in job.lines if "] ends at" in line]
    begins = [(when, int(line.split()[-1])) for when, line in job.lines if "] begins at" in line]
    assert ends and min(ends) >= 8 and max(ends) <= 9  # a killed worker's step may count twice
    if "(1 of 1)" not in job.output:
        assert phase == "ending" and kind != "chief"
        return "status 0", end - killed  # It had ended before anybody saw that.
    if kind == "worker" and phase != "starting":
        assert "worker:0 ended, by SIGKILL: it starts again (1 of 1)" in job.output
        back = [when for when, line in job.lines if "ready task=worker:0" in line]
        # (If the program ends first, nobody waits for the worker.)
        return "it restarts", (back[1] if len(back) > 1 else end) - killed
    assert ": the job starts again (1 of 1)" in job.output
    ((when, at),) = [(when, at) for when, at in begins if when > killed]
    assert at == _AT.get(phase, 0)
    return "the job restarts", when - killed


@pytest.mark.parametrize("case", slow_but(table.cases(__file__), lambda case: case in _DEFAULT))
def test_a_task_is_killed(case, tmp_path):
    """The job counts to eight, from a checkpoint or with another worker."""
    phase, task = _KILLS[case]
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(_TRAIN))
    options = ["--workers", "2", "--ps", "1", "--max-restarts", "1", "--log-dir", tmp_path / "logs"]
    job = LaunchedJob(tmp_path, *options, program, tmp_path, phase, task)
    kind, index = task.split("-")
    if phase == "starting" and kind != "chief":
        _kill_while_it_starts(job, tmp_path, kind, int(index))
    outcome, seconds = _what_follows(job, tmp_path, phase, kind)
    here = {"outcome": outcome, "seconds": round(seconds, 3)}
    table.check(__file__, case, {"outcome": "n/a"}, here)
