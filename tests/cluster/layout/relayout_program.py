# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One of several processes that run relayouts, and count what comes by the plugin's data paths.

    relayout_program.py NUMBER JOBS

JOBS are the addresses of all processes, separated by commas. Each process gives, by relayout and
type, whether its values are right, and what it received.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

import tf_fuse
from benchmarks.layout import simulation
from tests.cluster.layout import processes as layout_processes
from tf_fuse import layout
from tf_fuse.layout.execution.communication.communicator import Communicator
from tf_fuse.layout.execution.communication.process_collectives import ProcessCollectives
from tf_fuse.layout.execution.communication.relayouts import relayout
from tf_fuse.layout.execution.devices import devices_of
from tf_fuse.layout.execution.traffic import traffic_of

NUMBER, JOBS = int(sys.argv[1]), sys.argv[2]
MESH = layout.Mesh({"x": 2, "y": 2})
# Large enough that the plugin adds up in two rounds, whose bytes are those of a plan.
SHAPE = (128, 96)
CASES = {
    "all_gather": ("(S0, B)", "(B, B)"),
    "all_gather of columns": ("(S1, B)", "(B, B)"),
    "all_reduce": ("(P, B)", "(B, B)"),
    "all_to_all": ("(S0, B)", "(S1, B)"),
    "permute": ("(S0, S1)", "(S1, S0)"),
    "reduce_scatter": ("(P, B)", "(S0, B)"),
    "reduce_scatter to columns": ("(P, B)", "(S1, B)"),
}
TYPES = ("float32", "int64", "bfloat16", "uint8", "bool", "complex64")


def counted() -> dict[str, int]:
    """The bytes of collectives that this process received, by data path."""
    prefix = "collective_bytes_"
    found = tf_fuse.metrics().items()
    return {name.removeprefix(prefix): n for name, n in found if name.startswith(prefix)}


def case(name: str, kind: str, communicator: Communicator) -> dict[str, Any] | None:
    """Runs a relayout of one type; None if there is none of this type."""
    source, target = (layout.from_sbp(MESH, SHAPE, one) for one in CASES[name])
    dtype = tf.as_dtype(kind)
    if source.partial and (dtype == tf.bool or dtype.is_complex):
        return None
    value = (np.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE) % 64).astype(np.int64)
    plan = layout.plan_relayout(source, target, dtype.size)
    pieces = simulation.scatter(value, source)
    devices = communicator.devices

    @tf.function(autograph=False)
    def run(*own: Any) -> list[Any]:
        held = dict(zip(devices.local, own, strict=True))
        made = relayout(communicator, plan, held)
        return [made[device] for device in devices.local]

    own = [tf.cast(tf.constant(pieces[device]), dtype) for device in devices.local]
    concrete = run.get_concrete_function(*own)
    before = counted()
    made = concrete(*own)
    after = counted()
    wanted = simulation.scatter(value, target)
    return {
        "right": all(
            np.array_equal(one.numpy(), tf.cast(wanted[device], dtype).numpy())
            for one, device in zip(made, devices.local, strict=True)
        ),
        "steps": [step.kind for step in plan.steps],
        "planned": plan.received_bytes,
        "traffic": traffic_of(concrete.graph).received_bytes,
        "received": {path: after[path] - before[path] for path in after},
        "operations": sorted(
            one.type for one in concrete.graph.get_operations()
            if one.type.startswith(("Collective", "TfFuse>"))
        ),
    }  # fmt: skip


def main() -> None:
    devices = devices_of(MESH, layout_processes.begin(MESH, NUMBER, JOBS))
    communicator = Communicator(devices, ProcessCollectives(devices))
    found = {}
    for name in CASES:
        for kind in TYPES:
            one = case(name, kind, communicator)
            if one is not None:
                found[f"{name}, {kind}"] = one
    layout_processes.end(NUMBER, found)


if __name__ == "__main__":
    main()
