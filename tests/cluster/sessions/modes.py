# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The script of test_sessions.py: all cases of cases.py on one cluster.

{"mode": "stock" or "plugin", "phases": {"on": [names of cases, or "*"], …}}. Phases: "stock" and
"off" (no option), "on" (session_config), "dynamic" (the same with fuse_grouping), "experimental"
(set_experimental_options, and no ConfigProto), "scheme" (as "on", the targets begin with
grpc+fuse://), "plain_master" (as "on", but the session's master is the one server that has no
plugin).
"""

from __future__ import annotations

import os
import sys
from typing import Any

from tests import scripted
from tests.scripted import emit


def run(spec: dict[str, Any]) -> None:
    """Runs the cases of each phase."""
    mode = spec["mode"]
    from examples import standalone

    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    fused = {"worker": "grpc+fuse", "ps": "grpc+fuse", "ps:2": "grpc"}
    protocol = "grpc" if mode == "stock" else fused
    with standalone.cluster_package().LocalCluster(2, 3, protocol) as cluster:
        import tensorflow as tf

        from tests.cluster.sessions.cases import CASES, PLAIN_PS, Bench

        if mode != "stock":
            import tf_fuse
        emit("environment", plugin_loaded="tf_fuse" in sys.modules)
        target = f"grpc://{cluster.cluster_spec['worker'][0]}"

        def reading() -> dict[str, Any]:
            if mode == "stock":
                return {}
            found = tf_fuse.cluster_metrics(target=target)
            return {scripted.short(task): counters for task, counters in found.items()}

        def reports() -> dict[str, Any]:
            return {} if mode == "stock" else tf_fuse.cluster_reports(target=target)

        def phase(name: str, names: list[str]) -> None:
            bench = Bench(cluster, lambda: _config(name), reading)
            if name == "scheme":
                bench.scheme = "grpc+fuse"
            if name == "plain_master":
                bench.master = ("ps", PLAIN_PS)
            bench.with_faults = name in ("stock", "on")
            if name == "experimental":
                scripted.set_fuse_recv(True)
            for case in sorted(CASES) if names == ["*"] else names:
                before = reading()
                bench.told = {}
                with tf.Graph().as_default():
                    values = [scripted.exact(value) for value in CASES[case](bench)]
                counted = scripted.difference(before, reading())
                emit(case, phase=name, values=values, counted=counted, told=bench.told)

        for name, names in spec["phases"].items():
            phase(name, names)
        skips = sorted(
            {
                (skip["reason"], skip["slot"]["tensor_name"])
                for of_task in reports().values()
                for report in of_task
                for skip in report.get("skips", [])
            }
        )
        operations = {
            (group["device"], tuple(sorted(group["operations"].items())))
            for of_task in reports().values()
            for report in of_task
            for group in report.get("operation_groups", [])
        }
        lines = [line for task in cluster.tasks for line in cluster.logs(task).splitlines()]
        emit(
            "end",
            skips=skips,
            operations=sorted(operations),
            logs=[line for line in lines if "tf_fuse: " in line],
        )


def _config(phase: str) -> Any:
    import tensorflow as tf

    if phase == "experimental":
        return None
    if phase in ("stock", "off"):
        return tf.compat.v1.ConfigProto()
    import tf_fuse

    options = {"fuse_grouping": "dynamic" if phase == "dynamic" else "level"}
    return tf_fuse.session_config(**options)


scripted.main(run)
