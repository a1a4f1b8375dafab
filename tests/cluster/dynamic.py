# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The script of test_dynamic.py: cases with fuse_grouping="dynamic".

{"part": "stock", "cases": [names]}: cases of fuse_recv_cases.py without the plugin.
{"part": "values", "cases": [names]}: the same, dynamic; and `_later`.
{"part": "older"}: senders that do not serve requests by parts; the option off, then dynamic.
"""

from __future__ import annotations

import sys
from typing import Any

import scripted
from scripted import emit


def _run_cases(cluster: Any, phase: str, names: list[str]) -> None:
    from fuse_recv_cases import CASES, Bench

    for name in names:
        bench = Bench(1, 2, phase != "stock", cluster.strategy)
        values = [scripted.exact(value) for value in CASES[name](bench)]
        emit(name, phase=phase, values=values, counted=bench.counted)


def _gauges() -> dict[str, Any]:
    names = ("pending_requests", "partial_tensors", "pending_receives")
    return {t: [m[name] for name in names] for t, m in scripted.metrics().items()}


def _stock(spec: dict[str, Any]) -> None:
    with scripted.cluster("stock", 1, 2) as cluster:
        _run_cases(cluster, "stock", spec["cases"])
        emit("environment", plugin_loaded="tf_fuse" in sys.modules)


def _values(spec: dict[str, Any]) -> None:
    with scripted.cluster("plugin", 1, 2) as cluster:
        scripted.set_fuse_recv(True, fuse_grouping="dynamic")
        _run_cases(cluster, "dynamic", spec["cases"])
        _later(cluster)
        # A receive's last reference may go a moment after the step has ended.
        zero = [0, 0, 0]
        scripted.until(lambda: all(g == zero for g in _gauges().values()), "gauges at 0")
        emit("gauges", values=_gauges())


def _later(cluster: Any) -> None:
    """A tensor that depends on receives that are issued while it is waited for."""
    import tensorflow as tf
    from fuse_recv_cases import Bench

    bench = Bench(1, 2, True, cluster.strategy)
    table = [bench.variable(0, float(i + 1)) for i in range(4)]
    server = bench.server(0)

    @tf.function(experimental_attributes={"_noinline": True})
    def reads_later(x):
        return [x * v for v in table]

    @tf.function
    def function():
        with tf.device(server):
            begin = table[0] + 0.5
        # Its receives are issued when the call runs.
        inner = reads_later(begin)
        # So are those of each iteration.
        _, looped = tf.while_loop(
            lambda i, _: i < 3,
            lambda i, x: (i + 1, x + table[1] * table[2]),
            (tf.constant(0), tf.add_n(inner)),
        )
        with tf.device(server):
            # Waited for from the beginning of the step, beside `begin`.
            late = [looped * 2.0, looped * 3.0]
        return [x + 1.0 for x in late]

    values = [float(v) for v in bench.call(function) + bench.call(function)]
    total = {}
    for counters in bench.counted[1].values():
        for key, value in counters.items():
            if isinstance(value, int):
                total[key] = total.get(key, 0) + value
    emit("later", values=values, total=total)


def _older(spec: dict[str, Any]) -> None:
    """One server without the plugin, one of frame version 1."""
    env = {"TF_FUSE_FRAME_VERSION": "1"}
    protocol = {"chief": "grpc+fuse", "worker": "grpc+fuse", "ps": "grpc+fuse", "ps:1": "grpc"}
    with scripted.cluster("plugin", 1, 2, env=env, protocol=protocol) as cluster:
        _run_cases(cluster, "off", ["reads"])
        scripted.set_fuse_recv(True, fuse_grouping="dynamic")
        _run_cases(cluster, "dynamic", ["reads"])
        text = "does not serve receives that are fused dynamically"
        emit("log", lines=[x for x in cluster.logs("worker:0").splitlines() if text in x])


def run(spec: dict[str, Any]) -> None:
    """Runs one part."""
    sys.path.insert(0, str(scripted.ROOT / "tests" / "cluster"))
    {"stock": _stock, "values": _values, "older": _older}[spec["part"]](spec)


scripted.main(run)
