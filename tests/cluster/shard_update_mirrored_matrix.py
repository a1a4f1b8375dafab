# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimizers and programs with MirroredStrategy; `test_shard_update_matrix.py` runs it.

python tests/cluster/shard_update_mirrored_matrix.py REPLICAS STEPS CASES

CASES is a list in JSON: of names of `shard_update_programs`, of arguments of `step_of` in lists,
and of those of `fit` in dictionaries. Prints a line of JSON for each: whether the option
changes any bit, by how much it changes values, and what was decided.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf
from cluster import shard_update_matrix_cases as matrix
from cluster import shard_update_programs

import tf_fuse  # noqa: F401  (adds the option)


def both(strategy: tf.distribute.Strategy, case: Any, steps: int) -> dict[str, Any]:
    """Trains with the option off and on."""
    runs = []
    for on in (False, True):
        matrix.switch(shard_weight_update=on)
        runs.append(_run(strategy, case, steps))
    without, with_ = runs
    assert len(without["values"]) == len(with_["values"]) > 0
    pairs = list(zip(without["values"], with_["values"], strict=True))
    differences = [np.max(np.abs(a.astype(float) - b), initial=0.0) for a, b in pairs]
    return {
        "case": case,
        "losses": len(set(with_["losses"])),
        "same_losses": with_["losses"] == without["losses"],
        "same_values": all(a.tobytes() == b.tobytes() for a, b in pairs),
        "largest": float(max(differences)),
        "decided": with_["decided"],
    }


def _run(strategy: tf.distribute.Strategy, case: Any, steps: int) -> dict[str, Any]:
    if isinstance(case, dict):
        return matrix.fit(strategy, **case)
    if isinstance(case, str):
        return matrix.train(strategy, lambda s: getattr(shard_update_programs, case)(s)[0], steps)
    return matrix.train(strategy, lambda s: matrix.step_of(s, *case), steps)


def main(replicas: int, steps: int, cases: list[Any]) -> None:
    """Trains in each way."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(cpu, devices)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    for case in cases:
        print(json.dumps(both(strategy, case, steps)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
