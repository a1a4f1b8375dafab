# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The script of test_fuse_recv_modes.py: all cases on one cluster.

{"mode": "stock" or "plugin", "workers": 1, "ps": 2, "packed": [case, …]}. With the plugin, the
cases run with the option off, then on; those of "packed" also with `do_pack_sends`, and one
after it was switched off again.
"""

from __future__ import annotations

import sys
from typing import Any

import psutil
import scripted
from scripted import emit


def run(spec: dict[str, Any]) -> None:
    """Runs the cases of each phase."""
    mode, workers, ps = spec["mode"], spec["workers"], spec["ps"]
    with scripted.cluster(mode, workers, ps) as cluster:
        sys.path.insert(0, str(scripted.ROOT / "tests" / "cluster"))
        import tensorflow as tf
        from fuse_recv_cases import CASES, Bench

        environments = [psutil.Process(pid).environ() for pid in cluster.pids.values()]
        emit(
            "environment",
            ours=sorted(name for env in environments for name in env if "FUSE" in name),
            plugin_loaded="tf_fuse" in sys.modules,
        )

        def phase(name: str, names: list[str]) -> None:
            options = tf.config.optimizer.get_experimental_options()
            emit("options", phase=name, value=options.get("do_fuse_recv"))
            for case in names:
                bench = Bench(workers, ps, mode != "stock", cluster.strategy)
                values = [scripted.exact(value) for value in CASES[case](bench)]
                emit(case, phase=name, values=values, counted=bench.counted)

        if mode == "stock":
            phase("stock", sorted(CASES))
            return
        phase("off", sorted(CASES))
        scripted.set_fuse_recv(True)
        phase("on", sorted(CASES))
        emit("gauges", pending={t: m["pending_requests"] for t, m in scripted.metrics().items()})
        scripted.set_fuse_recv(True, do_pack_sends=True)
        phase("packed", spec["packed"])
        scripted.set_fuse_recv(False)
        phase("off_again", ["reads"])


scripted.main(run)
