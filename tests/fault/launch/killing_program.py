# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Count to eight, with a checkpoint at each step, from which it goes on; once, kill a task.

    killing_program.py FOLDER PHASE TASK

With parameter servers it counts on one, else each replica does. At PHASE it kills the TASK
("ps-0"), or that task's ssh ("ssh-ps-0"), and notes when in the file FOLDER/killed. A process that
writes a checkpoint is killed by the kernel in its write, when a file has `LIMIT` bytes: the folder
of `install` lets SIGXFSZ do so.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

STEPS, KILLED_AT = 8, 5
LIMIT = 1 << 16
_VALUES = 1 << 18  # of four bytes: a file of a checkpoint has more than `LIMIT`


def install(folder: Path) -> None:
    """Write what all Python programs that find the folder in PYTHONPATH run first."""
    (folder / "sitecustomize.py").write_text(
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it.\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    )


class Killer:
    """Kills a task once, at a phase."""

    def __init__(self, folder: Path, phase: str, to_kill: str):
        self._folder, self._phase = folder, phase
        self._to_kill = to_kill.removeprefix("ssh-")
        self._by_ssh = to_kill.startswith("ssh-")
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        self._own = f"{task['type']}-{task['index']}"

    def at(self, phase: str) -> None:
        """Kill the task, if this is the phase and it has not been killed."""
        mark = self._folder / "killed"
        is_replica = self._own.startswith("worker")
        if phase != self._phase or mark.exists() or (is_replica and self._own != self._to_kill):
            return
        pid = self._pid_of_ssh() if self._by_ssh else self._pid()
        mark.write_text(str(time.monotonic()))
        if phase == "saving" and not self._by_ssh and (is_replica or self._to_kill != "worker-0"):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (LIMIT, resource.RLIM_INFINITY))
            return
        os.kill(pid, signal.SIGKILL)
        # It gets no further before the job ends it. (tf_fuse handles SIGTERM in replicas.)
        while is_replica or (self._by_ssh and phase == "training" and self._to_kill == "ps-0"):
            signal.pause()

    def _pid(self) -> int:
        if self._to_kill == self._own:
            return os.getpid()
        log = (self._folder / "logs" / f"{self._to_kill}.log").read_text()
        return int(re.findall(r"ready .*pid=(\d+)", log)[-1])

    def _pid_of_ssh(self) -> int:
        (found,) = pids_of_ssh(self._folder, self._to_kill)
        return found


def pids_of_ssh(folder: Path, task: str) -> list[int]:
    """Return the process that stands for ssh to the host of a task; none if there is none yet.

    Args:
      folder: where `tests.cluster.cli.ssh` is installed.
      task: such as "worker-0".
    """
    import psutil

    found = []
    for one in psutil.process_iter():
        try:
            if f"{folder}/notes" in one.cmdline():
                config = json.loads(one.environ()["TF_CONFIG"])["task"]
                if f"{config['type']}-{config['index']}" == task:
                    found.append(one.pid)
        except psutil.Error:  # It has ended.
            pass
    return found


def _say_what_is_left(folder: Path) -> None:
    """Print the sizes of files that a save has not given their names."""
    left = folder.glob("checkpoints*/*_temp/*.tempstate*")
    print("left", [one.stat().st_size for one in left], flush=True)


def _train(folder: Path, killer: Killer) -> None:
    import tensorflow as tf

    import tf_fuse  # noqa: F401  (adds the option "tf_fuse" and the protocol "grpc+fuse")

    tf.config.optimizer.set_experimental_options({"tf_fuse": True})
    cluster = json.loads(os.environ["TF_CONFIG"])
    index = cluster["task"]["index"]
    strategy: Any
    if "ps" in cluster["cluster"]:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    else:
        strategy, coordinator = tf.distribute.MultiWorkerMirroredStrategy(), None
    with strategy.scope():
        count = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)
        # In the file of whoever keeps variables; those of the program are in another one.
        values = tf.Variable(tf.zeros([_VALUES]), aggregation=tf.VariableAggregation.MEAN)
    checkpoint = tf.train.Checkpoint(count=count, values=values, own=tf.Variable([0] * _VALUES))
    _say_what_is_left(folder)
    if latest := tf.train.latest_checkpoint(str(folder / "checkpoints")):
        checkpoint.restore(latest)
    own = folder / ("checkpoints" if index == 0 else f"checkpoints-{index}")
    manager = tf.train.CheckpointManager(checkpoint, str(own), max_to_keep=2)

    def number() -> int:
        return int(count.numpy())

    @tf.function
    def step() -> None:
        if coordinator:
            count.assign_add(1.0)
        else:
            strategy.run(lambda: count.assign_add(1.0))

    print("begins at", number(), flush=True)
    while (before := number()) < STEPS:
        if coordinator:
            coordinator.schedule(step)
        if before == KILLED_AT:
            killer.at("training")
        if coordinator:
            coordinator.join()
        else:
            step()
        if number() == KILLED_AT:
            killer.at("saving")
        manager.save()
    print("ends at", number(), flush=True)
    killer.at("ending")


def main() -> None:
    """Train."""
    folder = Path(sys.argv[1])
    killer = Killer(folder, *sys.argv[2:])
    killer.at("starting")
    _train(folder, killer)
    os._exit(0)  # Python would wait for threads of TensorFlow.


if __name__ == "__main__":
    main()
