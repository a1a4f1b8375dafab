# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How long searches take, and whether they find the best strategies.

    python benchmarks/layout_search.py --json search.json

A model's problem is built from its operations' rules and relayouts once (`build_ms`), and then
searched several times. The cost is compared with the best of all choices where these can be counted
through; elsewhere `optimum` is null, and `gap_seconds` is what the search proves.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import output
from examples.progress import display
from tf_fuse.layout import Link, Mesh
from tf_fuse.layout.cost import Rates
from tf_fuse.layout.operation import Operation, Tensor
from tf_fuse.layout.optimize import Plan, brute_force, prune, search
from tf_fuse.layout.optimize.graph import GraphProblem, problem_of
from tf_fuse.layout.optimize.tables import PER_SECOND, tables_of

# A core of a server's processor, and 10 Gbit/s between machines.
LINK = Link(20e-6, 8e-10)
RATES = {"seconds_per_flop": 2e-11, "seconds_per_byte": 1e-10, "seconds_per_operation": 5e-6}
ROUNDS = 5
# That are counted through.
MOST_CHOICES = 300_000


def mlp(layers: int, batch: int = 1024, width: int = 2048) -> list[Operation]:
    """Dense layers with a bias and a ReLU, and the mean of squares as the loss."""
    found = _Graph()
    x = found.fed("x", (batch, width))
    for i in range(layers):
        with_bias = found.dense(f"l{i}", x, width)
        x = found.make(f"l{i}.relu", "Relu", [with_bias], (batch, width))
    found.loss(x)
    return found.operations


def transformer(
    layers: int, batch: int = 32, length: int = 128, width: int = 512, heads: int = 8
) -> list[Operation]:
    """Blocks of attention and of two dense layers, each with layer norm and a residual."""
    found = _Graph()
    x = found.fed("x", (batch, length, width))
    size = width // heads
    for i in range(layers):
        name = f"b{i}"
        normed = found.norm(f"{name}.norm1", x)
        projections = [
            found.einsum(f"{name}.{part}", "blm,mhd->bhld", normed, (width, heads, size),
                         (batch, heads, length, size))
            for part in "qkv"
        ]  # fmt: skip
        scores = found.make(
            f"{name}.scores", "BatchMatMulV2", projections[:2], (batch, heads, length, length),
            adj_y=True,
        )  # fmt: skip
        weights = found.make(f"{name}.softmax", "Softmax", [scores], scores.shape)
        mixed = found.make(
            f"{name}.mix", "BatchMatMulV2", [weights, projections[2]], projections[2].shape
        )
        joined = found.einsum(f"{name}.out", "bhld,hdm->blm", mixed, (heads, size, width), x.shape)
        x = found.make(f"{name}.add1", "AddV2", [x, joined], x.shape)
        normed = found.norm(f"{name}.norm2", x)
        wide = (batch, length, 4 * width)
        up = found.einsum(f"{name}.up", "blm,mf->blf", normed, (width, 4 * width), wide)
        relu = found.make(f"{name}.relu", "Relu", [up], wide)
        down = found.einsum(f"{name}.down", "blf,fm->blm", relu, (4 * width, width), x.shape)
        x = found.make(f"{name}.add2", "AddV2", [x, down], x.shape)
    found.loss(x)
    return found.operations


class _Graph:
    """Operations that are added one by one."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def fed(self, name: str, shape: Sequence[int]) -> Tensor:
        return Tensor(name, tuple(shape))

    def make(
        self,
        name: str,
        kind: str,
        inputs: Sequence[Tensor],
        shape: Sequence[int],
        **attributes: Any,
    ) -> Tensor:
        made = Tensor(name, tuple(shape))
        self.operations.append(Operation(name, kind, inputs, [made], attributes))
        return made

    def dense(self, name: str, x: Tensor, width: int) -> Tensor:
        weight = Tensor(f"{name}.w", (x.shape[-1], width), parameter=True)
        bias = Tensor(f"{name}.bias", (width,), parameter=True)
        shape = (*x.shape[:-1], width)
        product = self.make(f"{name}.matmul", "MatMul", [x, weight], shape)
        return self.make(f"{name}.add", "BiasAdd", [product, bias], shape)

    def einsum(
        self, name: str, equation: str, x: Tensor, weight: Sequence[int], shape: Sequence[int]
    ) -> Tensor:
        parameter = Tensor(f"{name}.w", tuple(weight), parameter=True)
        return self.make(name, "Einsum", [x, parameter], shape, equation=equation)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Layer norm: mean and variance of the last dimension, a scale and a bias."""
        rows = (*x.shape[:-1], 1)
        last = len(x.shape) - 1
        mean = self.make(f"{name}.mean", "Mean", [x], rows, axes=(last,), keep_dims=True)
        centred = self.make(f"{name}.centred", "Sub", [x, mean], x.shape)
        square = self.make(f"{name}.square", "Square", [centred], x.shape)
        variance = self.make(f"{name}.var", "Mean", [square], rows, axes=(last,), keep_dims=True)
        rsqrt = self.make(f"{name}.rsqrt", "Rsqrt", [variance], rows)
        scaled = self.make(f"{name}.scaled", "Mul", [centred, rsqrt], x.shape)
        gamma = Tensor(f"{name}.gamma", (x.shape[-1],), parameter=True)
        return self.make(f"{name}.gain", "Mul", [scaled, gamma], x.shape)

    def loss(self, x: Tensor) -> Tensor:
        square = self.make("square", "Square", [x], x.shape)
        axes = tuple(range(len(x.shape)))
        return self.make("loss", "Mean", [square], (), axes=axes, keep_dims=False)


# For each model the numbers of layers on each mesh; on the small one all choices can be counted.
MODELS: Mapping[
    str, tuple[Callable[[int], list[Operation]], Mapping[tuple[int, ...], Sequence[int]]]
] = {
    "mlp": (mlp, {(2,): (1, 2), (2, 4): (2, 4, 12, 24, 48)}),
    "transformer": (transformer, {(2, 4): (1, 2, 6, 12, 24)}),
}


def rates_on(mesh: Mesh) -> Rates:
    """Rates of a mesh whose axes are alike."""
    return Rates(mesh, dict.fromkeys(mesh.axes, LINK), **RATES)


def row(model: str, layers: int, mesh: Mesh, rounds: int = ROUNDS) -> dict[str, Any]:
    """Builds a problem and searches it; what is measured, for the JSON."""
    begin = time.perf_counter()
    graph = problem_of(MODELS[model][0](layers), rates_on(mesh), training=True)
    build = time.perf_counter() - begin
    spans = []
    for _ in range(rounds):
        begin = time.perf_counter()
        plan = search(graph.problem)
        spans.append((time.perf_counter() - begin) * 1e3)
    return {
        "model": model,
        "layers": layers,
        "mesh": list(mesh.shape),
        "ms": statistics.median(spans),
        "cost": plan.seconds,
        "optimum": optimum(graph),
        "build_ms": build * 1e3,
        "gap_seconds": plan.gap_seconds,
        "data_parallel_cost": data_parallel_cost(graph),
        **_facts(graph, plan),
    }


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


def optimum(graph: GraphProblem) -> float | None:
    """The cost of the best of all choices, counted through; None if there are too many.

    Strategies that another one of the operation beats in everything are not counted.
    """
    tables = prune.undominated(tables_of(graph.problem))
    if brute_force.count(tables) > MOST_CHOICES:
        return None
    found = brute_force.best(tables)
    return None if found is None else found[0] / PER_SECOND


def measure(
    progress: Progress, models: Sequence[str] = tuple(MODELS), most: int = 48
) -> list[dict[str, Any]]:
    """Measures searches.

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
    """A table of rows, for `rich.print`."""
    made = Table()
    columns = ("layers", "operations", "strategies", "build ms", "search ms", "step ms",
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
            f"{one['build_ms']:.0f}",
            f"{one['ms']:.1f}",
            f"{one['cost'] * 1e3:.3f}",
            f"{one['data_parallel_cost'] * 1e3:.3f}",
            "" if best is None else f"{best * 1e3:.3f}",
        )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and prints its table; see --help.

    Returns:
      0.
    """
    parser = argparse.ArgumentParser(description="Measure searches of strategies.")
    parser.add_argument("--models", default=",".join(MODELS), help="separated by commas")
    parser.add_argument("--most", type=int, default=48, help="layers, at most")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    args = parser.parse_args(argv)
    models = [one for one in args.models.split(",") if one]
    if not models or set(models) - set(MODELS):
        parser.error(f"--models takes {', '.join(MODELS)}, got {args.models or 'nothing'}")
    console = Console()
    with display(console) as progress:
        rows = measure(progress, models, args.most)
    console.print(render(rows))
    args.plot = None
    output.write({"search": rows}, args, console.print, lambda result, path: None)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
