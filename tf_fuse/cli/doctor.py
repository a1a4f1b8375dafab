# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_fuse doctor`: whether fused receives work on this machine."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# Runs in a process of its own: a coordinator cannot leave a cluster.
_ROUND_TRIP = """
import os
import tensorflow as tf
import tf_fuse
from tf_fuse.cluster import LocalCluster

tf.config.optimizer.set_experimental_options({"do_fuse_recv": True})
with LocalCluster(workers=1, ps=1) as cluster:
    strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variables = [tf.Variable(float(i)) for i in range(4)]
    total = coordinator.schedule(tf.function(lambda: tf.add_n([v + 0.0 for v in variables])))
    coordinator.join()
    counters = tf_fuse.cluster_metrics()["/job:worker/replica:0/task:0"]
    value, fused = float(total.fetch()), counters["fused_rpcs"]
    print(f"value {value} (expected 6.0), fused receives {fused}", flush=True)
    code = 0 if value == 6.0 and fused > 0 else 1
    cluster.close()
os._exit(code)
"""


def run(json_path: str | None) -> int:
    """Runs all checks; returns 0 if each holds, else 1."""
    checks: list[tuple[str, Callable[[], str], str]] = [
        ("versions and library", _versions, "install or rebuild as the message says"),
        ("a free port", _port, "allow this process to listen on 127.0.0.1"),
        ("round trip between two processes", _round_trip, "see the message; report it if unclear"),
    ]
    results = []
    for name, check, remedy in checks:
        try:
            results.append({"check": name, "ok": True, "detail": check(), "remedy": ""})
        except (OSError, RuntimeError, ImportError) as error:
            results.append({"check": name, "ok": False, "detail": str(error), "remedy": remedy})
        if json_path != "-":
            last = results[-1]
            print(f"{'OK  ' if last['ok'] else 'FAIL'} {name}: {last['detail']}", flush=True)
            if not last["ok"]:
                print(f"     remedy: {remedy}", flush=True)
    works = all(result["ok"] for result in results)
    text = json.dumps({"works": works, "checks": results}, indent=1)
    if json_path == "-":
        print(text)
    elif json_path:
        Path(json_path).write_text(text + "\n", encoding="utf-8")
    return 0 if works else 1


def _versions() -> str:
    from tf_fuse import _native

    info = _native.check()
    _native.load()
    installed = ", ".join(f"{k} {v}" for k, v in sorted(_native.tensorflow_versions().items()))
    return (
        f"tf_fuse {info['tf_fuse']} built against TensorFlow {info['tensorflow']} and protobuf "
        f"{info['protobuf']}; installed: {installed}; protocol grpc+fuse registered"
    )


def _port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]} was given"


def _round_trip() -> str:
    """Reads four variables of a server from a worker, fused.

    Raises:
      RuntimeError: it failed, or took longer than two minutes.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ROUND_TRIP],
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError("no answer within 120 s") from error
    if done.returncode != 0:
        raise RuntimeError(
            f"exit status {done.returncode}: {done.stdout.strip()} {done.stderr.strip()[-1500:]}"
        )
    return done.stdout.strip().splitlines()[-1]
