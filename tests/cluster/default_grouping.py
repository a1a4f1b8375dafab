# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The script of test_default_grouping.py: layers whose weights a server has. Its spec is {}."""

from __future__ import annotations

from typing import Any

import scripted
from scripted import emit


def run(spec: dict[str, Any]) -> None:
    """Runs a chain of products with the option alone, then with each of two groupings."""
    del spec
    with scripted.cluster("plugin", 1, 1):
        import tensorflow as tf

        import tf_fuse

        with tf.device(scripted.device("ps:0")):
            weights = [tf.Variable(tf.eye(256) * (i + 1.0)) for i in range(4)]

        def step(x):
            for w in weights:
                x = tf.matmul(x, w)
            return x

        for grouping in (None, "level", "cost"):
            options: dict[str, Any] = {"do_fuse_recv": True}
            if grouping:
                options["fuse_grouping"] = grouping
            tf.config.optimizer.set_experimental_options(options)
            with tf.device(scripted.device("worker:0")):
                value = tf.function(step)(tf.ones([64, 256]))
            emit(str(grouping), value=scripted.exact(value.numpy()))
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
