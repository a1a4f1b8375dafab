# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `compress="bfloat16"` does to a model: AUC of wide & deep with and without it, by seed.

    python benchmarks/fuse_recv/auc.py --dataset criteo --data criteo.csv --json auc.json
    python benchmarks/fuse_recv/auc.py --dataset adult --data adult.data --evaluation adult.test

Both train on a local cluster of one worker and two servers, one step after the other, from the same
initial values and on the same batches; a seed chooses both. Without --evaluation every fifth row of
the data is evaluated and not trained on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.table import Table

from examples.progress import open_console
from examples.session import Session, SessionError
from examples.wide_deep.data.common import DataError
from examples.wide_deep.train import prepare

_OPTIONS = {"float32": {}, "bfloat16": {"compress": "bfloat16"}}


def score(args: argparse.Namespace, seed: int) -> dict[str, dict[str, Any]]:
    """Train with one seed; return {"loss", "auc", "rows"} of the evaluation by variant.

    Raises:
      DataError: a data file is missing or malformed.
      SessionError: a variant's process failed.
    """
    with tempfile.TemporaryDirectory(prefix="tf_fuse_bench_") as folder:
        data = prepare(args.dataset, folder, train=args.data, evaluation=args.evaluation, seed=seed)
        found = {}
        for name, options in _OPTIONS.items():
            spec = {
                "mode": "fused",
                "fuse_options": options,
                "workload": args.dataset,
                "workers": 1,
                "ps": 2,
                "data": data.train,
                "evaluation": data.evaluation,
                "options": {"batch": args.batch, "seed": seed},
            }
            with Session(spec) as session:
                session.wait_ready()
                session.run(args.steps)
                found[name] = session.evaluate()
        return found


def summarize(scores: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Mean and sample deviation of the AUC by variant, and of the differences by seed."""
    auc = {name: [one[name]["auc"] for one in scores] for name in _OPTIONS}
    pairs = zip(auc["bfloat16"], auc["float32"], strict=True)
    values = {**auc, "difference": [ours - theirs for ours, theirs in pairs]}
    return {
        name: {
            "mean": statistics.mean(of_name),
            "deviation": statistics.stdev(of_name) if len(of_name) > 1 else 0.0,
        }
        for name, of_name in values.items()
    }


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare AUC with and without compress.")
    parser.add_argument("--dataset", choices=("adult", "criteo"), default="criteo")
    parser.add_argument("--data", type=Path, help="training rows; default: synthetic ones")
    parser.add_argument("--evaluation", type=Path, help="other rows to evaluate on")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--json", type=Path, help="write all numbers here")
    args = parser.parse_args(argv)
    for key in ("seeds", "batch", "steps"):
        if getattr(args, key) < 1:
            parser.error(f"--{key} must be at least 1, got {getattr(args, key)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; see --help.

    Returns:
      0; or 1 when a process failed or a file could not be read.
    """
    args = parse(argv)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    table = Table(title=f"{args.dataset}, {args.steps} steps of {args.batch} rows: AUC")
    for column in ("seed", *_OPTIONS, "rows evaluated"):
        table.add_column(column, justify="right")
    scores = []
    try:
        for seed in seeds:
            scores.append(score(args, seed))
            auc = [f"{scores[-1][name]['auc']:.4f}" for name in _OPTIONS]
            table.add_row(str(seed), *auc, str(scores[-1]["float32"]["rows"]))
    except (DataError, SessionError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    result = summarize(scores)
    console = open_console()
    console.print(table)
    for name, numbers in result.items():
        console.print(
            f"{name}: mean {numbers['mean']:.4f}, deviation {numbers['deviation']:.4f}",
            highlight=False,
        )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        settings = {key: str(value) for key, value in vars(args).items()}
        of_seeds = dict(zip(map(str, seeds), scores, strict=True))
        written = {"settings": settings, "seeds": of_seeds, "auc": result}
        args.json.write_text(json.dumps(written, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
