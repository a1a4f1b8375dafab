# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run relayouts in several processes, and count what they send; see `wire.py`.

Its arguments are the name of a file, and the number of a rank. The first rank writes the rows into
that file. Without a number it starts all ranks, in a network namespace of its own if it was put
into one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks.common import output
from examples import standalone

RANKS = 4
REPEATS = 5
TIMEOUT_S = 900  # A busy machine takes long to import TensorFlow four times.
SHAPE = (1024, 1024)
# Name, and the signatures of both ends on a mesh of 2 x 2.
CASES = (
    ("all-gather", "(S0, B)", "(B, B)"),
    ("all-gather, both axes", "(S0, S1)", "(B, B)"),
    ("all-to-all", "(S0, B)", "(S1, B)"),
    ("reduce-scatter", "(B, P)", "(B, S0)"),
    ("reduce-scatter, both axes", "(P, P)", "(S0, S1)"),
    ("all-reduce", "(P, B)", "(B, B)"),
    ("all-reduce, both axes", "(P, P)", "(B, B)"),
    ("exchange of axes", "(S0, S1)", "(S1, S0)"),
    ("P, S0 to S0, B", "(P, S0)", "(S0, B)"),
)


def main() -> int:
    """Start the ranks, or is one."""
    if len(sys.argv) > 2:
        return _rank(int(sys.argv[2]))
    return start(__file__)


def start(program: str) -> int:
    """Start a program as each of the ranks.

    Args:
      program: takes the name of the file for the rows, and the number of a rank.

    Returns:
      0; 1 when a rank failed.
    """
    # Up in a new network namespace only after this; elsewhere it is, and asking does no harm.
    subprocess.run(["ip", "link", "set", "lo", "up"], check=False, capture_output=True)
    cluster = standalone.cluster_package()
    children, held = cluster.child_process, cluster.ports.HeldPorts(RANKS)
    jobs = ",".join(sorted(f"localhost:{port}" for port in held.numbers))
    with tempfile.TemporaryDirectory() as folder, held:
        logs = [Path(folder) / f"{rank}.log" for rank in range(RANKS)]
        ranks = [children.PipedProcess(f"rank {rank}") for rank in range(RANKS)]
        try:
            for rank, log in enumerate(logs):
                environment = {
                    **os.environ,
                    "CUDA_VISIBLE_DEVICES": "-1",
                    "DTENSOR_CLIENT_ID": str(rank),
                    "DTENSOR_JOB_NAME": "worker",
                    "DTENSOR_JOBS": jobs,
                    "LOWER_DTENSOR_GATHER_TO_COLLECTIVE_GATHER_V2": "1",
                }
                command = [sys.executable, program, sys.argv[1], str(rank)]
                ranks[rank].start(command, environment, log, answers=False)
            failed = _wait(children, ranks)
        finally:
            children.end_all(ranks, 0.0)
        for rank, status in failed.items():
            print(f"rank {rank} {status}:", file=sys.stderr)
            print(logs[rank].read_text()[-2000:], file=sys.stderr)
    return 1 if failed else 0


def _wait(children: Any, ranks: Sequence[Any]) -> dict[int, str]:
    """Return what became of the ranks that failed: the first one, or all that took too long."""
    end = time.monotonic() + TIMEOUT_S
    running = {one.pid: rank for rank, one in enumerate(ranks)}
    while running:
        ended = children.first_to_end(list(running), max(0.0, end - time.monotonic()))
        if not ended:
            return {rank: f"did not end in {TIMEOUT_S} s" for rank in running.values()}
        rank = running.pop(ended)
        if status := ranks[rank].wait():
            return {rank: f"ended with {status}"}
        if list(running.values()) == [0]:
            ranks[0].ask_to_end()
    return {}


def _rank(rank: int) -> int:
    import numpy as np
    import tensorflow as tf
    from tensorflow.experimental import dtensor as stock

    from benchmarks.layout import simulation
    from tf_fuse.layout import Mesh, from_sbp, plan_relayout
    from tf_fuse.layout.execution.communication.communicator import Communicator
    from tf_fuse.layout.execution.communication.process_collectives import ProcessCollectives
    from tf_fuse.layout.execution.communication.relayouts import relayout
    from tf_fuse.layout.execution.devices import devices_of

    stock.initialize_accelerator_system("CPU")
    mesh = Mesh({"x": 2, "y": 2})
    devices = stock.create_distributed_mesh(list(mesh.dims), device_type="CPU")
    own = devices_of(mesh, devices)
    communicator = Communicator(own, ProcessCollectives(own))
    value = np.arange(SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE) % 1024
    rows = []
    for name, first, last in CASES:
        source, target = from_sbp(mesh, SHAPE, first), from_sbp(mesh, SHAPE, last)
        plan = plan_relayout(source, target)

        @tf.function
        def function(piece: Any, plan: Any = plan) -> Any:
            return relayout(communicator, plan, {own.first: piece})[own.first]

        piece = tf.constant(simulation.scatter(value, source)[own.first])
        measured, result = count(partial(function, piece), devices)
        if not np.array_equal(result.numpy(), simulation.scatter(value, target)[own.first]):
            raise AssertionError(f"{name}: rank {rank} has wrong values")
        rows.append({"name": name, "plan": [str(step) for step in plan.steps],
                     "predicted_bytes": plan.received_bytes,
                     "measured_bytes": round(measured)})  # fmt: skip
    give(rows, rank)
    leave(rank, devices)


def give(rows: list[dict[str, Any]], rank: int) -> None:
    """Give the rows, as the first rank."""
    if rank == 0:
        output.give_rows(rows)


def leave(rank: int, devices: Any) -> NoReturn:
    """End this process when all ranks have come here, the first one when the others have ended.

    Args:
      rank: of this process.
      devices: a `dtensor.Mesh`.
    """
    from tensorflow.dtensor.python import mesh_util

    # Nobody goes while another one still waits for what it sent.
    mesh_util.barrier(devices)
    if rank == 0:
        # The others ask this one whether all have come.
        sys.stdin.read()
    # DTensor cannot be shut down in several processes, and what it leaves running does not end.
    os._exit(0)


def count(function: Callable[[], Any], devices: Any) -> tuple[float, Any]:
    """Bytes on the loopback interface for one call, less those of a barrier; and what it returns.

    Args:
      function: that all ranks call.
      devices: a `dtensor.Mesh`.
    """
    from tensorflow.dtensor.python import mesh_util

    result = function()
    mesh_util.barrier(devices)
    begin = _loopback_bytes()
    mesh_util.barrier(devices)
    still = _loopback_bytes() - begin
    mesh_util.barrier(devices)
    begin = _loopback_bytes()
    for _ in range(REPEATS):
        result = function()
        mesh_util.barrier(devices)
    return (_loopback_bytes() - begin) / REPEATS - still, result


def _loopback_bytes() -> int:
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    raise RuntimeError("/proc/net/dev has no interface lo, over which the ranks are to talk")


if __name__ == "__main__":
    sys.exit(main())
