# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What fused receives gain: stock TensorFlow, fused, and one process without a cluster, in turn.

    python benchmarks/fuse_recv/run.py --workload features --features 300 --json features.json
    python benchmarks/fuse_recv/run.py --workload rfc --json rfc.json
    python benchmarks/fuse_recv/run.py --workload bags --modes stock fused combine local
    python benchmarks/fuse_recv/run.py --workload adult --data adult.data --json adult.json
    python benchmarks/fuse_recv/run.py --workload criteo --data day_0.tsv --json criteo.json
    python benchmarks/fuse_recv/run.py --workload nothing --json nothing.json
    python benchmarks/fuse_recv/run.py --workload mixed --grouping level,consumer,cost
    python benchmarks/fuse_recv/run.py --modes stock fused all local --in-flight 2,4
    python benchmarks/fuse_recv/run.py --workload adult --steps-per-call 4,10

One value of `--grouping` is what the mode `fused` uses; of several, each is a mode of its own. The
mode `all` has the option `tf_fuse`, and `unique` has `fuse_lookups_unique`, too; `compressed` has
`compress="bfloat16"`, and `compressed_in_flight` four steps in flight besides. The losses of the
last three differ. `combine` is `fused` with `fuse_lookups_combine`. Each value of `--in-flight` is
a mode that has the option `steps_in_flight`, too; of `--steps-per-call`, one whose calls are
`tf_fuse.parameter_server.repeat(step, n)`, whose losses may differ in the last bit.

Each mode has processes of its own, warm and idle between its rounds, and every round runs all modes
one after the other, so whatever else the machine does meets all of them. The stock receives per
step are counted in a separate short run: the stock graphs under the protocol grpc+fuse with the
option off, where every receive is a single one and is counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.progress import Progress

from benchmarks.fuse_recv.options import (
    COMBINE,
    COMPRESSED,
    COMPRESSED_IN_FLIGHT,
    DATASETS,
    FEATURES_FIELD,
    GROUPINGS,
    IN_FLIGHT,
    PER_CALL,
    RECEIVES,
    UNIQUE,
    parse,
)
from benchmarks.fuse_recv.results import (
    compared_modes,
    comparison_of_groupings,
    comparison_of_losses,
    comparison_of_rounds,
    conclusion,
    fused_modes,
    machine,
    mode_numbers,
    pass_counters,
    plot,
    render,
)
from examples import compare
from examples.progress import display, open_console
from examples.session import Session, SessionError
from examples.wide_deep.data.common import DataError
from examples.wide_deep.train import prepare

_SETTINGS = (
    "features", "workers", "ps", "batch", "steps", "rounds", "seed", "synchronous", "grouping",
    "in_flight", "steps_per_call",
)  # fmt: skip


def specification(
    args: argparse.Namespace, work_dir: str, on_rows: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Return the sessions' specification (see `examples.job.run`), without the mode.

    Args:
      args: the command line.
      work_dir: folder for encoded data.
      on_rows: called with the number of rows encoded so far.

    Raises:
      DataError: a data file is missing or malformed.
    """
    spec: dict[str, Any] = {
        "workload": args.workload,
        "workers": args.workers,
        "ps": args.ps,
        "synchronous": args.synchronous,
        "options": {"batch": args.batch, "seed": args.seed},
    }
    if args.workload in FEATURES_FIELD:
        spec["options"][FEATURES_FIELD[args.workload]] = args.features
    if args.workload in DATASETS:
        data = prepare(
            args.workload, work_dir, train=args.data, rows=20_000, seed=args.seed, on_rows=on_rows
        )
        spec |= {"data": data.train, "source": data.source}
    return spec


def measure(args: argparse.Namespace, progress: Progress, work_dir: str) -> dict[str, Any]:
    """Run all modes in turn.

    Args:
      args: the command line.
      progress: gets a task per mode.
      work_dir: folder for encoded data.

    Returns:
      What `--json` writes.

    Raises:
      DataError: a data file is missing or malformed.
      SessionError: a mode's process failed.
    """
    if args.workload in DATASETS:
        bar = progress.add_task("encoding rows", total=None)
        spec = specification(args, work_dir, lambda n: progress.update(bar, completed=n))
        progress.update(bar, total=spec["data"]["rows"], completed=spec["data"]["rows"])
    else:
        spec = specification(args, work_dir)
    source = spec.pop("source", None)

    def counters(mode: str, session: Session) -> dict[str, Any]:
        return pass_counters(session.metrics())

    rounds, passes = compare.run_in_turn(
        {mode: compare.Variant({**spec, **variant(args, mode)}) for mode in args.modes},
        args.rounds,
        args.steps,
        progress,
        counters,
    )
    modes = {mode: mode_numbers(mode, rounds[mode]) for mode in args.modes}
    for mode in fused_modes(modes):
        modes[mode]["pass"] = passes[mode]
    if "stock" in modes and fused_modes(modes):
        modes["stock"]["recv_rpcs_per_step"] = compare.count_stock_recv_rpcs(spec, progress)
    return {
        "workload": args.workload,
        "settings": {key: getattr(args, key) for key in _SETTINGS},
        **({"data": source} if source else {}),
        "machine": machine(),
        "modes": modes,
        **compare.ratios(modes),
        **comparison_of_rounds(rounds),
        **comparison_of_groupings(rounds),
        **comparison_of_losses(modes, args.workers == 1 or args.synchronous),
    }


def variant(args: argparse.Namespace, mode: str) -> dict[str, Any]:
    """Return what the sessions of a mode have in their specification beside what all have."""
    if mode == "all":
        return {"mode": "fused", "fuse_options": {"tf_fuse": True}}
    if mode == UNIQUE:
        return {"mode": "fused", "fuse_options": {"tf_fuse": True, "fuse_lookups_unique": True}}
    if mode.startswith(IN_FLIGHT):
        number = int(mode.removeprefix(IN_FLIGHT))
        return {"mode": "fused", "fuse_options": {"tf_fuse": True, "steps_in_flight": number}}
    if mode.startswith(PER_CALL):
        return {"mode": "fused", "steps_per_call": int(mode.removeprefix(PER_CALL))}
    if mode == COMBINE:
        return {"mode": "fused", "fuse_options": {"fuse_lookups_combine": True}}
    if mode == RECEIVES:
        return {"mode": "fused", "fuse_options": {"fuse_operations": False}}
    if mode == COMPRESSED:
        return {"mode": "fused", "fuse_options": {"compress": "bfloat16"}}
    if mode == COMPRESSED_IN_FLIGHT:
        both = {"tf_fuse": True, "compress": "bfloat16", "steps_in_flight": 4}
        return {"mode": "fused", "fuse_options": both}
    if mode in GROUPINGS:
        return {"mode": "fused", "fuse_options": {"fuse_grouping": mode}}
    if mode != "fused" or len(args.grouping) != 1:
        return {"mode": mode}
    return {"mode": "fused", "fuse_options": {"fuse_grouping": args.grouping[0]}}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; see --help.

    Returns:
      0; or 1 when a mode failed, a file could not be read, or the losses of the modes on a cluster,
      which must be equal with one worker, are not.
    """
    args = parse(argv)
    console = open_console()
    with tempfile.TemporaryDirectory(prefix="tf_fuse_bench_") as work_dir:
        try:
            with display(console) as progress:
                result = measure(args, progress, work_dir)
        except (DataError, SessionError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    console.print(render(result))
    console.print(conclusion(result), highlight=False)
    for path in (args.json, args.plot):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
        console.print(f"all numbers: {args.json}", highlight=False)
    if args.plot:
        plot(result, args.plot)
        console.print(f"picture: {args.plot}", highlight=False)
    if not result.get("losses_equal", True):
        print(
            f"error: the losses of {' and '.join(compared_modes(result['modes']))} differ",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
