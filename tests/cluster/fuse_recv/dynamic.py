# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The script of test_dynamic.py: cases with fuse_grouping="dynamic".

{"part": "stock", "cases": [names]}: cases of cases.py without the plugin.
{"part": "values", "cases": [names]}: the same, dynamic; and `_later`.
{"part": "plain"}: servers without the plugin; the option off, then dynamic.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from tests import scripted
from tests.scripted import emit


def _run_case(cluster: Any, phase: str, name: str) -> bool:
    """Run and emit a case; return whether two of its tensors shared a request."""
    from tests.cluster.fuse_recv.cases import CASES, Bench

    bench = Bench(1, 2, phase != "stock", cluster.strategy)
    values = [scripted.exact(value) for value in CASES[name](bench)]
    emit(name, phase=phase, values=values, counted=bench.counted)
    tasks = [counters for of_call in bench.counted for counters in of_call.values()]
    return sum(t.get("fused_rpcs", 0) for t in tasks) < sum(t.get("tensors", 0) for t in tasks)


def _run_cases(cluster: Any, phase: str, names: list[str], until_shared: bool = False) -> None:
    """Run cases; those that share no request again if asked to.

    Receives share a request if they wait for the task at the same time. On a machine whose cores
    have other work, each request may leave before the next receive is issued.
    """
    for name in names:
        run = functools.partial(_run_case, cluster, phase, name)
        if until_shared:
            scripted.until(run, f"a request that is shared ({name})")
        else:
            run()


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
        _run_cases(cluster, "dynamic", spec["cases"], until_shared=True)
        _later(cluster)
        # A receive's last reference may go a moment after the step has ended.
        zero = [0, 0, 0]
        scripted.until(lambda: all(g == zero for g in _gauges().values()), "gauges at 0")
        emit("gauges", values=_gauges())


def _later(cluster: Any) -> None:
    """A tensor that depends on receives that are issued while it is waited for."""
    import tensorflow as tf

    from tests.cluster.fuse_recv.cases import Bench

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


def _plain(spec: dict[str, Any]) -> None:
    protocol = {"chief": "grpc+fuse", "worker": "grpc+fuse", "ps": "grpc"}
    with scripted.cluster("plugin", 1, 2, protocol=protocol) as cluster:
        _run_cases(cluster, "off", ["reads"])
        scripted.set_fuse_recv(True, fuse_grouping="dynamic")
        _run_cases(cluster, "dynamic", ["reads"])
        text = "does not serve fused receives"
        emit("log", lines=[x for x in cluster.logs("worker:0").splitlines() if text in x])


def run(spec: dict[str, Any]) -> None:
    """Runs one part."""
    {"stock": _stock, "values": _values, "plain": _plain}[spec["part"]](spec)


scripted.main(run)
