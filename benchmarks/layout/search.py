# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How long searches take, and whether they find the best strategies.

    python benchmarks/layout/search.py --json search.json

`ms` is all from a model's operations, or from a training step that is still to be traced, to the
plan, with nothing known from before: strategies and relayouts and what they cost (`build_ms`), and
the search among them (`solve_ms`); medians of several, of processor time, other processes of the
search included. The cost is compared with the best of all choices where these can be counted
through; elsewhere, as of training steps, `optimum` is null, and `gap_seconds` is what the search
proves.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.progress import Progress
from rich.table import Table

from benchmarks.common import output
from benchmarks.layout import exhaustive_search, search_models
from examples.progress import display, open_console
from tf_fuse.layout import Link, Mesh, function_problem
from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.optimize import Plan, search
from tf_fuse.layout.optimize.graph_problem import GraphProblem, problem_of
from tf_fuse.layout.optimize.methods import prune
from tf_fuse.layout.optimize.methods.tables import PER_SECOND
from tf_fuse.layout.optimize.round_problem import tables_of
from tf_fuse.layout.strategies.insert_forks import with_forks
from tf_fuse.layout.types.operation import Operation

# A core of a server's processor, and 10 Gbit/s between machines.
LINK = Link(20e-6, 8e-10)
RATES = {"seconds_per_flop": 2e-11, "seconds_per_byte": 1e-10, "seconds_per_operation": 5e-6}
ROUNDS = 5


# For each model the numbers of layers on each mesh; on the small one all choices can be counted.
MODELS: Mapping[str, tuple[Callable[[int], Any], Mapping[tuple[int, ...], Sequence[int]]]] = {
    "mlp": (search_models.mlp, {(2,): (1, 2, 3), (2, 4): (2, 4, 12, 24, 48)}),
    "transformer": (search_models.transformer, {(2, 4): (1, 2, 6, 12, 24)}),
    "wide and deep": (search_models.wide_and_deep, {(2, 4): (3,)}),
    "resnet50": (search_models.resnet50, {(2, 4): (50,)}),
    "transformer step": (
        search_models.transformer_step,
        dict.fromkeys([(4,), (2, 2), (2, 4)], (1, 6, 12)),
    ),
}


def rates_on(mesh: Mesh) -> Rates:
    """Rates of a mesh whose axes are alike."""
    return Rates(mesh, dict.fromkeys(mesh.axes, LINK), **RATES)


def row(model: str, layers: int, mesh: Mesh, rounds: int = ROUNDS) -> dict[str, Any]:
    """Search a model, several times from the beginning; what is measured, for the JSON."""
    made = MODELS[model][0](layers)
    builds, solves = [], []
    for _ in range(rounds):
        forget()
        begin = _processor_seconds()
        graph = _graph(made, mesh)
        built = _processor_seconds()
        plan = search(graph.problem)
        builds.append((built - begin) * 1e3)
        solves.append((_processor_seconds() - built) * 1e3)
    both = [build + solve for build, solve in zip(builds, solves, strict=True)]
    return {
        "model": model,
        "layers": layers,
        "mesh": list(mesh.shape),
        "ms": statistics.median(both),
        "cost": plan.seconds,
        "optimum": None if isinstance(made, tuple) else optimum(graph, plan),
        "build_ms": statistics.median(builds),
        "solve_ms": statistics.median(solves),
        "gap_seconds": plan.gap_seconds,
        "data_parallel_cost": data_parallel_cost(graph),
        **_facts(graph, plan),
    }


def _graph(made: list[Operation] | tuple[Any, list[Any]], mesh: Mesh) -> GraphProblem:
    """Return the problem of operations, or of a function and what it takes."""
    if isinstance(made, tuple):
        function, args = made
        return function_problem(function, mesh, args, rates=rates_on(mesh)).graph
    return problem_of(with_forks(made), rates_on(mesh), training=True)


def _processor_seconds() -> float:
    """Of this process and of those that it waited for."""
    return sum(os.times()[:4])


def forget() -> None:
    """Empty what modules of `tf_fuse.layout` keep, as in a process that has just begun."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tf_fuse.layout"):
            for one in vars(module).values():
                if hasattr(one, "cache_clear"):
                    one.cache_clear()


def _facts(graph: GraphProblem, plan: Plan) -> dict[str, Any]:
    return {
        "operations": len(graph.operations),
        "strategies": max(map(len, graph.strategies)),
        "computed": plan.computed,
        "reused": plan.reused,
        "method": plan.method,
    }


def data_parallel_cost(graph: GraphProblem) -> float:
    """Seconds where the batch alone is split."""
    return search(graph.problem, "data").seconds


def optimum(graph: GraphProblem, plan: Plan) -> float | None:
    """Return the cost of the best of all choices, counted through; None if there are too many.

    Strategies that another one of the operation beats in everything are not counted, and parts of
    choices that cost more than the plan already are not continued.
    """
    tables = prune.undominated(tables_of(graph.problem))
    found = exhaustive_search.cheapest(tables, plan.picoseconds)
    return None if found is None else found / PER_SECOND


def measure(
    progress: Progress, models: Sequence[str] = tuple(MODELS), most: int = 50
) -> list[dict[str, Any]]:
    """Measure searches.

    Args:
      progress: gets a task for all problems.
      models: names of `MODELS`.
      most: layers, at most.

    Returns:
      A row for each model, number of layers and mesh.
    """
    wanted = [
        (name, layers, mesh)
        for name in models
        for mesh, counts in MODELS[name][1].items()
        for layers in counts
        if layers <= most
    ]
    task = progress.add_task("searches", total=len(wanted))
    found = []
    for name, layers, sizes in wanted:
        found.append(row(name, layers, Mesh(list(zip("xyz", sizes, strict=False)))))
        progress.advance(task)
    return found


def render(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a table of rows, for `rich.print`."""
    made = Table()
    columns = ("layers", "operations", "strategies", "search ms", "of it solving", "step ms",
               "data parallel ms", "optimum ms")  # fmt: skip
    made.add_column("model")
    for name in columns:
        made.add_column(name, justify="right")
    for one in rows:
        best = one["optimum"]
        made.add_row(
            f"{one['model']} on {'x'.join(map(str, one['mesh']))}",
            str(one["layers"]),
            str(one["operations"]),
            str(one["strategies"]),
            f"{one['ms']:.0f}",
            f"{one['solve_ms']:.0f}",
            f"{one['cost'] * 1e3:.3f}",
            f"{one['data_parallel_cost'] * 1e3:.3f}",
            "" if best is None else f"{best * 1e3:.3f}",
        )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; see --help.

    Returns:
      0.
    """
    parser = argparse.ArgumentParser(description="Measure searches of strategies.")
    parser.add_argument("--models", default=",".join(MODELS), help="separated by commas")
    parser.add_argument("--most", type=int, default=50, help="layers, at most")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    args = parser.parse_args(argv)
    models = [one for one in args.models.split(",") if one]
    if not models or set(models) - set(MODELS):
        parser.error(f"--models takes {', '.join(MODELS)}, got {args.models or 'nothing'}")
    console = open_console()
    with display(console) as progress:
        rows = measure(progress, models, args.most)
    console.print(render(rows))
    args.plot = None
    output.write({"search": rows}, args, console.print, lambda result, path: None)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
