# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Be one replica that makes all-reduces, and print what they take as a JSON line.

    python tf_fuse/scale/calibration/replica_job.py '{"rank": 0, "addresses": [...], ...}'

`measure_replicas` runs this file by its path, so that the way "stock" does not import tf_fuse.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).resolve().parent
_TENSORS = 8
_WARM_UP = 3


def _all_reduce(strategy: Any, size: int) -> Any:
    """Return a function that all-reduces a list of tensors, as a strategy does gradients."""
    import tensorflow as tf

    tensors = [tf.ones([max(1, size // 4 // _TENSORS)]) for _ in range(_TENSORS)]

    def replica() -> Any:
        context = tf.distribute.get_replica_context()
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)
        return tf.add_n([one[0] for one in summed])

    return tf.function(lambda: strategy.run(replica))


def run(rank: int, addresses: list[str], way: str, sizes: list[list[int]]) -> list[dict[str, Any]]:
    """Join the others and make all-reduces.

    Args:
      rank: of this replica.
      addresses: of all.
      way: of `collective_rates.WAYS`.
      sizes: pairs of bytes and of how many calls to measure.

    Returns:
      For each size "bytes", and "seconds" and "cpu_s" of a call.
    """
    sys.path[0] = str(_FOLDER.parents[2])
    if way == "stock":
        del sys.path[0]
    else:
        os.environ["TF_FUSE_COLLECTIVE_PATHS"] = way
        import tf_fuse  # noqa: F401  (adds the protocol)
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": addresses}),
        task_type="worker",
        task_id=rank,
        rpc_layer="grpc" if way == "stock" else "grpc+fuse",
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    found = []
    for size, calls in sizes:
        reduce = _all_reduce(strategy, size)
        for _ in range(_WARM_UP):
            float(reduce())
        cpu, begin = time.process_time(), time.perf_counter()
        for _ in range(calls):
            float(reduce())
        seconds = time.perf_counter() - begin
        found.append(
            {
                "bytes": size,
                "seconds": seconds / calls,
                "cpu_s": (time.process_time() - cpu) / calls,
            }
        )
    return found


if __name__ == "__main__":
    print(json.dumps(run(**json.loads(sys.argv[1]))), flush=True)
    sys.stdin.readline()  # Others may still need this process.
    os._exit(0)
