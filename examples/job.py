# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One mode of a comparison in a process of its own; `examples/session.py` is the other side.

    python -m examples.job '{"mode": "stock", "workload": "features", "workers": 1, "ps": 2}'

Modes:

* `stock`: protocol `grpc`, and `tf_fuse` never imported, here or in a task;
* `fused`: protocol `grpc+fuse` and the option `do_fuse_recv`;
* `count`: protocol `grpc+fuse` without the option: stock graphs, whose receives are counted;
* `local`: no cluster.

Commands come as JSON lines on stdin ({"run": STEPS}, {"evaluate": true}, {"metrics": true} or
{"placement": true}), events go as JSON lines to stdout. The process ends when stdin does.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MODES = ("stock", "fused", "count", "local")
# Time for each task until all must be ready: they start at once, and a machine that does other
# work as well has few cores for their imports.
_START_S = 60.0


def emit(event: str, **fields: Any) -> None:
    """Write one event as a JSON line."""
    print(json.dumps({"event": event, **fields}), flush=True)


def make_workload(spec: Mapping[str, Any]) -> Any:
    """Return the workload a specification names.

    Args:
      spec: "workload" is features, bags, dense, mixed, rfc, nothing, large, adult, criteo or
        keras_KIND; "options" are fields of its class; adult and criteo take "data": {"path",
        "rows"}, a file written by `encode_file`.

    Raises:
      ValueError: no such workload.
      TypeError: an option the workload does not have.
    """
    from examples.bags.model import Bags
    from examples.dense.model import Dense
    from examples.features.model import Features
    from examples.transfers import Large, Nothing
    from examples.wide_deep.data.encode import SCHEMAS
    from examples.wide_deep.workload import FileWorkload, Rfc

    name, options = spec["workload"], dict(spec.get("options", {}))
    if "hidden" in options:
        options["hidden"] = tuple(options["hidden"])
    synthetic = {
        "features": Features,
        "bags": Bags,
        "dense": Dense,
        "mixed": functools.partial(Dense, name="mixed"),
        "rfc": Rfc,
        "nothing": Nothing,
        "large": Large,
    }
    if name in synthetic:
        return synthetic[name](**options)
    if name.startswith("keras_"):
        # (Not imported by others: Keras takes seconds.)
        from examples.keras_models.model import KerasModel

        return KerasModel(kind=name.removeprefix("keras_"), **options)
    if name in SCHEMAS:
        return FileWorkload(_encoded(spec["data"], name), **options)
    raise ValueError(
        f"no workload {name!r}; there are {sorted([*synthetic, *SCHEMAS])} and keras_KIND"
    )


def _encoded(data: Mapping[str, Any], schema: str) -> Any:
    from examples.wide_deep.data.encode import SCHEMAS, Encoded

    return Encoded(Path(data["path"]), int(data["rows"]), SCHEMAS[schema])


def enable_fuse_recv(**more: Any) -> None:
    """Load the plugin and turn the fused receive on for functions traced from now on.

    Args:
      **more: other options to set.
    """
    import tensorflow as tf

    import tf_fuse  # noqa: F401  (adds the key to TensorFlow's options)

    tf.config.optimizer.set_experimental_options({"do_fuse_recv": True, **more})


def cluster_recv_rpcs() -> int:
    """Receive RPCs that all tasks of the connected cluster have made so far, single and fused.

    Raises:
      RuntimeError: a task did not tell.
    """
    per_task = _cluster_metrics()
    return sum(task["fused_rpcs"] + task["single_rpcs"] for task in per_task.values())


def _cluster_metrics() -> dict[str, dict[str, Any]]:
    import tf_fuse

    per_task = tf_fuse.cluster_metrics()
    for task, counters in per_task.items():
        if "error" in counters:
            raise RuntimeError(f"no counters from {task}: {counters['error']}")
    return per_task


def run(spec: Mapping[str, Any], commands: Callable[[], Mapping[str, Any]]) -> None:
    """Build the mode's cluster and program, then carries out commands.

    Args:
      spec: "mode", "workload", "options", "workers", "ps", "synchronous", "steps_per_call" (in
        another mode than stock), "log_dir", "fuse_options"
        (further options of the mode `fused`), "evaluation" (like "data"), "hosts" (of
        `LocalCluster`: {JOB: {"address", "command"}}; that of "chief" is this process's); all but
        the first two have defaults.
      commands: gives the next command, waiting for it; the process ends inside when there is none.

    Raises:
      ValueError: no such mode or workload.
    """
    mode = spec["mode"]
    if mode not in MODES:
        raise ValueError(f"no mode {mode!r}; there are {list(MODES)}")
    from examples import runner, standalone

    if mode == "local":
        workload = make_workload(spec)
        _serve(spec, workload, runner.LocalRunner(workload), commands)
        return
    plugin = mode != "stock"
    if mode == "fused":
        enable_fuse_recv(**spec.get("fuse_options", {}))
    elif plugin:
        import tf_fuse  # noqa: F401  (registers the protocol in this process)
    # By path in every mode: it is the same code, and `stock` must not import tf_fuse.
    package = standalone.cluster_package()
    workers, servers = spec.get("workers", 1), spec.get("ps", 1)
    tasks = workers + servers
    emit("starting", workers=workers, ps=servers)
    with package.LocalCluster(
        workers=workers,
        ps=servers,
        protocol="grpc+fuse" if plugin else "grpc",
        log_dir=spec.get("log_dir"),
        start_timeout_s=_START_S * tasks,
        hosts={job: package.Host(**host) for job, host in spec.get("hosts", {}).items()},
    ) as cluster:
        workload = make_workload(spec)
        emit("building")
        built = runner.ClusterRunner(
            workload,
            cluster.resolver(),
            synchronous=spec.get("synchronous", False),
            steps_per_call=spec.get("steps_per_call", 1),
            cpu_seconds=cluster.cpu_seconds,
            recv_rpcs=cluster_recv_rpcs if plugin else None,
        )
        _serve(spec, workload, built, commands)


def _serve(
    spec: Mapping[str, Any], workload: Any, built: Any, commands: Callable[[], Mapping[str, Any]]
) -> None:
    emit("ready", pid=os.getpid(), plugin_loaded="tf_fuse" in sys.modules)
    while command := commands():
        if "run" in command:
            on_steps = (lambda n: emit("steps", done=n)) if command.get("progress") else None
            emit("round", **built.run(command["run"], on_steps).as_dict())
        elif "evaluate" in command:
            from examples.wide_deep.workload import evaluate
            from examples.workload import snapshot

            result = evaluate(
                workload.config(),
                snapshot(built.program),
                _encoded(spec["evaluation"], spec["workload"]),
            )
            emit("evaluation", loss=result.loss, auc=result.auc, rows=result.rows)
        elif "metrics" in command:
            emit("metrics", tasks=_cluster_metrics() if "tf_fuse" in sys.modules else {})
        elif "placement" in command:
            from examples.workload import bytes_by_device

            emit("placement", bytes=bytes_by_device(built.program))
        else:
            raise ValueError(
                f"unknown command {dict(command)}; expected one of "
                '"evaluate", "metrics", "placement", "run"'
            )


def main(
    run: Callable[[Mapping[str, Any], Callable[[], Mapping[str, Any]]], None] = run,
) -> None:
    """Run the specification in argv[1]; leave with os._exit, as this process owns a server.

    Args:
      run: gets it, and what waits for the next command, which is empty to end.
    """
    pending: queue.Queue[Mapping[str, Any]] = queue.Queue()
    finished = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            pending.put(json.loads(line))
        # The caller is gone or done. When gone, a round may still run: nobody waits for it.
        pending.put({})
        finished.wait(timeout=2.0)
        os._exit(0)

    threading.Thread(target=listen, name="commands", daemon=True).start()
    status = 1
    try:
        run(json.loads(sys.argv[1]), pending.get)
        status = 0
    except BaseException as e:  # reported to the caller, whatever it is; the process ends
        emit("error", text=f"{type(e).__name__}: {e}", traceback=traceback.format_exc())
    finally:
        finished.set()
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    # Run by path, Python puts this folder first on sys.path: its modules are not top-level ones.
    # In its place goes the checkout, and last: an installed tf_fuse has a library, while the
    # checkout's need not have one.
    _folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if p != _folder] + [os.path.dirname(_folder)]
    main()
