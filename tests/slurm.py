# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Stand for Slurm's `srun` and `scontrol` on this machine.

    slurm.py srun [OPTION...] COMMAND...    starts SLURM_NTASKS of them
    slurm.py scontrol show hostnames LIST   writes the hosts of "n[1-2,04],m1", one on each line

Of a list that it cannot read, scontrol writes that, and its status is 0, as Slurm's is.

The tasks are on the nodes of SLURM_JOB_NODELIST, as many as SLURM_TASKS_PER_NODE says; all on
`localhost` without. STAND_IN_COMMANDS has a JSON object: by node, what to put before a command to
run it there. STAND_IN_WAITS is a number that the seconds of --wait are multiplied by.

As `srun` does, it waits for all tasks; with --wait=SECONDS, unless that is 0, it kills those that
still run so long after the first one has ended, and with --kill-on-bad-exit=1 it ends all when one
has failed; its status is the highest of theirs, where a signal counts 128 and its number. Tasks go
to the nodes in turn, but with --distribution=block. SIGTERM goes to the first process of each task
alone, as Slurm does it unless cgroup.conf has SignalChildrenProcesses=yes; after that no task ends
the others. (Whether Slurm's --kill-on-bad-exit waits then, too, nobody has tried.)
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
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
    nodes = expand(os.environ.get("SLURM_JOB_NODELIST", "localhost"))
    per_node = os.environ.get("SLURM_TASKS_PER_NODE", str(count))
    commands = json.loads(os.environ.get("STAND_IN_COMMANDS", "{}"))
    tasks = []
    for rank, node in enumerate(_places(nodes, per_node, "--distribution=block" in options)):
        env = os.environ | {
            "SLURM_PROCID": str(rank),
            "SLURM_STEP_NUM_TASKS": str(count),
            "SLURM_STEP_NODELIST": os.environ.get("SLURM_JOB_NODELIST", "localhost"),
            "SLURM_STEP_TASKS_PER_NODE": per_node,
            "SLURMD_NODENAME": node,
        }
        tasks.append(
            subprocess.Popen(
                [*commands.get(node, []), *command],
                env=env,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
    assert len(tasks) == count, (nodes, per_node)
    failed, ended = threading.Event(), threading.Event()
    followers = [
        threading.Thread(target=_follow, args=(rank, task, options, failed, ended))
        for rank, task in enumerate(tasks)
    ]

    def cancel(*_: object) -> None:
        options.append("--kill-on-bad-exit=0")
        for task in tasks:
            task.terminate()

    signal.signal(signal.SIGTERM, cancel)
    for one in followers:
        one.start()
    ended.wait()
    deadline = time.monotonic() + _seconds(options)
    for one in followers:
        while one.is_alive() and not failed.is_set() and time.monotonic() < deadline:
            one.join(0.05)
    for task in tasks:
        if task.poll() is None:  # Or it ends, and its follower's `wait` has it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(task.pid, signal.SIGTERM if failed.is_set() else signal.SIGKILL)
    for one in followers:
        one.join()
    return max(code if code >= 0 else 128 - code for code in (task.returncode for task in tasks))


def expand(nodes: str) -> list[str]:
    """Return the hosts of a list, in Slurm's order (its src/common/hostlist.c).

    Raises:
      ValueError: Slurm cannot read it. In particular, names cannot go on after their last numbers:
        Slurm writes "n1-ib,n2-ib", not "n[1-2]-ib".
    """
    hosts = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        name, bracket, numbers = part.rpartition("[")
        if not bracket:
            hosts.append(part)
            continue
        if not numbers.endswith("]"):
            raise ValueError(part)
        every = _numbers(numbers[:-1])
        hosts += [prefix + number for prefix in _prefixes(name) for number in every]
    return hosts


def _prefixes(name: str) -> list[str]:
    """Return what a part of a name stands for; of several ranges, the first one varies fastest."""
    found = re.fullmatch(r"(.*)\[([^\]]*)\](.*)", name)
    if found is None:
        return [name]
    before, numbers, after = found.groups()
    return [one for number in _numbers(numbers) for one in _prefixes(before + number + after)]


def _numbers(text: str) -> list[str]:
    """Return the numbers of "1-2,04", each with as many digits as the first one of its range."""
    found = []
    for one in text.split(","):
        first, _, last = one.partition("-")
        every = range(int(first), int(last or first) + 1)
        if not every:
            raise ValueError(one)
        found += [f"{number:0{len(first)}}" for number in every]
    return found


def _places(nodes: list[str], per_node: str, block: bool) -> list[str]:
    """Return the node of each task."""
    counts: list[int] = []
    for part in per_node.split(","):
        count, _, times = part.rstrip(")").partition("(x")
        counts += [int(count)] * int(times or 1)
    left = dict(zip(nodes, counts, strict=True))
    if block:
        return [node for node, count in left.items() for _ in range(count)]
    rounds = range(max(counts))
    return [node for done in rounds for node, count in left.items() if count > done]


def _seconds(options: list[str]) -> float:
    (given,) = [one for one in options if one.startswith("--wait=")] or ["--wait=0"]
    seconds = float(given.partition("=")[2]) or math.inf
    return seconds if math.isinf(seconds) else seconds * float(os.environ.get("STAND_IN_WAITS", 1))


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
    given = [one for one in options if one.startswith("--kill-on-bad-exit=")]
    if task.wait() and given[-1:] == ["--kill-on-bad-exit=1"]:
        failed.set()
    ended.set()


if __name__ == "__main__":
    if sys.argv[1] == "srun":
        sys.exit(_srun(sys.argv[2:]))
    assert sys.argv[2:4] == ["show", "hostnames"] and len(sys.argv) == 5, sys.argv
    try:
        print("\n".join(expand(sys.argv[4])))
    except ValueError:
        print(f"Invalid hostlist: {sys.argv[4]}", file=sys.stderr)
