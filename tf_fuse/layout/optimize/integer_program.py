# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The cheapest choice by an integer program, solved by HiGHS.

    minimise    sum x[n,s] cost[n,s] + sum y[e,s,t] seconds[e,s,t]
    subject to  sum_s x[n,s] = 1                         for each operation n
                sum_t y[e,s,t] = x[a,s]                  for each edge e = (a, b), strategy s of a
                sum_s y[e,s,t] = x[b,t]                  likewise
                sum x memory[p] + sum y memory <= limit  for each time point p
                x in {0, 1}, y >= 0, y = 0 where there is no relayout

Alpa ("Automating inter- and intra-operator parallelism", Zheng et al., 2022, section 4.2) has a
program like it. Here y need not be an integer: it follows from x. In the program for the least
memory the limit is a variable, and all that is minimised.

HiGHS computes with floating-point numbers and tolerances. What it finds is added up again in whole
numbers; a choice that does not fit by these is excluded by a constraint, and the program solved
again.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_fuse.layout.errors import LayoutError
from tf_fuse.layout.optimize.tables import INFINITE, Tables

# Largest number in a row: HiGHS's tolerances are absolute, about 1e-6.
_SCALE = 1e4
# Choices that may be excluded because they do not fit after all.
_MAX_EXCLUDED = 50


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the program gave.

    Attributes:
      choice: the best that was found and fits; None if there is none, or none was found.
      bound: no choice is better, in picoseconds or bytes; infinite if none fits.
      optimal: whether HiGHS proved its answer, within its tolerance of 1e-9 of the largest number.
      infeasible: whether it proved that no choice fits.
    """

    choice: tuple[int, ...] | None
    bound: float
    optimal: bool
    infeasible: bool


def solve(
    tables: Tables,
    time_limit_seconds: float,
    memory: bool = False,
    excluded: Sequence[Sequence[int]] = (),
) -> Answer:
    """Solves the program.

    Args:
      tables: the problem.
      time_limit_seconds: for HiGHS, which looks at its clock now and then only.
      memory: find the least memory, whatever it costs and whatever the limit is.
      excluded: choices that are not to be returned.

    Raises:
      LayoutError: scipy is not installed.
    """
    done: list[tuple[int, ...]] = [tuple(one) for one in excluded]
    end = time.monotonic() + time_limit_seconds
    for _ in range(_MAX_EXCLUDED):
        answer = _solve_once(tables, end - time.monotonic(), memory, done)
        limited = tables.without_limit() if memory else tables
        if answer.choice is None or limited.fits(answer.choice):
            return answer
        done.append(answer.choice)
    return Answer(None, answer.bound, False, False)


def columns(tables: Tables) -> int:
    """Number of the program's variables."""
    return sum(tables.sizes) + sum(int((pair < INFINITE).sum()) for pair in tables.pairs.values())


def _solve_once(
    tables: Tables, time_limit_seconds: float, memory: bool, excluded: list[tuple[int, ...]]
) -> Answer:
    optimize = _scipy()
    program = _Program(tables, memory)
    for choice in excluded:
        program.exclude(choice)
    options = {"time_limit": max(time_limit_seconds, 1e-3), "mip_rel_gap": 0.0}
    result = optimize.milp(options=options, **program.arguments())
    if result.status == 2:
        return Answer(None, math.inf, False, True)
    dual = result.get("mip_dual_bound")
    bound = -math.inf if dual is None or not math.isfinite(dual) else dual * program.unit
    found = None if result.x is None else program.choice(result.x)
    return Answer(found, bound, result.status == 0, False)


def _scipy() -> Any:
    try:
        import scipy.optimize
    except ImportError as error:
        raise LayoutError(
            "this problem needs an integer program, and scipy is not installed: "
            'python -m pip install "tf_fuse[layout]"'
        ) from error
    return scipy.optimize


class _Program:
    """The matrices of the program."""

    def __init__(self, tables: Tables, memory: bool):
        self._tables = tables
        self._memory = memory
        self._first = np.concatenate([[0], np.cumsum(tables.sizes)]).astype(int)
        self._rows: list[tuple[np.ndarray, np.ndarray, float, float]] = []
        cost: list[np.ndarray] = list(tables.cost)
        self._columns = int(self._first[-1])
        for node, start in enumerate(self._first[:-1]):
            self._row(start + np.arange(tables.sizes[node]), 1.0, 1.0, 1.0)
        between: list[np.ndarray] = []
        for key, pair in tables.pairs.items():
            cost.append(self._edge(*key, pair))
            held = np.broadcast_to(tables.between(key), pair.shape)
            between.append(held[pair < INFINITE])
        self._between = np.concatenate([np.zeros(0, np.int64), *between])
        costs = np.concatenate(cost)
        self._upper = np.where(costs >= INFINITE, 0.0, 1.0)
        costs = np.where(costs >= INFINITE, 0, costs)
        if memory:
            self._least_memory(costs)
        else:
            self.unit = max(1.0, costs.max(initial=0) / _SCALE)
            self._objective = costs / self.unit
            if tables.limit is not None:
                self._limit(tables.limit)

    def _row(self, columns: np.ndarray, values: Any, low: float, high: float) -> None:
        self._rows.append((columns, np.broadcast_to(values, columns.shape), low, high))

    def _edge(self, a: int, b: int, pair: np.ndarray) -> np.ndarray:
        """Rows of an edge; returns the costs of its columns: the pairs that can be."""
        s, t = np.nonzero(pair < INFINITE)
        at = self._columns + np.arange(len(s))
        self._columns += len(s)
        for node, mine in ((a, s), (b, t)):
            for strategy in range(self._tables.sizes[node]):
                own = at[mine == strategy]
                columns = np.append(own, self._first[node] + strategy)
                self._row(columns, np.append(np.ones(len(own)), -1.0), 0.0, 0.0)
        return pair[s, t]

    def _memory_rows(self) -> list[np.ndarray]:
        points = range(self._tables.points)
        return [np.concatenate([*self._tables.memory_at(p), self._between]) for p in points]

    def _limit(self, limit: int) -> None:
        for row in self._memory_rows():
            unit = max(1.0, row.max(initial=0) / _SCALE)
            at = np.flatnonzero(row)
            self._row(at, row[at] / unit, -np.inf, limit / unit)

    def _least_memory(self, costs: np.ndarray) -> None:
        rows = self._memory_rows()
        self.unit = max(1.0, max(row.max(initial=0) for row in rows) / _SCALE)
        for row in rows:
            at = np.flatnonzero(row)
            values = np.append(row[at] / self.unit, -1.0)
            self._row(np.append(at, self._columns), values, -np.inf, 0.0)
        self._objective = np.append(np.zeros(len(costs)), 1.0)
        self._upper = np.append(self._upper, np.inf)
        self._columns += 1

    def exclude(self, choice: tuple[int, ...]) -> None:
        """At least one operation is to have another strategy."""
        columns = self._first[:-1] + np.asarray(choice, int)
        self._row(columns, 1.0, -np.inf, len(choice) - 1.0)

    def arguments(self) -> dict[str, Any]:
        """Of `scipy.optimize.milp`."""
        from scipy import optimize, sparse

        counts = [len(columns) for columns, _, _, _ in self._rows]
        matrix = sparse.csr_array(
            (
                np.concatenate([values for _, values, _, _ in self._rows]),
                np.concatenate([columns for columns, _, _, _ in self._rows]),
                np.concatenate([[0], np.cumsum(counts)]),
            ),
            shape=(len(self._rows), self._columns),
        )
        low, high = ([row[i] for row in self._rows] for i in (2, 3))
        whole = np.zeros(self._columns)
        whole[: self._first[-1]] = 1
        return {
            "c": self._objective,
            "integrality": whole,
            "bounds": optimize.Bounds(np.zeros(self._columns), self._upper),
            "constraints": optimize.LinearConstraint(matrix, low, high),
        }

    def choice(self, x: np.ndarray) -> tuple[int, ...]:
        """The strategies of a solution."""
        return tuple(
            int(np.argmax(x[start : start + size]))
            for start, size in zip(self._first[:-1], self._tables.sizes, strict=True)
        )
