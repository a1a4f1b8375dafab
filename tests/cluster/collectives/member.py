# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A rank of `ranks.py` before it has cases: its server, its devices, and its keys."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests import decisions
from tests.cluster.collectives.ranks import Error, Reduce

# Below the keys that the library chooses for itself, and above those of strategies.
GROUP_KEY = 500


class Base:
    """What all cases of a rank stand on."""

    def __init__(self, spec: dict[str, Any]):
        """Starts the server of a rank, by its specification."""
        self.spec = spec
        self.rank, self.ranks = spec["rank"], len(spec["addresses"])
        self.ours = spec["protocol"] != "grpc"
        self.devices = spec["devices"]
        if self.ours:
            import tf_fuse  # noqa: F401  (registers the protocol)

            decisions.keep()
        if self.devices > 1:
            tf.config.set_logical_device_configuration(
                tf.config.list_physical_devices("CPU")[0],
                [tf.config.LogicalDeviceConfiguration()] * self.devices,
            )
        if spec["server"]:
            self._start_server()
        self.device = self._device(0)
        self._instance = 0
        self._background: list[Any] = []
        self._contexts: list[Any] = []  # (Those that there were before another one was made.)

    def _device(self, index: int) -> str:
        return f"/job:worker/replica:0/task:{self.rank}/device:CPU:{index}"

    def _start_server(self, tasks: int | None = None) -> None:
        """Starts the server; once more: TensorFlow updates it.

        Args:
          tasks: how many of the addresses the cluster has; None for all of them.
        """
        from tensorflow.core.protobuf import tensorflow_server_pb2
        from tensorflow.python.eager import context

        context.context().configure_collective_ops(collective_leader="/job:worker/replica:0/task:0")
        cluster = tf.train.ClusterSpec({"worker": self.spec["addresses"][:tasks]})
        context.context().enable_collective_ops(
            tensorflow_server_pb2.ServerDef(
                cluster=cluster.as_cluster_def(),
                job_name="worker",
                task_index=self.rank,
                protocol=self.spec["protocol"],
                port=int(self.spec["addresses"][self.rank].rpartition(":")[2]),
                default_session_config=context.context().config,
            )
        )
        context.context().ensure_initialized()

    def _key(self) -> int:
        """All ranks that call the same cases count alike."""
        self._instance += 1
        return self._instance

    def _all_reduce(self, spec: Reduce, key: int, x: Any, group_key: int = GROUP_KEY,
                    **options: Any) -> Any:  # fmt: skip
        return tf.raw_ops.CollectiveReduceV2(
            input=x,
            group_size=spec.n,
            group_key=group_key + spec.n,
            instance_key=key,
            ordering_token=[],
            merge_op=spec.merge,
            final_op=spec.final,
            communication_hint="ring",
            max_subdivs_per_device=spec.subdivs,
            **options,
        )

    def _on_each_device(self, work: Callable[[int], Any]) -> list[Any]:
        """In threads: a function would put its collectives into an order."""
        results: list[Any] = [None] * self.devices

        def on(index: int) -> None:
            try:
                with tf.device(self._device(index)):
                    results[index] = work(index)
            except tf.errors.OpError as e:
                results[index] = Error(type(e).__name__, e.error_code, str(e))

        threads = [threading.Thread(target=on, args=[i]) for i in range(self.devices)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def usage() -> dict[str, int]:
    """Memory that is not shared (KiB), threads and descriptors of this process."""
    gc.collect()
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if line
    )
    return {
        "rss_kib": int(status["RssAnon"].split()[0]),
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
