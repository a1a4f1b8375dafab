# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The script of test_extremes.py: very many tensors, and very large ones.

{"mode": "stock" or "plugin", "slots": 10000, "bytes": [2**31 - 2**20, 2**31 + 1]}.
"""

from __future__ import annotations

from typing import Any

from tests import scripted
from tests.scripted import emit

SMALL = 4  # Tensors beside the large one.


def run(spec: dict[str, Any]) -> None:
    """Sends from a server to a worker, twice each; the second call is counted."""
    with scripted.cluster(spec["mode"], 1, 1):
        import tensorflow as tf

        plugin = spec["mode"] != "stock"
        if plugin:
            scripted.set_fuse_recv(True)

        @tf.function
        def many(offset):
            with tf.device(scripted.device("ps:0")):
                parts = tf.unstack(tf.range(spec["slots"]) * 3 + offset)
            with tf.device(scripted.device("worker:0")):
                return tf.stack(parts[::-1])

        @tf.function
        def huge(offset, size):
            with tf.device(scripted.device("ps:0")):
                large = tf.fill([size], tf.cast(offset, tf.uint8))
                small = [tf.range(5) * (i + 2) + offset for i in range(SMALL)]
            with tf.device(scripted.device("worker:0")):
                # The ends: a sum over all would take longer than the transfer.
                ends = tf.concat([large[:2], large[-2:]], 0)
                return ends, tf.size(large, tf.int64), [x * 2 for x in small]

        def case(name: str, function: Any, *args: Any) -> None:
            values, counted, error = [], {}, None
            for offset in (5, 7):
                before = scripted.metrics() if plugin else {}
                with tf.device(scripted.device("worker:0")):
                    try:
                        results = tf.nest.flatten(function(tf.constant(offset), *args))
                    except tf.errors.OpError as e:
                        error = [type(e).__name__, e.message]
                        continue
                values += [scripted.exact(x.numpy()) for x in results]
                counted = scripted.difference(before, scripted.metrics()) if plugin else {}
            emit(name, values=values, counted=counted, error=error)

        case("many", many)
        for size in spec["bytes"]:
            case(f"huge_{size}", huge, tf.constant(size, tf.int64))


scripted.main(run)
