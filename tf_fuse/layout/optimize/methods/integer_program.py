# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the cheapest choice by an integer program, solved by HiGHS.

    minimise    sum x[n,s] cost[n,s] + sum y[e,s,t] seconds[e,s,t]
    subject to  sum_s x[n,s] = 1                         for each operation n
                sum_t y[e,s,t] = x[a,s]                  for each edge e = (a, b), strategy s of a
                sum_s y[e,s,t] = x[b,t]                  likewise
                sum x memory[p] + sum y memory <= limit  for each time point p
                x in {0, 1}, y >= 0, y = 0 where there is no relayout

Alpa ("Automating inter- and intra-operator parallelism", Zheng et al., 2022, section 4.2) has a
program like it. Here y need not be an integer: it follows from x. In the program for the least
memory the limit is a variable, and all that is minimised.

HiGHS computes with floating-point numbers and tolerances. Its choice is added up again in whole
numbers. If the choice does not fit by these, a constraint excludes it, and HiGHS solves again.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_fuse.layout.optimize.methods.tables import INFINITE, Tables
from tf_fuse.layout.types.errors import LayoutError

# Largest number in a row: HiGHS's tolerances are absolute, about 1e-6.
_SCALE = 1e4
# HiGHS's tolerance for optimal answers.
_TOLERANCE = 1e-9
# Choices that may be excluded because they do not fit after all.
_MAX_EXCLUDED = 50
# Larger programs are solved in a process of their own, which can be ended.
_MAX_COLUMNS_HERE = 2000
# Seconds that such a process takes to begin; and HiGHS's share of the time that is left.
_START_SECONDS = 1.0
_SHARE = 0.8
# Its other output is redirected. It may compute for minutes, so the kernel
# ends it with the thread that waits for it (PR_SET_PDEATHSIG).
_PROGRAM = """
import ctypes, os, pickle, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that wanted the answer has ended")
answer = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
sys.path[:] = pickle.load(sys.stdin.buffer)
arguments = pickle.load(sys.stdin.buffer)
from scipy import optimize
found = optimize.milp(**arguments)
pickle.dump((found.status, found.x, found.get("mip_dual_bound")), answer)
answer.flush()
"""


@dataclasses.dataclass(frozen=True)
class ProgramAnswer:
    """HiGHS's answer.

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


# Of a program for which there was no time.
NOTHING = ProgramAnswer(None, -math.inf, False, False)


def solve(
    tables: Tables,
    max_nodes: int,
    time_limit_seconds: float | None = None,
    memory: bool = False,
    excluded: Sequence[Sequence[int]] = (),
) -> ProgramAnswer:
    """Solve the program.

    Args:
      tables: the problem.
      max_nodes: of branch and bound, each time that it is solved.
      time_limit_seconds: for all; None for no such limit. A small program, which is solved in this
        process, may take longer by what HiGHS does between two looks at its clock, which is well
        below a second.
      memory: find the least memory, whatever it costs and whatever the limit is.
      excluded: choices that are not to be returned.

    Raises:
      LayoutError: scipy is not installed.
    """
    done: list[tuple[int, ...]] = [tuple(one) for one in excluded]
    end = None if time_limit_seconds is None else time.monotonic() + time_limit_seconds
    for _ in range(_MAX_EXCLUDED):
        answer = _solve_once(tables, max_nodes, end, memory, done)
        limited = tables.without_limit() if memory else tables
        if answer.choice is None or limited.fits(answer.choice):
            return answer
        done.append(answer.choice)
    return ProgramAnswer(None, answer.bound, False, False)


def bound_in_picoseconds(bound: float, cost: int, optimal: bool) -> int:
    """Return the bound in whole picoseconds, allowing for HiGHS's tolerance."""
    # Costs are whole numbers: a choice within less than one of the bound is optimal.
    if optimal and cost - bound <= max(0.5, _TOLERANCE * cost):
        return cost
    return max(0, min(cost, math.floor(bound))) if math.isfinite(bound) else 0


def columns(tables: Tables) -> int:
    """Return the number of the program's variables."""
    return sum(tables.sizes) + sum(int((pair < INFINITE).sum()) for pair in tables.pairs.values())


def _solve_once(
    tables: Tables, max_nodes: int, end: float | None, memory: bool, excluded: list[tuple[int, ...]]
) -> ProgramAnswer:
    optimize = _scipy()
    large = columns(tables) > _MAX_COLUMNS_HERE
    if large and end is not None and end - time.monotonic() < _START_SECONDS:
        return NOTHING
    program = _Matrices(tables, memory)
    for choice in excluded:
        program.exclude(choice)
    arguments = program.arguments()
    left = None if end is None else end - time.monotonic()
    if large:
        result = _elsewhere(arguments, max_nodes, left)
    else:
        found = optimize.milp(options=_options(max_nodes, left), **arguments)
        result = found.status, found.x, found.get("mip_dual_bound")
    if result is None:
        return NOTHING
    status, x, dual = result
    if status == 2:
        return ProgramAnswer(None, math.inf, False, True)
    bound = -math.inf if dual is None or not math.isfinite(dual) else dual * program.unit
    return ProgramAnswer(None if x is None else program.choice(x), bound, status == 0, False)


def _options(max_nodes: int, seconds: float | None) -> dict[str, float]:
    found: dict[str, float] = {"node_limit": max_nodes, "mip_rel_gap": 0.0}
    return found if seconds is None else {**found, "time_limit": max(seconds, 1e-3)}


def _elsewhere(arguments: dict[str, Any], max_nodes: int, seconds: float | None) -> tuple | None:
    """Solve a program in a separate process, which is ended at the time limit.

    HiGHS looks at its clock now and then only, and may take minutes for a part of a large program.

    Returns:
      Status, values of columns and bound; None if it did not end in time.
    """
    share = None if seconds is None else _SHARE * (seconds - _START_SECONDS)
    options = _options(max_nodes, share)
    whole = pickle.dumps(sys.path) + pickle.dumps({**arguments, "options": options})
    command = [sys.executable, "-c", _PROGRAM, str(os.getpid())]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            timeout = None if seconds is None else max(seconds, 1e-3)
            out, errors = process.communicate(whole, timeout=timeout)
        except BaseException as error:
            # Also if the user interrupts the search: nobody waits for it then.
            process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                return None
            raise
    if process.returncode:
        raise LayoutError(
            f"HiGHS ended with {process.returncode}: {errors.decode(errors='replace')[-500:]}"
        )
    return pickle.loads(out)


def _scipy() -> Any:
    try:
        import scipy.optimize
    except ImportError as error:
        raise LayoutError(
            "this problem needs an integer program, and scipy is not installed: "
            'python -m pip install "tf_fuse[layout]"'
        ) from error
    return scipy.optimize


class _Matrices:
    """The matrices of the program."""

    def __init__(self, tables: Tables, memory: bool):
        self._tables = tables
        self._first = np.concatenate([[0], np.cumsum(tables.sizes)]).astype(int)
        # Rows, columns and values of the matrix's entries; and each row's limits.
        self._entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._limits: list[tuple[np.ndarray, np.ndarray]] = []
        self._rows = 0
        cost: list[np.ndarray] = list(tables.cost)
        self._columns = int(self._first[-1])
        nodes = np.repeat(np.arange(tables.size), tables.sizes)
        self._add(nodes, np.arange(self._columns), 1.0, np.ones(tables.size), 1.0)
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

    def _add(
        self, rows: np.ndarray, columns: np.ndarray, values: Any, low: np.ndarray, high: Any
    ) -> None:
        """Add rows, numbered from 0, with a lower bound for each."""
        self._entries.append((rows + self._rows, columns, np.broadcast_to(values, columns.shape)))
        self._limits.append((low, np.broadcast_to(high, low.shape)))
        self._rows += len(low)

    def _row(self, columns: np.ndarray, values: Any, low: float, high: float) -> None:
        self._add(np.zeros(len(columns), int), columns, values, np.array([low]), high)

    def _edge(self, a: int, b: int, pair: np.ndarray) -> np.ndarray:
        """Add the rows of an edge; return the costs of its columns, one per possible pair."""
        s, t = np.nonzero(pair < INFINITE)
        at = self._columns + np.arange(len(s))
        self._columns += len(s)
        for node, mine in ((a, s), (b, t)):
            own = np.arange(self._tables.sizes[node])
            self._add(
                np.concatenate([mine, own]),
                np.concatenate([at, self._first[node] + own]),
                np.concatenate([np.ones(len(at)), -np.ones(len(own))]),
                np.zeros(len(own)),
                0.0,
            )
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
        """Require that at least one operation has another strategy."""
        columns = self._first[:-1] + np.asarray(choice, int)
        self._row(columns, 1.0, -np.inf, len(choice) - 1.0)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `scipy.optimize.milp`."""
        from scipy import optimize, sparse

        rows, columns, values = (
            np.concatenate([one[i] for one in self._entries]) for i in range(3)
        )
        shape = self._rows, self._columns
        matrix = sparse.csr_array((values, (rows, columns)), shape=shape)
        low, high = (np.concatenate([one[i] for one in self._limits]) for i in range(2))
        whole = np.zeros(self._columns)
        whole[: self._first[-1]] = 1
        return {
            "c": self._objective,
            "integrality": whole,
            "bounds": optimize.Bounds(np.zeros(self._columns), self._upper),
            "constraints": optimize.LinearConstraint(matrix, low, high),
        }

    def choice(self, x: np.ndarray) -> tuple[int, ...]:
        """Return the strategies of a solution."""
        return tuple(
            int(np.argmax(x[start : start + size]))
            for start, size in zip(self._first[:-1], self._tables.sizes, strict=True)
        )
