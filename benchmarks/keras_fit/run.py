# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What Keras's `fit` on parameter servers takes per step, against a custom loop and tf_keras.

    python benchmarks/keras_fit/run.py --steps-in-flight 1 4 --json keras_fit.json

* `loop`: a custom loop with `ClusterCoordinator`; each worker reads its own dataset.
* `loop_mean`: the same with a metric, the mean loss, as in TensorFlow's tutorial and in `fit`.
* `fit`: Keras 3 with `tf_fuse.keras`; workers read datasets that a function makes.
* `fit_coordinator`: same; the coordinator reads one dataset.
* `tf_keras`: tf_keras's own `fit` on stock TensorFlow: protocol `grpc`, the plugin is not loaded.

The rows have Criteo's columns: those of a file (`--data`), or drawn. All but the last have the
option `tf_fuse`. Each variant has processes of its own, warm and idle while another one runs; a
round runs each once. Rounds of `fit` are epochs. Each trains as many steps before the first round.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.progress import Progress
from rich.table import Table

from benchmarks.common import arguments, output
from benchmarks.fuse_recv.results import machine
from examples import compare
from examples.progress import display, open_console
from examples.session import Session, SessionError

VARIANTS = ("loop", "loop_mean", "fit", "fit_coordinator", "tf_keras")
_SETTINGS = (
    "batch", "data", "dim", "metrics", "ps", "rows", "seed", "steps", "steps_per_execution",
    "width", "workers",
)  # fmt: skip
_FIRST = "fit"  # The others are compared with it.


def measure(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """Run all variants in turn.

    Args:
      args: the command line.
      progress: gets a task.

    Returns:
      What `--json` writes.

    Raises:
      SessionError: a variant's process failed.
    """
    settings = {key: getattr(args, key) for key in _SETTINGS}
    rows = [
        (name, count)
        for count in args.steps_in_flight
        for name in args.variants
        if name != "tf_keras" or count == args.steps_in_flight[0]
    ]
    rounds: dict[tuple[str, int], list[dict[str, Any]]] = {row: [] for row in rows}
    script = Path(__file__).with_name("variant.py")
    warm = progress.add_task("warm up", total=len(rows))
    task = progress.add_task("rounds", total=args.rounds * len(rows))
    with contextlib.ExitStack() as stack:
        sessions = {}
        for name, count in rows:
            spec = {
                **settings, "rounds": args.rounds, "mode": f"{name}, {count} in flight",
                "variant": name, "steps_in_flight": count,
            }  # fmt: skip
            sessions[name, count] = stack.enter_context(Session(spec, program=script))
            sessions[name, count].wait_ready()
            progress.advance(warm)
        for number in range(args.rounds):
            for row in rows if number % 2 == 0 else reversed(rows):  # None always comes first.
                found = sessions[row].run(args.steps)
                rounds[row].append({key: found[key] for key in found if key != "event"})
                progress.advance(task)
    return {
        "settings": {**settings, "rounds": args.rounds},
        "machine": machine(),
        "rows": [
            {
                "variant": name,
                "steps_in_flight": count,
                **{key: compare.spread(one[key] for one in found) for key in found[0]},
                **ratios(rounds, name, count),
            }
            for (name, count), found in rounds.items()
        ],
    }


def ratios(
    rounds: Mapping[tuple[str, int], Sequence[Mapping[str, Any]]], name: str, count: int
) -> dict[str, Any]:
    """Compare the time per step of a row with that of others, of each round.

    Args:
      rounds: what each round gave, by variant and number of steps in flight.
      name: of the row's variant.
      count: its number of steps in flight.

    Returns:
      "over_fit": its time over that of `fit` with as many in flight; above 1, `fit` is faster.
      "speedup": the time of the variant with the first number in flight over its time. What the
        row itself is compared with has neither.
    """

    def over(above: Any, below: Any) -> dict[str, float]:
        pairs = zip(rounds[above], rounds[below], strict=True)
        return compare.spread(one["ms_per_step"] / other["ms_per_step"] for one, other in pairs)

    row, fit, first = (name, count), (_FIRST, count), next(key for key in rounds if key[0] == name)
    return {
        **({"over_fit": over(row, fit)} if fit in rounds and fit != row else {}),
        **({"speedup": over(first, row)} if first != row else {}),
    }


def render(result: Mapping[str, Any]) -> Table:
    """Return the result as a table, a row per variant."""
    settings = result["settings"]
    table = Table(
        title=f"wide & deep: {settings['workers']} worker(s), {settings['ps']} server(s), batch "
        f"{settings['batch']}, {'rows of a file' if settings['data'] else 'drawn rows'}\n"
        f"{settings['rounds']} rounds of {settings['steps']} steps"
    )
    table.add_column("variant")
    for column in ("in flight", "ms per step\nmedian (min to max)",
                   "CPU ms per step:\ncoordinator", "tasks", "time over fit's",
                   "speed-up by\nin flight"):  # fmt: skip
        table.add_column(column, justify="right")
    for row in result["rows"]:
        ratios = (row.get("over_fit"), row.get("speedup"))
        table.add_row(
            row["variant"],
            str(row["steps_in_flight"]),
            output.span(row["ms_per_step"], ".2f"),
            output.span(row["cpu_ms_per_step"], ".2f"),
            output.span(row["tasks_cpu_ms_per_step"], ".2f"),
            *(output.span(one, ".2f") if one else "" for one in ratios),
        )
    return table


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Draw the time per step of each variant.

    Args:
      result: what `measure` returned.
      path: the picture; its ending chooses the format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    names = [f"{row['variant']}\n{row['steps_in_flight']} in flight" for row in result["rows"]]
    times = [row["ms_per_step"] for row in result["rows"]]
    medians = [one["median"] for one in times]
    spans = [[one["median"] - one["min"] for one in times],
             [one["max"] - one["median"] for one in times]]  # fmt: skip
    axes.bar_label(axes.bar(names, medians, yerr=spans, capsize=4), fmt="%.1f", label_type="center")
    axes.set_ylabel("ms per step")
    figure.savefig(path)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare fit with custom loops and tf_keras.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--data", help="a file in Criteo's format, instead of drawn rows")
    parser.add_argument("--rows", type=int, default=1000, help="of each table")
    parser.add_argument("--dim", type=int, default=8, help="columns of each embedding")
    parser.add_argument("--width", type=int, default=64, help="of the first hidden layer")
    parser.add_argument("--metrics", action="store_true", help="with AUC")
    parser.add_argument("--steps", type=int, default=300, help="that count, of all workers")
    parser.add_argument("--steps-per-execution", type=int, default=1)
    parser.add_argument(
        "--steps-in-flight", type=int, nargs="+", default=[1],
        help="each variant runs with each number; tf_keras once",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--plot", type=Path, help="write a picture here")
    args = parser.parse_args(argv)
    args.variants = list(dict.fromkeys(args.variants))
    args.steps_in_flight = list(dict.fromkeys(args.steps_in_flight))
    arguments.check_counts(
        parser, args, ("batch", "ps", "rounds", "steps", "workers", "steps_per_execution")
    )
    if min(args.steps_in_flight) < 1:
        parser.error(f"--steps-in-flight: {min(args.steps_in_flight)} is below 1")
    arguments.check_criteo(parser, args)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; see --help.

    Returns:
      0; or 1 when a variant failed.
    """
    args = parse(argv)
    console = open_console()
    try:
        with display(console) as progress:
            result = measure(args, progress)
    except SessionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console.print(render(result))
    output.write(result, args, lambda text: console.print(text, highlight=False), plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
