# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train a table of 2 * 10^8 parameters in four processes whose memory is limited to 1 GB each.

The limit is that of a process's private memory (RLIMIT_DATA), without the pages of libraries.
A found plan splits the table; data parallelism, by a plan and by MultiWorkerMirroredStrategy, has
all of it in each process.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    _folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if p != _folder] + [
        os.path.dirname(os.path.dirname(_folder))
    ]

from benchmarks.collectives import rank as base
from benchmarks.common import output
from benchmarks.common.rank_group import Network, RankError, RankGroup, Variant

PROCESSES = 4
ROWS, WIDTH = 10_000_000, 20
BATCH, COLUMNS = 1024, 4
LIMIT_BYTES = 1_000_000_000
# Of each thread; it counts, whether it is used or not.
_STACK_BYTES = 1 << 20
STEPS = 10
TIMEOUT_S = 300
RATE = 0.1
_OUT_OF_MEMORY = "OOM when allocating tensor"
_OURS = "grpc+fuse"
FOUND, DATA, STOCK = "found", "data", "stock"
WAYS: Mapping[str, str] = {FOUND: _OURS, DATA: _OURS, STOCK: "grpc"}


def measure(
    progress: Any, ways: Sequence[str] = tuple(WAYS), rows: int = ROWS
) -> list[dict[str, Any]]:
    """One row per way, for `--json`: whether it trains, and how much memory a process had at most.

    Args:
      progress: gets a task.
      ways: of `WAYS`.
      rows: of the table.

    Raises:
      ProcessError: a process failed for want of something else than memory.
    """
    task = progress.add_task("a table larger than a process", total=len(ways))
    found = []
    for way in ways:
        found.append(_row(way, rows))
        progress.advance(task)
    return found


def _row(way: str, rows: int) -> dict[str, Any]:
    limits = ("prlimit", f"--data={LIMIT_BYTES}", f"--stack={_STACK_BYTES}")
    # Each arena of the C library reserves 64 MB, which count as well.
    network = Network(commands=(("env", "MALLOC_ARENA_MAX=2", *limits),))
    row: dict[str, Any] = {"way": way, "parameters": rows * WIDTH, "limit_bytes": LIMIT_BYTES}
    try:
        with RankGroup(
            Variant(way, protocol=WAYS[way]), PROCESSES, TIMEOUT_S, network,
            program=Path(__file__), spec={"way": way, "rows": rows},
        ) as group:  # fmt: skip
            group.wait_ready()
            ends = group.ask({"do": "train"}, "trained")
    except RankError as error:
        if _OUT_OF_MEMORY not in str(error):
            raise output.ProcessError(str(error)) from error
        return {**row, "trains": False, "error": str(error).partition("\n")[0]}
    return {
        **row,
        "trains": True,
        "losses": ends[0]["losses"],
        "ms": max(one["ms"] for one in ends),
        "peak_bytes": max(one["peak_bytes"] for one in ends),
        "layout": ends[0]["layout"],
    }


def render(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the rows as a table."""
    from rich.table import Table

    table = Table(title=f"{ROWS * WIDTH:.0e} parameters, {PROCESSES} processes of 1 GB each")
    for name in ("way", "trains", "ms per step", "peak MB of a process", "table"):
        table.add_column(name)
    for row in rows:
        if row["trains"]:
            peak = f"{row['peak_bytes'] / 1e6:.0f}"
            table.add_row(row["way"], "yes", f"{row['ms']:.1f}", peak, row["layout"])
        else:
            table.add_row(row["way"], "no, out of memory", "", "", "")
    return table


class Replica:
    """The commands of one process."""

    def __init__(self, spec: Mapping[str, Any]):
        """Join the others, and make the table."""
        self._make = {STOCK: _by_strategy}.get(spec["way"], _by_plan)
        self._step, self._layout = self._make(spec)

    def serve(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Trains.

        Raises:
          ValueError: the command is unknown.
        """
        import time

        if command["do"] != "train":
            raise ValueError(f"unknown command {dict(command)}; expected train")
        losses = [self._step()]
        begin = time.monotonic()
        losses += [self._step() for _ in range(STEPS)]
        return {
            "event": "trained",
            "losses": losses,
            "ms": (time.monotonic() - begin) / STEPS * 1e3,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            "layout": self._layout,
        }


def _batch(rows: int) -> tuple[Any, Any]:
    import numpy as np

    rng = np.random.default_rng(1)
    ids = rng.integers(0, rows, (BATCH, COLUMNS)).astype(np.int32)
    return ids, rng.normal(size=(BATCH, 1)).astype(np.float32)


def _model(table: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the weights beside the table, and the loss."""
    import tensorflow as tf

    kernel = tf.Variable(tf.fill([COLUMNS * WIDTH, 1], 0.1), name="kernel")

    def loss_of(ids: Any, targets: Any) -> Any:
        x = tf.reshape(tf.gather(table, ids), [-1, COLUMNS * WIDTH])
        return tf.reduce_mean(tf.square(x @ kernel - targets))

    return kernel, loss_of


def _by_plan(spec: Mapping[str, Any]) -> tuple[Callable[[], float], str]:
    os.environ["TF_CONFIG"] = json.dumps({
        "cluster": {"worker": spec["addresses"]},
        "task": {"type": "worker", "index": spec["rank"]},
    })  # fmt: skip
    import tensorflow as tf

    from tf_fuse import layout

    mesh = layout.Mesh({"x": spec["ranks"]})
    devices = layout.connect(mesh)
    table = layout.variable_in_parts([spec["rows"], WIDTH], name="table")
    kernel, loss_of = _model(table)

    def step(ids: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(ids, targets)
        rows, gradient = tape.gradient(loss, [table, kernel])
        table.scatter_sub(tf.IndexedSlices(RATE * rows.values, rows.indices))
        kernel.assign_sub(RATE * gradient)
        return loss

    batch = [tf.constant(one) for one in _batch(spec["rows"])]
    specs = [tf.TensorSpec(one.shape, one.dtype) for one in batch]
    mode = "data" if spec["way"] == DATA else "auto"
    plan = layout.plan(step, mesh, specs, mode=mode)
    run = layout.execute(plan, devices)
    return lambda: float(run(*batch)), str(plan.variables["table"])


def _by_strategy(spec: Mapping[str, Any]) -> tuple[Callable[[], float], str]:
    from benchmarks.shard_update import tensorflow_backend as backend

    strategy = backend._join(spec["rank"], spec["addresses"], spec["protocol"])
    import tensorflow as tf

    with strategy.scope():
        table = tf.Variable(lambda: tf.zeros([spec["rows"], WIDTH]), name="table")
        kernel, loss_of = _model(table)
    size = BATCH // spec["ranks"]
    at = slice(spec["rank"] * size, (spec["rank"] + 1) * size)
    own = [tf.constant(one[at]) for one in _batch(spec["rows"])]

    def replica(*batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(*batch)
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce("MEAN", tape.gradient(loss, [table, kernel]))
        table.scatter_sub(tf.IndexedSlices(RATE * gradients[0].values, gradients[0].indices))
        kernel.assign_sub(RATE * gradients[1])
        return loss

    step = tf.function(lambda *batch: strategy.run(replica, batch), autograph=False)
    return lambda: float(step(*own)), "whole"


if __name__ == "__main__":
    base.main(Replica)  # type: ignore[arg-type]  # it has the one method that is called
