# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Coordinators in processes of their own.

TensorFlow cannot stop a server inside a process, so a process connects to one cluster in its life.
A test that needs a cluster therefore runs a script, which starts the cluster, runs many cases, and
writes one JSON line per case into a file; the tests then look at the lines. Programs that need no
cluster write one result.

Of the test's side: `run`, `result_of`, `result_and_log` and `result_file`. Of the script's side:
`main`, `emit`, `give` and the rest.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_BOOT = Path(__file__).with_name("boot.py")

# The loopback, by a name that is taken for another host (cc/base/hosts.h): between hosts
# transfers and computing overlap however few cores there are, so a division of groups pays.
OTHER_HOST = "[::ffff:127.0.0.1]"

# The variable that names the file into which a process writes its result, as JSON: libraries and
# child processes write to the standard streams whenever they like. To run such a program by hand,
# set it to /dev/stdout.
_RESULT = "TEST_RESULT"

# No wait of a script is longer; a hang then ends with the stacks of all threads.
DEADLINE_S = 60.0


def run(script: Path, spec: Mapping[str, Any], env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Runs a script to its end.

    Args:
      script: path of a Python file that calls `main`.
      spec: handed to the script.
      env: the whole environment of the script.

    Returns:
      What it emitted, in order.

    Raises:
      AssertionError: it failed, or took too long; the text has the end of its stderr.
    """
    command = [sys.executable, str(_BOOT), str(script), str(ROOT)]
    with result_file(env) as (whole, path):
        done = subprocess.run(
            [*command, json.dumps(spec)],
            cwd=ROOT,
            env=whole,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=4 * DEADLINE_S,
        )
        if done.returncode != 0:
            tail = "\n".join(done.stderr.splitlines()[-60:])
            raise AssertionError(f"{script.name} {spec} ended with {done.returncode}:\n{tail}")
        return [json.loads(line) for line in path.read_text().splitlines()]


@contextlib.contextmanager
def result_file(env: Mapping[str, str]) -> Iterator[tuple[dict[str, str], Path]]:
    """An empty file for a result, and the environment of a process that calls `give` or `emit`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result"
        path.touch()
        places = [env.get("PYTHONPATH", ""), str(ROOT)]
        found = {"PYTHONPATH": os.pathsep.join(filter(None, places)), _RESULT: str(path)}
        yield {**env, **found}, path


def result_of(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    timeout_s: float = 4 * DEADLINE_S,
    cwd: Path | None = None,
) -> Any:
    """Run a process; return what it hands to `give`.

    Raises:
      AssertionError: it failed; the text has the end of its stderr.
    """
    return result_and_log(command, env, timeout_s, cwd)[0]


def result_and_log(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    timeout_s: float = 4 * DEADLINE_S,
    cwd: Path | None = None,
) -> tuple[Any, str]:
    """As `result_of`; and what the process wrote to stderr."""
    with result_file(os.environ if env is None else env) as (whole, path):
        done = subprocess.run(
            list(command),
            env=whole,
            capture_output=True,
            text=True,
            cwd=cwd,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(path.read_text()), done.stderr


def given_by(program: Path, *arguments: str) -> Any:
    """As `result_of`, for a program that needs no environment of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return result_of([sys.executable, str(program), *arguments], env)


def give(result: Any) -> None:
    """Write the result of this process."""
    Path(os.environ[_RESULT]).write_text(json.dumps(result))


def emit(case: str, **fields: Any) -> None:
    """Add one case to the result of this process."""
    add({"case": case, **fields})


def add(line: Any) -> None:
    """Add a line to the result of this process."""
    with open(os.environ[_RESULT], "a") as file:
        file.write(json.dumps(line) + "\n")


def main(body: Callable[[dict[str, Any]], None]) -> None:
    """Calls `body` with the specification, then ends the process, as a server's owner must."""
    faulthandler.dump_traceback_later(3.5 * DEADLINE_S, exit=True)
    status = 0
    try:
        body(json.loads(sys.argv[3]))
    except BaseException:  # reported, and the exit status says so
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextlib.contextmanager
def cluster(mode: str, workers: int, ps: int, **options: Any) -> Iterator[Any]:
    """A local cluster to which this process is connected as the chief.

    Args:
      mode: "stock" (protocol grpc, tf_fuse never imported), or "plugin".
      workers: number of workers.
      ps: number of servers.
      **options: of LocalCluster; `protocol` maps tasks to protocols, `hosts` to addresses.

    Yields:
      The cluster, with a `strategy` beside its own attributes.
    """
    from examples import standalone

    package = standalone.cluster_package()
    hosts = options.pop("hosts", {})
    options["hosts"] = {task: package.Host(address) for task, address in hosts.items()}
    protocol = options.pop("protocol", "grpc" if mode == "stock" else "grpc+fuse")
    # As ParameterServerStrategy wants it: a dead task is an error, not a wait.
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    with package.LocalCluster(workers, ps, protocol, **options) as started:
        import tensorflow as tf

        if mode != "stock":
            import tf_fuse  # noqa: F401  (registers the protocol)
        started.strategy = tf.distribute.ParameterServerStrategy(started.resolver())
        yield started


def set_fuse_recv(on: bool, **others: Any) -> None:
    """Sets the option for functions called from now on.

    All tensors of a level share a call unless `others` say otherwise: what is counted would depend
    on the cores of the machine.
    """
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options(
        {"do_fuse_recv": on, "fuse_grouping": "level", **others}
    )


def device(task: str) -> str:
    """The CPU of a task: "ps:1" to "/job:ps/replica:0/task:1/device:CPU:0"."""
    job, _, index = task.partition(":")
    return f"/job:{job}/replica:0/task:{index}/device:CPU:0"


def short(name: str) -> str:
    """The task of a task's or device's full name: "/job:ps/replica:0/task:1/…" to "ps:1"."""
    job, _, index = name.removeprefix("/job:").partition("/replica:0/task:")
    return f"{job}:{index.partition('/')[0]}"


def metrics() -> dict[str, dict[str, Any]]:
    """Counters by short task name ("ps:1"); without the tasks that have none."""
    import tf_fuse

    return {short(task): counted for task, counted in tf_fuse.cluster_metrics().items()}


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What grew between two readings of `metrics`, by task; only what is not 0."""
    result: dict[str, Any] = {}
    for task in sorted(after):
        grown: dict[str, Any] = {}
        old = before.get(task, {})
        for key, value in after[task].items():
            if key == "skipped":
                past = old.get(key, {})
                new = {k: n - past.get(k, 0) for k, n in value.items() if n != past.get(k, 0)}
                if new:
                    grown[key] = new
            elif key == "error":
                grown[key] = value
            elif key == "waits":
                continue
            elif value != old.get(key, 0):
                grown[key] = value - old.get(key, 0)
        result[task] = grown
    return result


def until(condition: Callable[[], Any], what: str) -> Any:
    """Polls until `condition` is truthy, and returns what it gave.

    Raises:
      TimeoutError: it was not within the deadline.
    """
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {DEADLINE_S} s: {what}")
        time.sleep(0.02)
    return value


def exact(value: Any) -> Any:
    """A tensor or array as JSON that differs whenever a bit differs."""
    import numpy as np

    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    data = repr(array.tolist()) if array.dtype == object else array.tobytes().hex()
    if len(data) > 400:
        data = "sha256 " + hashlib.sha256(data.encode()).hexdigest()
    return [str(array.dtype), list(array.shape), data]
