# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Stand for Slurm's `srun` and `scontrol` on this machine: all tasks on one node.

    slurm.py srun [OPTION...] COMMAND...    starts SLURM_NTASKS of them
    slurm.py scontrol show hostnames localhost

As `srun` does, it waits for all tasks; with --wait=SECONDS it kills those that still run so long
after the first one has ended, and with --kill-on-bad-exit=1 it ends all when one has failed; its
status is the highest of theirs, where a signal counts 128 and its number.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


def install(folder: Path) -> None:
    """Put programs of these names into a folder."""
    for name in ("srun", "scontrol"):
        file = folder / name
        file.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
        file.chmod(0o755)


def _srun(arguments: list[str]) -> int:
    options = list(itertools.takewhile(lambda one: one.startswith("--"), arguments))
    command = arguments[len(options) :]
    count = int(os.environ["SLURM_NTASKS"])
    tasks = []
    for rank in range(count):
        env = os.environ | {
            "SLURM_PROCID": str(rank),
            "SLURM_STEP_NUM_TASKS": str(count),
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_STEP_TASKS_PER_NODE": str(count),
            "SLURMD_NODENAME": "localhost",
        }
        tasks.append(
            subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
        )
    failed, ended = threading.Event(), threading.Event()
    followers = [
        threading.Thread(target=_follow, args=(rank, task, options, failed, ended))
        for rank, task in enumerate(tasks)
    ]
    for one in followers:
        one.start()
    ended.wait()
    deadline = time.monotonic() + _seconds(options)
    for one in followers:
        while one.is_alive() and not failed.is_set() and time.monotonic() < deadline:
            one.join(0.05)
    for task in tasks:
        if task.poll() is None:
            os.killpg(task.pid, signal.SIGTERM if failed.is_set() else signal.SIGKILL)
    for one in followers:
        one.join()
    return max(code if code >= 0 else 128 - code for code in (task.returncode for task in tasks))


def _seconds(options: list[str]) -> float:
    (given,) = [one for one in options if one.startswith("--wait=")] or ["--wait=inf"]
    return float(given.partition("=")[2])


def _follow(
    rank: int,
    task: subprocess.Popen,
    options: list[str],
    failed: threading.Event,
    ended: threading.Event,
) -> None:
    """Write a task's lines with its number."""
    assert task.stdout is not None
    for line in task.stdout:
        print(f"{rank}: {line}" if "--label" in options else line, end="", flush=True)
    if task.wait() and "--kill-on-bad-exit=1" in options:
        failed.set()
    ended.set()


if __name__ == "__main__":
    if sys.argv[1] == "srun":
        sys.exit(_srun(sys.argv[2:]))
    assert sys.argv[2:] == ["show", "hostnames", "localhost"], sys.argv
    print("localhost")
