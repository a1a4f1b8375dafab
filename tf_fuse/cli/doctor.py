# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_fuse doctor`: whether fused receives work on this machine."""

from __future__ import annotations

import contextlib
import json
import os
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
# Characters of another process's command line in the report.
_COMMAND_CHARS = 100


class _TroubleError(RuntimeError):
    """Something to mend, with a remedy that fits better than its check's.

    Attributes:
      remedy: what to do.
      works: whether fused receives work all the same.
    """

    def __init__(self, text: str, remedy: str, works: bool):
        super().__init__(text)
        self.remedy = remedy
        self.works = works


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Attributes:
      name: what is checked.
      function: returns what it found, or raises.
      remedy: what to do when it raises.
      needs: names of the checks without which this one cannot say anything.
      waits_for: what takes seconds, said while it runs on a terminal.
      applies: whether there is anything to check; if not, the report has no line of it.
    """

    name: str
    function: Callable[[], str]
    remedy: str
    needs: tuple[str, ...] = ()
    waits_for: str = ""
    applies: Callable[[], bool] = lambda: True


# Runs in a process of its own: a coordinator cannot leave a cluster.
#
# The worker reads its clock, sends four tensors to the server, which adds its four variables and
# sends the sums back, and reads its clock again: one fused receive there and one back. The server
# is heard first, so that starting its part of the function is not measured.
_ROUND_TRIP = """
import time
started = time.monotonic()
import os
import statistics
import tensorflow as tf
import tf_fuse
from tf_fuse.cluster import LocalCluster

CALLS = 20
tf.config.optimizer.set_experimental_options({"do_fuse_recv": True})
with LocalCluster(workers=1, ps=1) as cluster:
    strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variables = [tf.Variable(float(i)) for i in range(4)]
    server = variables[0].device

    @tf.function
    def there_and_back():
        with tf.device(server):
            heard = variables[0] + 1.0
        with tf.control_dependencies([tf.identity(heard)]):
            start = tf.timestamp()
        one = tf.cast(start > 0.0, tf.float32)
        sent = [one * (i + 2.0) for i in range(4)]
        with tf.device(server):
            sums = [value + variable for value, variable in zip(sent, variables)]
        total = tf.add_n(sums)
        with tf.control_dependencies([total]):
            return total, tf.timestamp() - start

    coordinator.schedule(there_and_back).fetch()
    start_s = time.monotonic() - started
    values, seconds = zip(*(coordinator.schedule(there_and_back).fetch() for _ in range(CALLS)))
    counters = tf_fuse.cluster_metrics()
    fused = [counters[f"/job:{job}/replica:0/task:0"]["fused_rpcs"] for job in ("worker", "ps")]
    wrong = [float(value) for value in values if value != 20.0]
    if wrong:
        text = f"value {wrong[0]} (expected 20.0)"
    elif min(fused) <= CALLS:
        text = f"{fused} fused receives of worker and server (expected {CALLS + 1} each)"
    else:
        text = (
            f"{statistics.median(map(float, seconds)) * 1e3:.2f} ms from a worker to a server and "
            f"back, one fused receive each way (median of {CALLS} calls); starting both took "
            f"{start_s:.1f} s"
        )
    print(text, flush=True)
    code = 1 if wrong or min(fused) <= CALLS else 0
    cluster.close()
os._exit(code)
"""


def run(json_path: str | None) -> int:
    """Runs all checks.

    Args:
      json_path: where to write the results as JSON beside the lines; "-" for standard output, in
        place of them.

    Returns:
      0 if each check holds, be it with a warning, else 1.
    """
    results: list[dict[str, Any]] = []
    for check in CHECKS:
        if not check.applies():
            continue
        failed = [result["check"] for result in results if not result["ok"]]
        with _spinner(check, json_path):
            result = _run_one(check, failed)
        results.append(result)
        if json_path != "-":
            word = "FAIL" if not result["ok"] else "WARN" if result["warning"] else "OK  "
            print(f"{word} {check.name}: {result['detail']}", flush=True)
            if result["remedy"]:
                print(f"     remedy: {result['remedy']}", flush=True)
    works = all(result["ok"] for result in results)
    text = json.dumps({"works": works, "checks": results}, indent=1)
    if json_path == "-":
        print(text)
    elif json_path:
        Path(json_path).write_text(text + "\n", encoding="utf-8")
    return 0 if works else 1


def _spinner(check: Check, json_path: str | None) -> contextlib.AbstractContextManager[Any]:
    """Shows on a terminal what is being checked; its line is gone before the result's comes."""
    stream = sys.stderr if json_path == "-" else sys.stdout
    if not stream.isatty():
        return contextlib.nullcontext()
    try:
        from rich.console import Console
    except ImportError:  # an environment with gaps is what the command is for
        return contextlib.nullcontext()
    text = f"checking {check.name}" + (f": {check.waits_for}" if check.waits_for else "")
    return Console(file=stream, highlight=False).status(text)


def _run_one(check: Check, failed: list[str]) -> dict[str, Any]:
    result = {"check": check.name, "ok": False, "warning": False, "detail": "", "remedy": ""}
    missing = [name for name in failed if name in check.needs]
    if missing:
        return {**result, "detail": f"not tried, because this failed: {', '.join(missing)}"}
    try:
        return {**result, "ok": True, "detail": check.function()}
    except _TroubleError as error:
        found = {"ok": error.works, "warning": error.works}
        return {**result, **found, "detail": str(error), "remedy": error.remedy}
    except Exception as error:  # whatever goes wrong is what the user asks for
        text = str(error) if isinstance(error, _EXPLAINED) else f"{type(error).__name__}: {error}"
        return {**result, "detail": text, "remedy": check.remedy}


def _tensorflow() -> str:
    """Compares versions; imports nothing native.

    Raises:
      ImportError: one of the three that `_native.check` raises.
      _TroubleError: both distributions of TensorFlow are installed.
    """
    from tf_fuse import _native

    versions = _native.tensorflow_versions()
    texts = [f"{name} {version}" for name, version in versions.items()]
    both = len(versions) > 1
    try:
        info = _native.check()
        fits = True
    except _native.VersionMismatchError:
        # Its command would lay one of the two over the other once more.
        if not both:
            raise
        info = _native.build_info()
        fits = False
    text = f"tf_fuse {info['tf_fuse']} was built against TensorFlow {info['tensorflow']}"
    if fits:
        texts.append(f"protobuf {metadata.version('protobuf')}")
        text += f" with protobuf {info['protobuf']}; installed: {', '.join(texts)}"
    else:
        text += f", but {' and '.join(texts)} are installed in this environment"
    if both:
        kept = info.get("tensorflow_distribution", "tensorflow")
        raise _TroubleError(
            f"{text}. {' and '.join(versions)} lie over one another in one folder: whichever is "
            "removed or updated breaks the other",
            f"python -m pip uninstall -y {' '.join(versions)} && "
            f'python -m pip install "{kept}=={info["tensorflow"]}"',
            works=fits,
        )
    return text


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


def _task_address() -> str:
    """Looks whether the port of the task that TF_CONFIG names is free on this machine.

    Raises:
      _TroubleError: TF_CONFIG does not describe a task.
      RuntimeError: another process has the port; the text names it where that can be seen.
    """
    from tf_fuse.cluster import serve

    text = os.environ["TF_CONFIG"]
    try:
        config = serve.parse_tf_config(text)
    except serve.ConfigError as error:
        remedy = "correct TF_CONFIG, or unset it where no task of a cluster is to run"
        raise _TroubleError(str(error), remedy, works=False) from error
    where = f"port {config.port} of task {config.name} (address {config.address})"
    try:
        serve.check_port(config)
    except serve.PortInUseError as error:
        pids = _pids_at(config.port)
        if pids and all(_environment(pid).get("TF_CONFIG") == text for pid in pids):
            return f"{where} is in use by this very task: {_describe(pids)}"
        raise RuntimeError(f"{where} is in use by {_describe(pids)}") from error
    return f"{where} is free"


def _pids_at(port: int) -> list[int]:
    """Processes that have a socket at a TCP port; empty where this user may not see them."""
    import psutil

    try:
        everywhere = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return []
    sockets = [s for s in everywhere if s.laddr and s.laddr.port == port]
    # Where none listens, the system has lent the port to somebody's outgoing connection.
    holders = [s for s in sockets if s.status == psutil.CONN_LISTEN] or sockets
    return sorted({s.pid for s in holders if s.pid is not None})


def _environment(pid: int) -> dict[str, str]:
    import psutil

    try:
        return psutil.Process(pid).environ()
    except psutil.Error:
        return {}


def _describe(pids: list[int]) -> str:
    """Names processes with their command lines."""
    import psutil

    texts = []
    for pid in pids:
        try:
            command = " ".join(psutil.Process(pid).cmdline())
        except psutil.Error:
            command = "it has just ended"
        if len(command) > _COMMAND_CHARS:
            command = f"{command[:_COMMAND_CHARS]}..."
        texts.append(f"process {pid} ({command})")
    unseen = "a process of another user or container (root can see which: ss -tlnp)"
    return ", ".join(texts) or unseen


def _round_trip() -> str:
    """Has a worker and a server exchange tensors, fused, and measures how long that takes.

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
        waits_for="imports TensorFlow, which takes some seconds",
    ),
    Check(
        "protocol",
        _protocol,
        "another library took the name, or this one is older than its Python part: rebuild it",
        needs=("versions", "library"),
    ),
    Check("port", _port, "allow this user to listen on 127.0.0.1 (sandbox, firewall, ulimit -n)"),
    Check(
        "task address",
        _task_address,
        'stop that process, or give the task another port in TF_CONFIG["cluster"] of every task',
        applies=lambda: bool(os.environ.get("TF_CONFIG", "").strip()),
    ),
    Check(
        "round trip",
        _round_trip,
        "unset http_proxy or add localhost to no_proxy; else report it with this output",
        needs=("versions", "library", "protocol", "port"),
        waits_for="starts a worker and a server, which takes some 10 to 20 s",
    ),
)
