# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train wide & deep, and report loss and AUC.

    python -m examples.wide_deep.train --dataset adult --train adult.data --eval adult.test
    python -m examples.wide_deep.train --dataset criteo --rows 50000 --workers 2 --ps 2
    python -m examples.wide_deep.train --mode local --dataset criteo --rows 50000

Without --train the data is synthetic. With TF_CONFIG set and `--mode cluster` it is the
coordinator of the cluster described there, whose tasks run `python -m tf_fuse run`; the encoded
data file must then be at the same path on every worker (--work-dir).

Progress has the loss, the mean over the last steps. For it the workers run dry for a moment every
few steps; the clock behind the steps per second stands meanwhile.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from examples import standalone
from examples.progress import display, open_console
from examples.session import Session, SessionError
from examples.wide_deep.data import adult, criteo
from examples.wide_deep.data.common import DataError, Row
from examples.wide_deep.data.synthetic import Synthetic

_READERS: dict[str, Callable[..., Iterator[Row]]] = {"adult": adult.read, "criteo": criteo.read}
_EVAL_SHARE = 5  # one row in five, where there is no file to evaluate on
# Progress comes about so many times, but not less often than after so many steps.
_PARTS = 20
_PART_STEPS = 50


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Encoded data, as `examples.job` takes it.

    Attributes:
      train: {"path", "rows"} of the training rows.
      evaluation: the same of the evaluation rows.
      source: where they are from, for people.
    """

    train: dict[str, Any]
    evaluation: dict[str, Any]
    source: str


def prepare(
    dataset: str,
    work_dir: str | os.PathLike[str],
    *,
    train: str | os.PathLike[str] | None = None,
    evaluation: str | os.PathLike[str] | None = None,
    rows: int = 20_000,
    seed: int = 1,
    on_rows: Callable[[int], None] | None = None,
) -> Prepared:
    """Encode a data set, given or synthetic, for training and evaluation.

    Args:
      dataset: "adult" or "criteo".
      work_dir: folder for the encoded files; workers read them there.
      train: file in the data set's format; None for synthetic data.
      evaluation: another one; None takes every fifth row of the training data.
      rows: rows of synthetic data.
      seed: of synthetic data and of the shuffling.
      on_rows: called with the number of rows encoded so far.

    Raises:
      DataError: a file is missing or malformed.
    """
    from examples.wide_deep.data.encode import SCHEMAS, encode_file

    schema, folder = SCHEMAS[dataset], Path(work_dir)
    if train is not None:

        def source() -> Iterator[Row]:
            return _READERS[dataset](train)

        described = os.fspath(train)
    else:
        synthetic = Synthetic(rows, seed=seed)
        source = synthetic.criteo if dataset == "criteo" else synthetic.adult
        described = f"synthetic, {rows} rows"
    if evaluation is not None:
        train_rows, eval_rows = source(), _READERS[dataset](evaluation)
    else:
        train_rows = (r for i, r in enumerate(source()) if i % _EVAL_SHARE)
        eval_rows = itertools.islice(source(), 0, None, _EVAL_SHARE)
    counted = itertools.count(1)

    def tell(stream: Iterator[Row]) -> Iterator[Row]:
        for row in stream:
            number = next(counted)
            if on_rows and number % 500 == 0:
                on_rows(number)
            yield row

    train_file = encode_file(
        tell(train_rows), schema, folder / f"{dataset}-train.bin", shuffle_seed=seed
    )
    eval_file = encode_file(tell(eval_rows), schema, folder / f"{dataset}-eval.bin")
    return Prepared(
        {"path": os.fspath(train_file.path), "rows": train_file.rows},
        {"path": os.fspath(eval_file.path), "rows": eval_file.rows},
        described,
    )


def train_session(
    mode: str,
    dataset: str,
    data: Prepared,
    steps: int,
    *,
    workers: int = 1,
    ps: int = 2,
    batch: int = 128,
    seed: int = 1,
    synchronous: bool = False,
    on_event: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Train in a process of its own, on a local cluster or without one.

    Args:
      mode: "stock", "fused", "count" or "local"; see `examples.job`.
      dataset: "adult" or "criteo".
      data: from `prepare`.
      steps: steps of all workers together.
      workers: workers of the local cluster.
      ps: its parameter servers.
      batch: rows per step.
      seed: of the initial values.
      synchronous: one step at a time.
      on_event: called with the process's events, for progress; "round" events then come every few
        steps.

    Returns:
      `examples.runner.Round.as_dict()` of all steps and "evaluation": {"loss", "auc", "rows"}.

    Raises:
      ValueError: the data has too few rows; no process is started.
      examples.session.SessionError: the process failed.
    """
    _check_rows(data, batch, 1 if synchronous or mode == "local" else workers)
    spec = {
        "mode": mode,
        "workload": dataset,
        "workers": workers,
        "ps": ps,
        "synchronous": synchronous,
        "data": data.train,
        "evaluation": data.evaluation,
        "options": {"batch": batch, "seed": seed},
    }
    with Session(spec, on_event=on_event) as session:
        session.wait_ready()
        result = _run_in_parts(session.run, steps) if on_event else session.run(steps)
        return {**result, "evaluation": session.evaluate()}


def train_on_tf_config(
    dataset: str,
    data: Prepared,
    steps: int,
    batch: int,
    on_event: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Train as the coordinator of the running cluster that TF_CONFIG describes.

    With the protocol `grpc+fuse` the plugin is loaded and the fused receive is on.

    Args:
      dataset: "adult" or "criteo".
      data: from `prepare`.
      steps: steps of all workers together.
      batch: rows per step.
      on_event: called with "ready" and "round" events like those of `train_session`.

    Returns:
      What `train_session` does.

    Raises:
      ValueError: TF_CONFIG is not that of a coordinator, or the data has too few rows.
    """
    _check_rows(data, batch, _workers_of_tf_config())
    import tensorflow as tf

    from examples import job, runner
    from examples.wide_deep.workload import evaluate
    from examples.workload import snapshot

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.rpc_layer == "grpc+fuse":
        job.enable_fuse_recv()
    spec = {"workload": dataset, "data": data.train, "options": {"batch": batch}}
    workload = job.make_workload(spec)
    built = runner.ClusterRunner(workload, resolver)
    tell = on_event or (lambda event: None)
    tell({"event": "ready"})

    def run(part: int) -> dict[str, Any]:
        event = {"event": "round", **built.run(part).as_dict()}
        tell(event)
        return event

    result = _run_in_parts(run, steps) if on_event else run(steps)
    eval_data = dataclasses.replace(
        workload.data, path=Path(data.evaluation["path"]), rows=data.evaluation["rows"]
    )
    scored = evaluate(workload.config(), snapshot(built.program), eval_data)
    return {**result, "evaluation": dataclasses.asdict(scored)}


def _workers_of_tf_config() -> int:
    config = standalone.cluster_package().serve.parse_tf_config(os.environ.get("TF_CONFIG"))
    if config.job != "chief" or not {"ps", "worker"} <= set(config.cluster):
        raise ValueError(
            "training needs a cluster with the jobs chief, ps and worker, and this process as its "
            f"chief; TF_CONFIG has the jobs {', '.join(sorted(config.cluster))} and the task "
            f"{config.name}"
        )
    return len(config.cluster["worker"])


def _check_rows(data: Prepared, batch: int, workers: int) -> None:
    from examples.wide_deep.data.encode import check_batches

    check_batches(f"the training data ({data.source})", data.train["rows"], batch, workers)


def _run_in_parts(run: Callable[[int], dict[str, Any]], steps: int) -> dict[str, Any]:
    """Run short rounds, whose losses can be shown as they come, and join them to one."""
    part = max(1, min(steps // _PARTS, _PART_STEPS))
    rounds = [run(min(part, steps - done)) for done in range(0, steps, part)]
    seconds = sum(r["seconds"] for r in rounds)
    cpu_s = {role: sum(r["cpu_s"][role] for r in rounds) for role in rounds[0]["cpu_s"]}
    counted = rounds[0]["recv_rpcs"] is not None
    rpcs = sum(r["recv_rpcs"] for r in rounds) if counted else None
    return {
        "event": "round",
        "steps": steps,
        "seconds": seconds,
        "losses": [loss for r in rounds for loss in r["losses"]],
        "cpu_s": cpu_s,
        "recv_rpcs": rpcs,
        "steps_per_s": steps / seconds,
        "recv_rpcs_per_step": None if rpcs is None else rpcs / steps,
        "cpu_ms_per_step": {role: s / steps * 1e3 for role, s in cpu_s.items()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Train once; see --help.

    Returns:
      0; or 1 when a file, the rows or TF_CONFIG do not do, or a process failed.
    """
    parser = argparse.ArgumentParser(description="Train wide & deep.")
    parser.add_argument(
        "--mode", choices=("fused", "stock", "local", "cluster"), default="fused",
        help="cluster: the one TF_CONFIG describes; the others start their own",
    )  # fmt: skip
    parser.add_argument("--dataset", choices=sorted(_READERS), default="criteo")
    parser.add_argument("--train", type=Path, help="data file; without it the data is synthetic")
    parser.add_argument("--eval", type=Path, help="without it, every fifth row of the data")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of synthetic data")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--synchronous", action="store_true", help="one step at a time")
    parser.add_argument("--work-dir", type=Path, help="for encoded data; a temporary folder")
    parser.add_argument("--json", type=Path, help="write the result here")
    args = parser.parse_args(argv)
    least = {"rows": 1, "workers": 1, "ps": 1, "batch": 1, "steps": 1, "seed": 0}
    for key, bound in least.items():
        if getattr(args, key) < bound:
            parser.error(f"--{key} must be at least {bound}, got {getattr(args, key)}")
    with tempfile.TemporaryDirectory(prefix="tf_fuse_train_") as temporary:
        try:
            result = _train(args, args.work_dir or temporary)
        except (DataError, SessionError, ValueError, OSError) as e:
            print(f"error: {e}", file=sys.stderr)
            return 1
    losses, scored = result["losses"], result["evaluation"]
    print(f"steps/s      {result['steps_per_s']:.1f}")
    print(f"loss         first {losses[0]:.6f}, last {losses[-1]:.6f}")
    print(f"evaluation   loss {scored['loss']:.6f}, AUC {scored['auc']:.6f}, {scored['rows']} rows")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _train(args: argparse.Namespace, work_dir: str | os.PathLike[str]) -> dict[str, Any]:
    if args.mode == "cluster":
        _workers_of_tf_config()  # to fail before the data is encoded
    with display(open_console()) as progress:
        encoding = progress.add_task("encoding rows", total=None)
        data = prepare(
            args.dataset, work_dir, train=args.train, evaluation=args.eval, rows=args.rows,
            seed=args.seed, on_rows=lambda n: progress.update(encoding, completed=n),
        )  # fmt: skip
        total = data.train["rows"] + data.evaluation["rows"]
        progress.update(encoding, total=total, completed=total)
        cluster = args.mode == "cluster"
        training = progress.add_task(
            "connecting to the cluster" if cluster else "starting processes", total=args.steps
        )

        def show(event: dict[str, Any]) -> None:
            if event["event"] == "ready":
                progress.update(training, description="training")
            elif event["event"] == "round":
                loss = sum(event["losses"]) / event["steps"]
                progress.update(
                    training, description=f"training, loss {loss:.4f}", advance=event["steps"]
                )

        if cluster:
            return train_on_tf_config(args.dataset, data, args.steps, args.batch, show)
        return train_session(
            args.mode, args.dataset, data, args.steps, workers=args.workers, ps=args.ps,
            batch=args.batch, seed=args.seed, synchronous=args.synchronous, on_event=show,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
