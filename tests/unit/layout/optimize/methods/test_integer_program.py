# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Integer programs: in a process of their own, without scipy, with choices that are excluded."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import numpy as np
import psutil
import pytest
from hypothesis import given, settings

from benchmarks.layout import exhaustive_search
from tests import scripted
from tests.unit.layout.optimize.problems import limited, problem
from tests.unit.layout.optimize.search_checks import SEEDS, WAYS
from tf_fuse.layout import LayoutError
from tf_fuse.layout.optimize import search
from tf_fuse.layout.optimize.methods import integer_program
from tf_fuse.layout.optimize.round_problem import tables_of

# Of `scipy.optimize.milp`.
LARGEST = {
    "c": -np.ones(1), "integrality": np.ones(1), "bounds": (0, 3),
    "constraints": (np.ones((1, 1)), -np.inf, 2.0),
}  # fmt: skip


def test_a_program_that_does_not_end_in_time_is_ended():
    assert integer_program._elsewhere(LARGEST, 9, 1e-3) is None
    found = integer_program._elsewhere(LARGEST, 9, None)
    assert found is not None and (found[0], found[1].tolist()) == (0, [2.0])


# Arguments with which the process of a program reports its number, and then waits for ever.
WAITS = """
import sys
from tf_fuse.layout.optimize.methods import integer_program

class Runs:
    def __init__(self, code):
        self.code = code

    def __reduce__(self):
        return eval, (self.code,)

says = Runs(f"open({sys.argv[1]!r}, 'w').write(str(os.getpid()))")
integer_program._elsewhere({"says": says, "waits": Runs("signal.pause()")}, 1, None)
"""


def test_a_process_of_a_program_ends_with_the_one_that_waits(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    parent = subprocess.Popen([sys.executable, "-c", WAITS, str(fifo)], cwd=scripted.ROOT)
    try:
        child = psutil.Process(int(fifo.read_text()))
    finally:
        parent.kill()
        parent.wait()
    _, alive = psutil.wait_procs([child], timeout=60)
    for process in alive:
        process.kill()
    assert alive == []


def test_a_process_of_a_program_that_fails_says_why():
    with pytest.raises(LayoutError) as caught:
        integer_program._elsewhere({"what": 1}, 9, None)
    assert str(caught.value).startswith("HiGHS ended with 1: Traceback")
    assert "unexpected keyword argument 'what'" in str(caught.value)


@given(seed=SEEDS)
@settings(max_examples=5, deadline=None)
def test_programs_of_their_own_process_have_the_same_answers(seed):
    tables = tables_of(problem(seed, "general"))
    here = integer_program.solve(tables, 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_program, "_MAX_COLUMNS_HERE", 0)
        assert integer_program.solve(tables, 100) == here
        assert integer_program.solve(tables, 100, 0.5).choice is None


def test_scipy_that_is_missing(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(LayoutError) as caught:
        search(limited(problem(5, "chain"), 16), limits=WAYS["program"])
    assert str(caught.value) == (
        "this problem needs an integer program, and scipy is not installed: "
        'python -m pip install "tf_fuse[layout]"'
    )
    assert search(problem(7, "general")).method == "elimination"


@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_a_choice_that_is_excluded(seed):
    tables = tables_of(problem(seed, "general", most_nodes=4))
    best = exhaustive_search.best(tables)
    answer = integer_program.solve(tables, 100, excluded=[best[2]])
    rest = [
        tables.cost_of(choice)
        for choice in itertools.product(*map(range, tables.sizes))
        if choice != best[2]
    ]
    assert (answer.choice is None) == (not rest)
    if rest:
        assert tables.cost_of(answer.choice) == min(rest)
