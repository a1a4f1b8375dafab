# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One replica of `run.py` in a process of its own; `modes.py` is its caller.

    python benchmarks/shard_update/rank.py '{"backend": "tensorflow", "rank": 0, ...}'

The backends are `tensorflow_backend.py` and `torch_backend.py`. Commands and events are those of
`collectives/rank.py`, with the calls "step" (a whole step of training) and "gradients" (one that
computes and reduces gradients, and updates nothing), and these in place of its "prepare":

* {"do": "prepare", "warm_up": N}: build the model, make N steps and N calls of "gradients";
  "prepared", with the reason why the mode cannot be had here, or null;
* {"do": "finish"}: "finished", with the loss of every step since the first (as float.hex), the
  bytes of the optimizer's state, the peak of the process's memory since "prepared", and the
  estimate by which it was decided what to shard, or null.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

if __name__ == "__main__":
    # As in collectives/rank.py.
    _folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if p != _folder] + [
        os.path.dirname(os.path.dirname(_folder))
    ]

from benchmarks.collectives import rank as base

CALLS = ("step", "gradients")
_RESET_PEAK = "5"  # proc(5), clear_refs


class Trainer(Protocol):
    """A replica, and what it trains."""

    def build(self) -> None:
        """Make model and optimizer, as they are before the first step."""

    def step(self, at: int) -> Any:
        """Make a step of training with the batch of that number; return its loss.

        The loss is that of this replica's batch, in whatever form is at hand: `loss` reads it.
        """

    def gradients(self, at: int) -> None:
        """Compute gradients and reduces them, as `step` does."""

    def loss(self, result: Any) -> float:
        """Return what a step returned, as a number."""

    def state_bytes(self) -> int:
        """Bytes of the buffers that hold this replica's shard of the optimizer's state."""

    def report(self) -> dict[str, Any] | None:
        """Return what `tf_fuse.weight_update_report` returns; None without that."""

    def counters(self) -> dict[str, int]:
        """See `collective_rank.Backend`."""


class _Calls:
    """A trainer as the backend of a `collective_rank.Rank`."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.losses: list[Any] = []
        self._gradients = 0
        self.counters = trainer.counters

    def call(self, op: str) -> Callable[[], Any]:
        return {"step": self._step, "gradients": self._reduce}[op]

    def _step(self) -> None:
        self.losses.append(self.trainer.step(len(self.losses)))

    def _reduce(self) -> None:
        self.trainer.gradients(self._gradients)
        self._gradients += 1

    def release(self) -> None:
        """Nothing: one model lasts to the end."""


class Replica(base.Rank):
    """The commands of one replica."""

    def __init__(self, make: Callable[[], Trainer]):
        """Join the other replicas.

        Args:
          make: does so. It may raise UnsupportedError, which "prepare" then reports.
        """
        self._reason: str | None = None
        try:
            self._calls_of = _Calls(make())
        except base.UnsupportedError as e:
            self._reason = str(e)
        else:
            super().__init__(self._calls_of)

    def serve(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """See `collective_rank.Rank`."""
        match command["do"]:
            case "prepare":
                return {"event": "prepared", "unsupported": self._prepared(command["warm_up"])}
            case "finish":
                return {"event": "finished", **self._finished()}
        return super().serve(command)

    def _prepared(self, warm_up: int) -> str | None:
        if self._reason is not None:
            return self._reason
        try:
            self._calls_of.trainer.build()
            for op in CALLS:
                call = self._calls_of.call(op)
                for _ in range(warm_up):
                    call()
        except base.UnsupportedError as e:
            return str(e)
        base._give_back_memory()
        reset_peak()
        return None

    def _finished(self) -> dict[str, Any]:
        trainer = self._calls_of.trainer
        peak = peak_rss_bytes()  # before anything is read
        return {
            "losses": [trainer.loss(loss).hex() for loss in self._calls_of.losses],
            "optimizer_state_bytes": trainer.state_bytes(),
            "peak_rss_bytes": peak,
            "estimate": estimate(trainer.report()),
        }


def estimate(report: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what sharding was expected to save in a step.

    Args:
      report: of `weight_update_report`; None where there is none.

    Returns:
      None if nothing was weighed. Else `sharded_ms`: of all-reduces that are sharded; `left_ms`:
      what those would save that are left alone; `costs`: the figures.
    """
    weighed = [
        (function["costs"], bucket)
        for function in (report["functions"] if report else [])
        for bucket in function["buckets"]
        if bucket["profit"]
    ]
    if not weighed:
        return None
    saved = {True: 0.0, False: 0.0}
    for _, bucket in weighed:
        profit = bucket["profit"]
        saved[bucket["sharded"]] += 1e3 * (profit["saved_s"] - profit["cost_s"])
    return {"sharded_ms": saved[True], "left_ms": saved[False], "costs": weighed[0][0]}


def reset_peak() -> bool:
    """From here on `peak_rss_bytes` is anew, if the system can do that: returns whether."""
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def peak_rss_bytes() -> int:
    """Return the most memory that the process has held since `reset_peak`."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def make_trainer(spec: Mapping[str, Any]) -> Trainer:
    """Return the replica that a specification describes.

    Args:
      spec: as that of `collective_rank.make_backend`, with the backend "torch" for "gloo"; and
        "model", "sizes", "optimizer" and "learning_rate", for tensorflow "options" (of ours), for
        torch "zero".

    Raises:
      UnsupportedError: the mode cannot be had here.
      PortTakenError: the rank's port is in use.
    """
    if spec["backend"] == "torch":
        from benchmarks.shard_update.torch_backend import Torch

        return Torch(spec)
    from benchmarks.shard_update.tensorflow_backend import TensorFlow

    return TensorFlow(spec)


if __name__ == "__main__":
    # The backends raise the errors of one copy of collective_rank.
    base.main(lambda spec: Replica(lambda: make_trainer(spec)))
