# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Coordinators as processes of their own, and what they report to the tests.

A process can be the coordinator of one cluster in its life and must leave with `os._exit`: a test
module runs itself as a script: the script runs its cases on one cluster and writes a line of JSON
for each into a file; the tests look at the lines.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import logging
import os
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from tests import decisions, scripted

_Answer = TypeVar("_Answer")

_ROOT = Path(__file__).resolve().parents[2]
_REMOVED = {"TF_CONFIG", "PYTHONHOME", "PYTHONSTARTUP"}
_TIMEOUT_S = 290
_SECONDS = "TF_FUSE_TEST_SCRIPT_SECONDS"  # of the environment: how long a script has
_SPEED = "TF_FUSE_TEST_SCRIPT_SPEED"  # of the environment: which cases it runs, "fast" or "slow"

MODES = ("stock", "off", "on")


class Cases:
    """What the cases of a script emitted, by name, as `run` returns it.

    Those that only slow tests look at run in a process of their own. Each of the two processes is
    started when a test asks for a case of it.
    """

    def __init__(
        self, script: str, *args: object, slow: Collection[str], seconds: int = _TIMEOUT_S
    ):
        """Runs nothing yet.

        Args:
          script: as of `run`; it hands the same names to `finish`.
          args: as of `run`.
          slow: names of cases that only slow tests ask for.
          seconds: as of `run`.
        """
        self._slow = slow
        self._run = functools.cache(functools.partial(run, script, *args, seconds=seconds))

    def __getitem__(self, name: str) -> Any:
        return self._run(speed="slow" if name in self._slow else "fast")[name]


def run(
    script: str, *args: object, seconds: int = _TIMEOUT_S, speed: str | None = None
) -> dict[str, Any]:
    """Runs a module of cases as a script.

    Args:
      script: the module's `__file__`.
      args: its command line.
      seconds: how long it may take; a script with many cases takes long on a busy machine.
      speed: which of its cases it runs; None for all. See `Cases`.

    Returns:
      What each case emitted, by name; a case that raised has the one key "raised".

    Raises:
      AssertionError: the script did not reach its end; the text has its output.
    """
    env = {k: v for k, v in os.environ.items() if k not in _REMOVED and not k.startswith("GRPC_")}
    env |= {
        "PYTHONPATH": str(_ROOT),
        "PYTHONUNBUFFERED": "1",
        _SECONDS: str(seconds),
        "GRPC_FAIL_FAST": "use_caller",  # a dead server is an error, nothing to wait for
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        "no_proxy": "localhost,127.0.0.1",
        "NO_PROXY": "localhost,127.0.0.1",
    }
    if speed is not None:
        env[_SPEED] = speed
    command = [sys.executable, script, *map(str, args)]
    with scripted.result_file(env) as (whole, path):
        # A file, not a pipe: it may be read after a timeout, and is never full.
        done = subprocess.run(
            command,
            env=whole,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
        cases = dict(json.loads(line) for line in path.read_text().splitlines())
    assert done.returncode == 0 and "end" in cases, (
        f"{command} ended with status {done.returncode} after the cases {sorted(cases)}:\n"
        + done.stdout[-6000:]
    )
    return cases


def finish(cases: dict[str, Callable[[], Any]], slow: Collection[str] = ()) -> None:
    """Runs the cases of a script in order, reports what each returns, and ends the process.

    If that takes too long, the process ends with the stacks of its threads.

    Args:
      cases: by name.
      slow: those that only slow tests ask for, see `Cases`.
    """
    assert set(slow) <= cases.keys(), set(slow) - cases.keys()
    if speed := os.environ.get(_SPEED):
        cases = {name: case for name, case in cases.items() if (name in slow) == (speed == "slow")}
    seconds = int(os.environ.get(_SECONDS, _TIMEOUT_S))
    faulthandler.dump_traceback_later(seconds - 20, exit=True)
    if "tf_fuse" in sys.modules:
        decisions.keep()
    for name, case in cases.items():
        try:
            value = case()
        except Exception as error:
            traceback.print_exc()
            value = {"raised": type(error).__name__, "text": str(error)}
        emit(name, value)
    emit("end", True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def emit(name: str, value: Any) -> None:
    """Adds the result of a case."""
    scripted.add([name, value])


def exact(value: Any) -> Any:
    """A JSON form of nested arrays that is equal only for the same types, shapes and bits."""
    import numpy as np

    if isinstance(value, dict):
        return {key: exact(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [exact(item) for item in value]
    array = np.asarray(value)
    bits = [repr(x) for x in array.ravel()] if array.dtype == object else array.tobytes().hex()
    return [str(array.dtype), list(array.shape), bits]


def caught(action: Callable[[], Any]) -> dict[str, Any]:
    """The error of TensorFlow that an action raised, by class, code and text."""
    import tensorflow as tf

    try:
        action()
    except tf.errors.OpError as error:
        return {"raised": type(error).__name__, "code": error.error_code, "text": str(error)}
    return {"raised": None}


def wait_until(what: Callable[[], Any], timeout_s: float = 100.0) -> Any:
    """Asks until the answer is true or the time is over; returns the last answer."""
    deadline = time.monotonic() + timeout_s
    while not (answer := what()) and time.monotonic() < deadline:
        time.sleep(0.05)  # between two questions; nothing depends on its length
    return answer


def settled(ask: Callable[[], _Answer], is_settled: Callable[[_Answer], bool]) -> _Answer:
    """Asks until the answer has settled or the time is over; returns the last answer.

    A task's counters are such answers. To ask again afterwards would count the frame of the last
    answer, which the task may not have freed when it has arrived.
    """
    answers: list[_Answer] = []

    def has_settled() -> bool:
        answers.append(ask())
        return is_settled(answers[-1])

    wait_until(has_settled)
    return answers[-1]


def logged_messages() -> list[str]:
    """Returns a list to which tf_fuse's messages of level INFO and above are added from now on."""
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logging.getLogger("tf_fuse").addHandler(Handler())
    logging.getLogger("tf_fuse").setLevel(logging.INFO)
    return messages


def training_step(variables: list[Any]) -> Any:
    """Adds 0.5 to each of some scalars, and returns what their sum was: part of a `tf.function`.

    What is added comes by way of the worker from all that was read, so the servers receive as well
    as send. The sum must be 0.5 or more.
    """
    import tensorflow as tf

    total = tf.add_n([v.read_value() for v in variables])
    with tf.control_dependencies([total]):
        for i, v in enumerate(variables):
            v.assign_add(tf.minimum(total + float(i), 0.5))  # computed on the worker
    return tf.identity(total)


class Job:
    """A cluster and its coordinator, in this process.

    Attributes:
      cluster: the `LocalCluster`.
      coordinator: the `ClusterCoordinator`.
    """

    def __init__(
        self,
        mode: str,
        workers: int = 0,
        ps: int = 0,
        protocol: Any = None,
        cluster: Any = None,
        **options: Any,
    ):
        """Starts and connects.

        Args:
          mode: "stock" (the plugin is not imported), "off" (imported, option not set) or "on".
          workers: number of workers.
          ps: number of parameter servers.
          protocol: as in `LocalCluster`; None for what the mode needs.
          cluster: addresses by job of a cluster that runs already; None to start one.
          options: further arguments of `LocalCluster`.
        """
        import tensorflow as tf

        self.mode = mode
        if mode == "stock":
            from examples.standalone import cluster_package

            cluster_type = cluster_package().LocalCluster
        else:
            import tf_fuse  # noqa: F401  (loads the plugin)
            from tf_fuse.cluster import LocalCluster as cluster_type
        if mode == "on":
            tf.config.optimizer.set_experimental_options(
                {"do_fuse_recv": True, "fuse_grouping": "level"}
            )
        protocol = protocol or ("grpc" if mode == "stock" else "grpc+fuse")
        if cluster is None:
            self.cluster = cluster_type(workers=workers, ps=ps, protocol=protocol, **options)
            resolver = self.cluster.resolver()
        else:
            resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(cluster), rpc_layer=protocol
            )
        self.strategy = tf.distribute.ParameterServerStrategy(resolver)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)

    def variables(self, values: list[Any], **kwargs: Any) -> list[Any]:
        """Variables, placed on the servers in turn."""
        import tensorflow as tf

        with self.strategy.scope():
            return [tf.Variable(value, **kwargs) for value in values]

    def call(self, function: Any, args: tuple = ()) -> Any:
        """Runs a `tf.function` on a worker; returns what it returns, fetched."""
        result = self.coordinator.schedule(function, args=args)
        self.coordinator.join()
        return result.fetch()

    def total(self) -> dict[str, Any]:
        """The counters of all tasks, summed; reasons for skipping as "skipped:reason"."""
        sums: dict[str, Any] = defaultdict(int)
        if self.mode == "stock":
            return sums
        import tf_fuse

        for counters in tf_fuse.cluster_metrics().values():
            for key, value in counters.items():
                if key == "skipped":
                    for reason, count in value.items():
                        sums[f"skipped:{reason}"] += count
                elif isinstance(value, int):
                    sums[key] += value
        return sums

    def by_task(self, name: str) -> dict[str, int]:
        """One counter of every task that has the plugin."""
        if self.mode == "stock":
            return {}
        import tf_fuse

        return {task: m[name] for task, m in tf_fuse.cluster_metrics().items() if name in m}

    def counted(self, action: Callable[[], Any]) -> dict[str, Any]:
        """Runs an action; returns what the counters of the cluster grew by (zeros left out)."""
        before = self.total()
        value = action()
        after = self.total()
        growth = {key: after[key] - before[key] for key in sorted(after)}
        return {
            "value": exact(value),
            "counters": {key: count for key, count in growth.items() if count},
        }
