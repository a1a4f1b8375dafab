# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bytes of relayouts: planned, as other systems do them, and the least, over all pairs of layouts.

The layouts are those that DTensor has: each axis of the mesh splits at most one dimension, and each
dimension at most one axis splits. The least is found by brute force, over all sequences of slices,
all-gathers and all-to-alls over one axis each, through all layouts there are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.table import Table

from benchmarks.layout import baselines, brute_force
from tf_fuse.layout import ALL_STEPS, ONE_AXIS, Mesh, StepSet, TensorLayout, plan_relayout

# Sizes of the mesh's axes, and the number of the tensor's dimensions.
MESHES = (((2, 2), 2), ((2, 4), 2), ((2, 2, 2), 3))
_SIZE = 16  # elements along each dimension; ratios do not depend on it
_AXES = "xyz"
# What is compared with the least, and how its bytes are found.
WAYS: Mapping[str, str] = {
    "planned": "plan_relayout, one axis per step",
    "all_steps": "plan_relayout, steps over several axes",
    "default": "dtensor.relayout on CPU",
    "default_gather": "dtensor.relayout, real gathers",
    "greedy": "MindSpore's inference",
}
# Not compared where the values that they come to are wrong.
_DEFAULTS = ("default", "default_gather")


def measure(progress: Progress) -> list[dict[str, Any]]:
    """One row per mesh, for `--json`.

    Args:
      progress: gets a task for all pairs.
    """
    task = progress.add_task("pairs of layouts", total=None)
    return [_row(sizes, rank, lambda: progress.advance(task)) for sizes, rank in MESHES]


def _row(sizes: Sequence[int], rank: int, tick: Callable[[], None]) -> dict[str, Any]:
    mesh = Mesh(zip(_AXES, sizes, strict=False))
    shape = (_SIZE,) * rank
    ratios: dict[str, list[float]] = {way: [] for way in WAYS}
    sums, least = dict.fromkeys(WAYS, 0), dict.fromkeys(WAYS, 0)
    pairs = wrong = 0
    for source, target, optimum in _pairs(mesh, shape):
        tick()
        pairs += 1
        default = baselines.dtensor_default(source, target, 1, padded=True)
        wrong += not default.right
        for way, count in _bytes(source, target, default.received_bytes).items():
            if way in _DEFAULTS and not default.right:
                continue
            sums[way] += count
            least[way] += optimum
            ratios[way].append(count / optimum if optimum else 1.0 if not count else math.inf)
    return {
        "mesh": list(sizes),
        "rank": rank,
        "pairs": pairs,
        "wrong_default": wrong,
        **{f"{way}_over_optimum": sums[way] / least[way] for way in WAYS},
        **{f"worst_{way}": max(ratios[way]) for way in WAYS},
        **{f"worse_pairs_{way}": sum(ratio > 1 for ratio in ratios[way]) for way in WAYS},
    }


def _pairs(mesh: Mesh, shape: Sequence[int]) -> Iterator[tuple[TensorLayout, TensorLayout, int]]:
    """All pairs of different layouts that DTensor has, and the least bytes by brute force."""
    nodes = brute_force.layouts(mesh, shape, partial=False)
    best = brute_force.distances(nodes, joint=False, price=lambda _, count, __: count)
    plain = [i for i, one in enumerate(nodes) if all(len(axes) < 2 for axes in one.splits)]
    for i, j in itertools.permutations(plain, 2):
        yield nodes[i], nodes[j], int(best[i, j])


def _bytes(source: TensorLayout, target: TensorLayout, default: int) -> dict[str, int]:
    def planned(allowed: StepSet) -> int:
        return plan_relayout(source, target, 1, allowed=allowed).received_bytes

    return {
        "planned": planned(ONE_AXIS),
        "all_steps": planned(ALL_STEPS),
        "default": default,
        "default_gather": baselines.dtensor_default(source, target, 1).received_bytes,
        "greedy": baselines.mindspore_greedy(source, target, 1).received_bytes,
    }


def render(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows as a table: bytes over the least, of all pairs and of the worst one."""
    table = Table(
        title="bytes received over the least: all pairs together (worst pair; pairs above 1)\n"
        "of dtensor.relayout without the pairs whose values it gets wrong"
    )
    table.add_column("")
    for row in rows:
        sizes = "x".join(map(str, row["mesh"]))
        wrong = f", {row['wrong_default']} wrong" if row["wrong_default"] else ""
        table.add_column(
            f"{sizes}, rank {row['rank']}\n{row['pairs']} pairs{wrong}", justify="right"
        )
    for way, words in WAYS.items():
        cells = [
            f"{row[f'{way}_over_optimum']:.3f} ({row[f'worst_{way}']:.2f}; "
            f"{row[f'worse_pairs_{way}']})"
            for row in rows
        ]
        table.add_row(words, *cells)
    return table


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the ratios as bars, with the worst pair's above.

    Args:
      rows: what `measure` returned.
      path: the picture; its ending chooses the format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(WAYS)
    for i, (way, words) in enumerate(WAYS.items()):
        places = [at + (i - (len(WAYS) - 1) / 2) * width for at in range(len(rows))]
        axes.bar(places, [row[f"{way}_over_optimum"] for row in rows], width * 0.9, label=words)
        axes.plot(places, [row[f"worst_{way}"] for row in rows], "k_")
    axes.set_xticks(
        range(len(rows)),
        [f"{'x'.join(map(str, row['mesh']))}, rank {row['rank']}" for row in rows],
    )
    axes.axhline(1.0, lw=0.8, color="grey")
    axes.set_ylabel("bytes over the least\n(-: the worst pair)")
    axes.legend(fontsize=8)
    figure.savefig(path)
