# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The script of test_frame_versions.py: strings between tasks of different frame versions.

{"tasks": 1 or 2}: the newest version of the tasks; the coordinator, which runs the function too,
has the newest of all.
"""

from __future__ import annotations

import sys
from typing import Any

import scripted
from scripted import emit


def run(spec: dict[str, Any]) -> None:
    """Runs the case `strings` on a worker and the coordinator, and one to see what is packed."""
    env = {"TF_FUSE_FRAME_VERSION": str(spec["tasks"])}
    with scripted.cluster("plugin", 1, 2, env=env) as cluster:
        sys.path.insert(0, str(scripted.ROOT / "tests" / "cluster"))
        from fuse_recv_cases import CASES, Bench

        import tf_fuse

        scripted.set_fuse_recv(True, do_pack_sends=True)
        for task in ("worker:0", "chief:0"):
            bench = Bench(1, 2, True, cluster.strategy)
            bench.workers = [task]
            values = [scripted.exact(value) for value in CASES["strings"](bench)]
            counted = bench.counted[-1][task]
            CASES["gradients"](bench)
            full = scripted.device(task).removesuffix("/device:CPU:0")
            groups = [
                (group["recv_device"].split(":")[1].split("/")[0], group.get("unpacked_reason", ""))
                for report in tf_fuse.cluster_reports()[full]
                for group in report["groups"]
            ]
            emit(task, values=values, counted=counted, groups=sorted(set(groups)))


scripted.main(run)
