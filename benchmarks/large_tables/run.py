# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a job with embedding tables of gigabytes takes, from its start to a restore.

    python benchmarks/large_tables/run.py --rows 40000000 --json large.json
    python benchmarks/large_tables/run.py --table workers --rows 1000000
    python benchmarks/large_tables/run.py --table tables --modes stock all

The models (DLRM, wide & deep) are of Keras 3, have Criteo's columns and a table for each, and train
with Adam. Rows are drawn, or those of a file (`--data`). Tables of results:

* `phases`: start the tasks, make the variables, trace and run a first step, train, evaluate, save,
  restore in clusters with other numbers of servers; with seconds and the peak memory of each task.
  Sampled rows and their slots must be those saved, or the command exits with status 1.
* `workers`: steps/s, receive RPCs and the coordinator's CPU by number of workers.
* `tables`: the same, and the time to build and trace, by number of tables (of `--rows` rows
  together; wide & deep, half of them wide).

Modes: `stock` (protocol `grpc`, the plugin is not loaded), `stock_gather` (the same, with a layer
that gathers on servers; Keras's own layer makes stock TensorFlow send whole tables), `all` (the
option `tf_fuse`, `CostPartitioner`, `build`). Each job has processes of its own, and modes take
turns. A job ends before the machine runs out of memory (`--least-free`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.progress import Progress, TaskID

from benchmarks.common import arguments, output
from benchmarks.fuse_recv.results import machine
from benchmarks.large_tables import jobs, results
from examples.progress import display, open_console
from examples.wide_deep.data import criteo

MODELS = ("dlrm", "wide_deep")
TABLES = ("phases", "workers", "tables")
_SETTINGS = (
    "batch", "data", "dim", "evaluation_steps", "learning_rate", "model", "options", "rows", "seed",
    "servers", "steps", "warm_up", "width", "workers",
)  # fmt: skip
_COUNTED = {"steps": 4, "warm_up": 2}
_SAVED = ("prepare", "train", "evaluate", "save", "samples")


class _Runner:
    """Runs the jobs of one table, and shows where they are."""

    def __init__(self, args: argparse.Namespace, progress: Progress, folder: str):
        self._args = args
        self._progress = progress
        self._folder = folder
        self._settings = {key: getattr(args, key) for key in _SETTINGS}
        self.rows: list[dict[str, Any]] = []

    def job(self, name: str, kind: Mapping[str, Any], phases: Sequence[str], **more: Any) -> Any:
        """Run a job; keep its row unless its mode is not one of the program."""
        settings = {
            **self._settings,
            **kind,
            "columns": self._args.columns,
            "phases": list(phases),
            "least_free": self._args.least_free << 20,
            "checkpoint": f"{self._folder}/{name}",
            **more,
        }
        task: TaskID = self._progress.add_task(name, total=len(phases) + 2)

        def on_phase(phase: str) -> None:
            shown = f"{name}, {settings['servers']} servers, {settings['workers']} workers: {phase}"
            self._progress.update(task, description=shown)
            self._progress.advance(task, 0 if phase == "start" else 1)

        found = jobs.run(settings, on_phase)
        self._progress.update(task, completed=len(phases) + 2)
        tables = settings["columns"] * (2 if settings["model"] == "wide_deep" else 1)
        row = {"mode": name, "servers": settings["servers"], "workers": settings["workers"],
               "tables": tables, **found}  # fmt: skip
        if name in jobs.MODES:
            self.rows.append(row)
        return row

    def phases(self) -> None:
        """Train and save in one cluster; restore in others."""
        for name in self._args.modes:
            row = self.job(name, jobs.MODES[name], _SAVED)
            if "error" not in row:
                for servers in self._args.restore:
                    self.job(
                        name, jobs.MODES[name], ("restore", "samples"), servers=servers, workers=1
                    )
            for file in Path(self._folder).iterdir():
                file.unlink()

    def by(self, key: str, numbers: Sequence[int], counts_once: bool) -> None:
        """Train jobs that differ in one setting; modes take turns."""
        rpcs = None
        for number in numbers:
            if "stock" in self._args.modes and (rpcs is None or not counts_once):
                counted = self.job(
                    "count", jobs.COUNT, ("prepare", "train"),
                    **{key: number, "workers": 1, **_COUNTED},
                )  # fmt: skip
                rpcs = counted["phases"].get("train", {}).get("recv_rpcs_per_step")
            for name in self._args.modes:
                row = self.job(name, jobs.MODES[name], ("prepare", "train"), **{key: number})
                if name == "stock" and "train" in row["phases"]:
                    row["phases"]["train"]["recv_rpcs_per_step"] = rpcs


def measure(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """Run all jobs of a table.

    Args:
      args: the command line.
      progress: gets a task per job.

    Returns:
      What `--json` writes.

    Raises:
      ProcessError: a job failed, for another reason than memory.
    """
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        runner = _Runner(args, progress, folder)
        if args.table == "phases":
            runner.phases()
        elif args.table == "workers":
            runner.by("workers", args.numbers, counts_once=True)
        else:
            columns = [max(1, number // 2) for number in args.numbers]
            runner.by("columns", columns, counts_once=False)
    return {
        "table": args.table,
        "settings": {key: getattr(args, key) for key in _SETTINGS},
        "machine": machine(),
        "rows": runner.rows,
        "restores_equal": results.restores_equal(runner.rows),
    }


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure jobs with large embedding tables.")
    parser.add_argument("--table", choices=TABLES, default="phases")
    parser.add_argument("--model", choices=MODELS, default="dlrm")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of all tables together")
    parser.add_argument("--dim", type=int, default=16, help="columns of each embedding")
    parser.add_argument("--width", type=int, default=64, help="of the first hidden layer")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2, help="of the tables phases and tables")
    parser.add_argument("--restore", type=int, nargs="+", default=[2, 6], help="to so many servers")
    parser.add_argument("--numbers", type=int, nargs="+", help="of workers, or of tables")
    parser.add_argument("--steps", type=int, default=40, help="that count, of all workers")
    parser.add_argument("--warm-up", type=int, default=8)
    parser.add_argument("--evaluation-steps", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--steps-in-flight", type=int, default=1, help="of the mode all")
    parser.add_argument("--data", help="a file in Criteo's format, instead of drawn rows")
    parser.add_argument("--modes", nargs="+", choices=sorted(jobs.MODES), default=["stock", "all"])
    parser.add_argument("--folder", help="for checkpoints; a temporary one by default")
    parser.add_argument("--least-free", type=int, default=1500, help="MiB that must stay free")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--plot", type=Path, help="write a picture here")
    args = parser.parse_args(argv)
    args.modes = list(dict.fromkeys(args.modes))
    args.columns = len(criteo.CATEGORICAL)
    args.options = {"steps_in_flight": args.steps_in_flight}
    if args.table == "tables":
        args.model = "wide_deep"
    if args.numbers is None:
        args.numbers = [40, 100, 300, 1000] if args.table == "tables" else [1, 2, 4, 8, 16]
    arguments.check_counts(
        parser,
        args,
        (
            "rows",
            "dim",
            "batch",
            "servers",
            "workers",
            "steps",
            "evaluation_steps",
            "steps_in_flight",
        ),
    )
    for key in ("restore", "numbers"):
        if min(getattr(args, key)) < 1:
            parser.error(f"--{key} must be at least 1, got {min(getattr(args, key))}")
    if args.data and args.table == "tables":
        parser.error("--data has 26 columns; --table tables draws rows of as many as it needs")
    arguments.check_criteo(parser, args)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; see --help.

    Returns:
      0; or 1 when a job failed, or restored other values than were saved.
    """
    args = parse(argv)
    console = open_console()
    try:
        with display(console) as progress:
            result = measure(args, progress)
    except output.ProcessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console.print(results.render(result))
    output.write(result, args, lambda text: console.print(text, highlight=False), results.plot)
    wrong = [mode for mode, equal in result["restores_equal"].items() if not equal]
    if wrong:
        print(f"error: {', '.join(wrong)}: rows differ from those saved", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
