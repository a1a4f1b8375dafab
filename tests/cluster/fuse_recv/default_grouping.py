# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The script of test_default_grouping.py: layers whose weights a server has. Its spec is {}."""

from __future__ import annotations

from typing import Any

from tests import scripted
from tests.scripted import emit

_COSTS = {
    "slow link": {"fuse_rpc_us": 10.0, "fuse_gigabytes_per_s": 0.001},
    "dear calls": {"fuse_rpc_us": 1e6, "fuse_gigabytes_per_s": 0.001},
    "fast link": {"fuse_rpc_us": 10.0, "fuse_gigabytes_per_s": 1e6},
}


def run(spec: dict[str, Any]) -> None:
    """Runs a chain of products with the option alone, with two groupings, and by given costs."""
    del spec
    with scripted.cluster("plugin", 1, 2, hosts={"ps:1": scripted.OTHER_HOST}):
        import tensorflow as tf

        import tf_fuse

        def chain(name: str, server: str, **options: Any) -> None:
            with tf.device(scripted.device(server)):
                weights = [tf.Variable(tf.eye(256) * (i + 1.0)) for i in range(4)]

            @tf.function
            def step(x):
                for w in weights:
                    x = tf.matmul(x, w)
                return x

            tf.config.optimizer.set_experimental_options({"do_fuse_recv": True, **options})
            with tf.device(scripted.device("worker:0")):
                value = step(tf.ones([64, 256]))
            emit(name, value=scripted.exact(value.numpy()))

        chain("None", "ps:0")
        for grouping in ("level", "cost"):
            chain(grouping, "ps:0", fuse_grouping=grouping)
        for name, costs in _COSTS.items():
            chain(name, "ps:1", fuse_grouping="cost", **costs)
        # One for each function that receives from another task, in order.
        reports = tf_fuse.cluster_reports()["/job:worker/replica:0/task:0"]
        emit(
            "reports",
            calls=[len(r.get("groups", [])) + len(r.get("skips", [])) for r in reports],
            estimated=[
                all("estimate" in slot for group in r.get("groups", []) for slot in group["slots"])
                for r in reports
            ],
        )


scripted.main(run)
