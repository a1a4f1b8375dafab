# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The script of test_modes.py: all cases on one cluster.

{"mode": "stock", "off" or "plugin", "workers": 1, "ps": 2, "off": [case, …],
"divided": {"consumer" or "cost": [case, …]}}; and "cases": [case, …] where not all run. In mode
"off" all cases run with the plugin and without the option. In mode "plugin" those of "off" run so
first, then all with the option on; those of "divided" also with that grouping, and one after it was
switched off again. The servers seem to be on other hosts: there, cost divides.
"""

from __future__ import annotations

import sys
from typing import Any

import psutil

from tests import scripted
from tests.scripted import emit

# Their reports are emitted.
_REPORTED = {"branch_on_another_server", "dtypes", "rare_types", "resource_handles", "strings"}


def _reports() -> dict[str, list[dict[str, Any]]]:
    """What the pass did in each task that runs functions."""
    import tf_fuse

    return {task: of_task for task, of_task in tf_fuse.cluster_reports().items() if of_task}


def _types() -> list[str]:
    """All that a tensor can have, as reports call them."""
    from tensorflow.core.framework import types_pb2

    names = set(types_pb2.DataType.keys()) - {"DT_INVALID"}
    return [name.removeprefix("DT_").lower() for name in names if not name.endswith("_REF")]


def _lent() -> dict[str, int]:
    """Parts of shared memory that were not given back, and frames that wait at data channels."""
    return {task: counters["lent_chunks"] for task, counters in scripted.metrics().items()}


def _skips() -> dict[str, Any]:
    """All receives that were left alone, and whether there is a report of every function."""
    reports = _reports()
    skips = {
        (
            skip["reason"],
            scripted.short(skip["send_device"]),
            scripted.short(skip["recv_device"]),
            skip["slot"].get("sender_node", ""),
        )
        for of_task in reports.values()
        for report in of_task
        for skip in report.get("skips", [])
    }
    functions = {task: counters["functions"] for task, counters in scripted.metrics().items()}
    return {
        "skips": sorted(skips),
        "functions": {task: count for task, count in functions.items() if count},
        "reports": {scripted.short(task): len(of) for task, of in reports.items()},
    }


def run(spec: dict[str, Any]) -> None:
    """Runs the cases of each phase."""
    mode, workers, ps = spec["mode"], spec["workers"], spec["ps"]
    with scripted.cluster(mode, workers, ps, hosts={"ps": scripted.OTHER_HOST}) as cluster:
        import tensorflow as tf

        from tests.cluster.fuse_recv.cases import CASES, Bench

        environments = [psutil.Process(pid).environ() for pid in cluster.pids.values()]
        emit(
            "environment",
            # Those below are of these tests.
            ours=sorted(
                name
                for env in environments
                for name in env
                if "FUSE" in name and not name.startswith(("TF_FUSE_DATA", "TF_FUSE_TEST"))
            ),
            plugin_loaded="tf_fuse" in sys.modules,
        )

        every = spec.get("cases", sorted(CASES))

        def phase(name: str, names: list[str]) -> None:
            options = tf.config.optimizer.get_experimental_options()
            emit("options", phase=name, value=options.get("do_fuse_recv"))
            for case in names:
                bench = Bench(workers, ps, mode != "stock", cluster.strategy)
                reported = name == "on" and case in _REPORTED
                before = _reports() if reported else {}
                values = [scripted.exact(value) for value in CASES[case](bench)]
                emit(case, phase=name, values=values, counted=bench.counted)
                if reported:
                    after = {t: of[len(before.get(t, [])) :] for t, of in _reports().items()}
                    emit("report", phase=case, of_tasks={t: of for t, of in after.items() if of})

        if mode in ("stock", "off"):
            phase(mode, every)
            return
        phase("off", spec["off"])
        scripted.set_fuse_recv(True)
        phase("on", every)
        emit("skips", **_skips())
        emit("types", names=_types())
        emit("gauges", pending={t: m["pending_requests"] for t, m in scripted.metrics().items()})
        # So little that nearly every part pays.
        costs = {"fuse_rpc_us": 0.1, "fuse_gigabytes_per_s": 0.001}
        for grouping, names in spec["divided"].items():
            scripted.set_fuse_recv(True, fuse_grouping=grouping, **costs)
            phase(grouping, names)
        # What was lent comes back a moment after its receive has ended.
        scripted.until(lambda: not any(_lent().values()), "0 lent chunks in each task")
        emit("lent", of_tasks=_lent())
        scripted.set_fuse_recv(False)
        phase("off_again", ["reads"])


scripted.main(run)
