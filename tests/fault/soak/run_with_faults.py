# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One run of a soak test: steps, faults, samples, and new coordinators."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import psutil

from tests.fault import raw_worker
from tests.fault.soak import faults as soak_faults
from tests.fault.soak import models
from tests.fault.soak.coordinator import Coordinator, HangError, environment

_ROUNDS = 10  # between two looks at what is due
_SAMPLES = 200
_SAVES = 40


class Soak:
    """One run.

    Attributes:
      samples: as `report.findings` takes them.
      losses: per round, per model.
      errors: by class, those that steps met; by "cancelled: ...", how cancelled steps ended.
      faults: the `faults.Faults`.
    """

    def __init__(
        self, args: argparse.Namespace, cluster: Any, folder: Path, write: Callable[[Any], None]
    ):
        """Prepares a run on `cluster`; `write` gets each line of the JSON."""
        self._args, self._cluster, self._write = args, cluster, write
        kinds = dict(soak_faults.DECK)
        if reason := soak_faults.may_drop():
            print(f"note: connections are not dropped: {reason}", file=sys.stderr)
            kinds.pop("connection_dropped")
        if args.each_once:
            kinds = dict.fromkeys(kinds, 1)
        self._deck = soak_faults.Deck(args.seed, kinds)
        self.faults = soak_faults.Faults(cluster, self._deck.random)
        self._state = folder / "state.npz"
        self.samples: list[dict[str, Any]] = []
        self.losses: list[list[str]] = []
        self.errors: Counter[str] = Counter()
        self._coordinator: Coordinator | None = None
        self._coordinators = 0
        self._last_fault: str | None = None
        self._start = time.monotonic()

    @property
    def steps(self) -> int:
        """Steps done, as many as there are losses."""
        return len(self.losses) * models.MODELS

    def run(self, on_steps: Callable[[int], None]) -> None:
        """Runs all steps.

        Raises:
          SoakError: the cluster did not recover where stock TensorFlow does.
        """
        rounds = self._args.steps // models.MODELS
        due = {"fault": 0.0, "sample": 0.0, "save": 0.0}
        every = {
            "fault": self._args.fault_every / models.MODELS,
            "sample": rounds / _SAMPLES,
            "save": rounds / _SAVES,
        }
        self._connect()
        while len(self.losses) < rounds:
            fault = self._is_due("fault", due, every)
            try:
                self._run(min(_ROUNDS, rounds - len(self.losses)), fault)
                if self._is_due("sample", due, every):
                    self._sample()
                if self._is_due("save", due, every):
                    self._ask("saved", save=True)
            except HangError as hang:
                self._forgive(hang)
            on_steps(self.steps)
        self.faults.wait()
        self._sample()

    def close(self) -> None:
        """Ends the coordinator."""
        if self._coordinator:
            self._coordinator.close()

    def _is_due(self, what: str, due: dict[str, float], every: Mapping[str, float]) -> bool:
        if len(self.losses) < due[what]:
            return False
        due[what] = len(self.losses) + every[what]
        return True

    def _connect(self) -> None:
        spec = {"mode": self._args.mode, "cluster": self._cluster.cluster_spec}
        self._coordinator = Coordinator(
            {**spec, "state": str(self._state)}, environment(), lambda: self._cluster.pids
        )
        self._coordinators += 1
        # What was not saved is run again.
        del self.losses[self._coordinator.expect("ready")["number"] :]

    def _ask(self, wanted: str, **command: Any) -> dict[str, Any]:
        assert self._coordinator
        return self._coordinator.ask(wanted, **command)

    def _run(self, rounds: int, with_fault: bool) -> None:
        assert self._coordinator
        kind = self._deck.deal() if with_fault else None
        self._last_fault = kind or self._last_fault
        cancel = []
        if kind == "cancelled":
            cancel = sorted(self._deck.random.sample(range(rounds), min(3, rounds)))
            self.faults.count(kind)
        if kind == "server_killed":
            self._lose_server()
            return
        self._coordinator.send(run=rounds, cancel=cancel)
        if kind and kind != "cancelled":
            self.faults.happen(kind)
        self._take(self._coordinator.expect("ran"))

    def _forgive(self, hang: HangError) -> None:
        """Goes on with a new coordinator where it is TensorFlow that hangs.

        It may wait for ever for a step or a variable when the connection that the answer came by
        was dropped, and a channel of it may stay silent, with the plugin or without it. What the
        plugin waits for must be known to the task that it waits for.

        Raises:
          HangError: it is not, or a task answers nobody.
        """
        kind = self._last_fault
        seen = {"steps": self.steps, "waiting": hang.waiting, "stacks": hang.stacks}
        self._write({"hung": kind, **seen})
        if self._args.mode != "stock":
            if hang.waiting is None or unanswered(hang.waiting):
                raise hang
            silent = sorted(task for task, waits in hang.waiting.items() if waits is None)
            if any(not _answers(self._cluster.cluster_spec, task) for task in silent):
                raise hang
            kind = f"{kind}, no answer to it from {', '.join(silent)}" if silent else kind
        self.errors[f"hung: {kind}"] += 1
        self._replace()

    def _replace(self) -> None:
        assert self._coordinator
        self._coordinator.close()
        self.faults.wait()
        self._connect()

    def _lose_server(self) -> None:
        """Kills a server; the coordinator reports it lost, and another one takes over."""
        assert self._coordinator
        self.faults.wait()  # or it would report another one
        self._coordinator.send(until_lost=True)
        self.faults.happen("server_killed")
        event = self._coordinator.expect("lost")
        self.errors[f"server killed: {event['error']}"] += 1
        self._replace()

    def _take(self, event: Mapping[str, Any]) -> None:
        self.losses += event["losses"]
        self.errors.update(event["errors"])
        self.errors.update({f"cancelled: {k}": v for k, v in event["cancelled"].items()})

    def _sample(self) -> None:
        self.faults.wait()
        answer = self._ask("gauges", gauges=self._coordinators)
        assert self._coordinator
        pids = {**self._cluster.pids, "chief:0": self._coordinator.pid}
        sample = {
            "steps": self.steps,
            "seconds": round(time.monotonic() - self._start, 1),
            "faults": dict(sorted(self.faults.counts.items())),
            "errors": dict(sorted(self.errors.items())),
            "coordinators": self._coordinators,
            "losses": self.losses[-1:],  # of the last round, for tests that did not end
            "gauges": answer["tasks"],
            "waiting": answer["waiting"],
            "counters": answer["counters"],
            "tasks": {task: resources(pid) for task, pid in sorted(pids.items())},
        }
        self.samples.append(sample)
        self._write(sample)


def unanswered(waiting: Mapping[str, Sequence[Mapping[str, Any]] | None]) -> list[str]:
    """The fused receives that wait for a task which does not know of it.

    Args:
      waiting: as `tf_fuse.cluster_waiting`.

    Returns:
      A line for each. A receive whose peer holds its request waits for the peer's graph: that has
      not begun, or waits itself. One whose peer does not hold it was lost between the two, and
      ends never. Of a peer that did not tell, nothing is known.
    """
    silent = {task for task, of_task in waiting.items() if of_task is None}
    held = {
        (one["task"], one["peer"], one["step_id"])
        for of_task in waiting.values()
        for one in of_task or ()
        if one["sending"]
    }
    return [
        f"{one['task']}, step {one['step_id']}: {one['tensors']} tensors of {one['peer']}"
        for of_task in waiting.values()
        for one in of_task or ()
        if not one["sending"]
        and one["peer"] not in silent
        and (one["peer"], one["task"], one["step_id"]) not in held
    ]


def _answers(cluster_spec: Mapping[str, Sequence[str]], task: str) -> bool:
    """Whether a task answers on a connection that no fault has seen."""
    job, index = task.removeprefix("/job:").split("/replica:0/task:")
    try:
        raw_worker.Worker(cluster_spec[job][int(index)], task).close()
        return True
    except grpc.RpcError:
        return False


def resources(pid: int) -> dict[str, float]:
    """Return the id, memory, threads and descriptors of a process."""
    process = psutil.Process(pid)
    with process.oneshot():
        return {
            "pid": pid,
            "rss_mib": round(process.memory_info().rss / 2**20, 2),
            "threads": process.num_threads(),
            "fds": process.num_fds(),
        }
