# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_fuse doctor`: whether fused receives work on this machine."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

_PROTOCOL = "grpc+fuse"
# Their texts stand for themselves; of any other error the type is said too.
_EXPLAINED = (ImportError, RuntimeError)


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Attributes:
      name: what is checked.
      function: returns what it found, or raises.
      remedy: what to do when it raises.
      needs: names of the checks without which this one cannot say anything.
    """

    name: str
    function: Callable[[], str]
    remedy: str
    needs: tuple[str, ...] = ()


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
    """Runs all checks.

    Args:
      json_path: where to write the results as JSON beside the lines; "-" for standard output, in
        place of them.

    Returns:
      0 if each check holds, else 1.
    """
    results: list[dict[str, Any]] = []
    for check in CHECKS:
        failed = [result["check"] for result in results if not result["ok"]]
        result = _run_one(check, failed)
        results.append(result)
        if json_path != "-":
            print(
                f"{'OK  ' if result['ok'] else 'FAIL'} {check.name}: {result['detail']}", flush=True
            )
            if result["remedy"]:
                print(f"     remedy: {result['remedy']}", flush=True)
    works = all(result["ok"] for result in results)
    text = json.dumps({"works": works, "checks": results}, indent=1)
    if json_path == "-":
        print(text)
    elif json_path:
        Path(json_path).write_text(text + "\n", encoding="utf-8")
    return 0 if works else 1


def _run_one(check: Check, failed: list[str]) -> dict[str, Any]:
    result = {"check": check.name, "ok": False, "detail": "", "remedy": ""}
    missing = [name for name in failed if name in check.needs]
    if missing:
        return {**result, "detail": f"not tried, because this failed: {', '.join(missing)}"}
    try:
        return {**result, "ok": True, "detail": check.function()}
    except Exception as error:  # whatever goes wrong is what the user asks for
        text = str(error) if isinstance(error, _EXPLAINED) else f"{type(error).__name__}: {error}"
        return {**result, "detail": text, "remedy": check.remedy}


def _tensorflow() -> str:
    """Compares versions; imports nothing native."""
    from tf_fuse import _native

    info = _native.check()
    versions = {**_native.tensorflow_versions(), "protobuf": metadata.version("protobuf")}
    installed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"tf_fuse {info['tf_fuse']} was built against TensorFlow {info['tensorflow']} with "
        f"protobuf {info['protobuf']}; installed: {installed}"
    )


def _library() -> str:
    from tf_fuse import _native

    _native.load()
    return f"{_native.library_path()} is loaded"


def _protocol() -> str:
    """Makes a server that speaks our protocol, on a port that the system chooses."""
    import tensorflow as tf

    server = tf.distribute.Server({"local": ["localhost:0"]}, protocol=_PROTOCOL, start=False)
    return f"{_PROTOCOL} is registered ({server.target})"


def _port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        probe.listen()
        return f"127.0.0.1:{probe.getsockname()[1]} accepts connections"


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


CHECKS = (
    Check(
        "versions",
        _tensorflow,
        "the message ends with the command; the README's install section has all of them",
    ),
    Check(
        "library",
        _library,
        "rebuild it, in the source folder: python -m pip install --force-reinstall --no-deps .",
        needs=("versions",),
    ),
    Check(
        "protocol",
        _protocol,
        "another library took the name, or this one is older than its Python part: rebuild it",
        needs=("versions", "library"),
    ),
    Check("port", _port, "allow this user to listen on 127.0.0.1 (sandbox, firewall, ulimit -n)"),
    Check(
        "round trip",
        _round_trip,
        "unset http_proxy or add localhost to no_proxy; else report it with this output",
        needs=("versions", "library", "protocol", "port"),
    ),
)
