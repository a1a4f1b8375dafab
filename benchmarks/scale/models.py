# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The examples' models, as `tf-fuse plan-cluster --model benchmarks.scale.models:NAME` takes them.

tf-fuse plan-cluster --model benchmarks.scale.models:features --workers 4 --ps 2
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from examples.job import make_workload

# As the sessions' specification has them (see `examples.job`).
SPECS: dict[str, dict[str, Any]] = {
    "features": {"workload": "features", "options": {"features": 300, "batch": 64}},
    "rfc": {"workload": "rfc", "options": {"embeddings": 40, "batch": 128, "shards": 1}},
    "dense": {"workload": "dense", "options": {"batch": 64}},
    "mixed": {"workload": "mixed", "options": {"features": 60, "batch": 64}},
}


def _step(name: str) -> tuple[Any, Any]:
    program = make_workload(SPECS[name]).build()
    iterator = iter(program.dataset(0, 1))
    return tf.function(lambda one: program.step(next(one))), (iterator,)


def features() -> tuple[Any, Any]:
    """300 embedding tables."""
    return _step("features")


def rfc() -> tuple[Any, Any]:
    """Wide & deep of the FuseRecv RFC, with whole variables."""
    return _step("rfc")


def dense() -> tuple[Any, Any]:
    """Twelve dense layers of 512 units."""
    return _step("dense")


def mixed() -> tuple[Any, Any]:
    """60 tables and twelve dense layers."""
    return _step("mixed")
