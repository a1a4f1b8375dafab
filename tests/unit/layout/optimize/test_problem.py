# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Problems: the errors of each part; and what the random ones of the tests hold."""

from __future__ import annotations

import dataclasses

import numpy as np

from tests.unit.layout.optimize import problems as layout_problems
from tests.unit.layout.optimize.plan_examples import error
from tests.unit.layout.optimize.problems import problem
from tf_fuse.layout.optimize import Candidate, Edge, Node, Problem, search


def test_errors_of_problems():
    node = Node("a", (Candidate("s"),))
    nan, inf = float("nan"), float("inf")
    assert error(Problem, [node, node]) == (
        "operation 'a' is there 2 times; give each its own name"
    )
    assert error(Problem, [Node("a", ())]) == (
        "operation 'a' has no strategies; give it one at least, as to replicate it"
    )
    assert error(Problem, [Node("a", (Candidate("s"), Candidate("s")))]) == (
        "operation 'a' has strategy 's' 2 times; give each its own name"
    )
    bad = Candidate("s", nan, inf, -1, 1.5)  # type: ignore[arg-type]
    assert error(Problem, [Node("a", (bad,), live=(0, 1))]) == (
        "- operation 'a', strategy 's': communication_seconds is a finite number, 0 or more, got "
        "inf\n"
        "- operation 'a', strategy 's': compute_seconds is a finite number, 0 or more, got nan\n"
        "- operation 'a', strategy 's': memory_bytes is a whole number, 0 or more, got -1\n"
        "- operation 'a', strategy 's': transient_bytes is a whole number, 0 or more, got 1.5"
    )
    assert error(Problem, [dataclasses.replace(node, live=(2, 1))]) == (
        "operation 'a' is live from 2 to 1; give first <= last"
    )
    assert error(Problem, [Node("a", (Candidate("s", transient_bytes=1),))]) == (
        "operation 'a' has transient_bytes, but no time points; set live"
    )
    assert error(Problem, [node], memory_limit_bytes=-1) == (
        "memory_limit_bytes is a whole number, 0 or more, or None, got -1"
    )
    two = [node, Node("b", (Candidate("s"), Candidate("t")))]
    assert error(Problem, two, [Edge("a", "c", np.zeros((1, 1)), "x")]) == (
        "edge a -> c (x): unknown operation 'c'; known operations: a, b"
    )
    assert error(Problem, two, [Edge("a", "a", np.zeros((1, 1)))]) == (
        "edge a -> a leads back to itself; add its cost to that of the strategies"
    )
    assert error(Problem, two, [Edge("a", "b", np.zeros((2, 1)))]) == (
        "edge a -> b has seconds of shape (2, 1), but its operations have 1 and 2 strategies; give "
        "one number for each pair"
    )
    assert error(Problem, two, [Edge("a", "b", np.zeros((1, 2)), "", np.zeros(2, int))]) == (
        "edge a -> b has memory_bytes of shape (2,), but its operations have 1 and 2 strategies; "
        "give one number for each pair"
    )
    for value in (nan, -1.0):
        assert error(Problem, two, [Edge("a", "b", np.array([[0, value]]))]) == (
            f"edge a -> b: seconds[0, 1] is 0 or more, or infinite, got {value}"
        )
    assert error(Problem, two, [Edge("a", "b", np.zeros((1, 2)), "", np.zeros((1, 2)))]) == (
        "edge a -> b: memory_bytes are whole numbers, 0 or more"
    )
    many = Problem([dataclasses.replace(node, name=f"n{i:02}") for i in range(11)])
    assert error(many.node, "x") == (
        "unknown operation 'x'; known operations: n00, n01, n02, n03, n04, n05, n06, n07 and 3 more"
    )
    assert error(search, Problem([Node("a", (Candidate("s", 2e6),))])) == (
        "a: 2e+18 is too large; times are below 1152922 seconds and memory below "
        "1152921504606846976 bytes"
    )
    slow = Candidate("s", 1e6)
    assert error(search, Problem([Node("a", (slow,)), Node("b", (slow,))])) == (
        "the largest costs add up to 2e+06 seconds and 0 bytes; the sums are to be below 1152922 "
        "seconds and 1152921504606846976 bytes"
    )


def test_problems_of_tests_are_what_they_say():
    """Each kind of graph is there, and infinite entries are."""
    kinds = {
        kind: {len(problem(seed, kind).edges) for seed in range(50)}
        for kind in layout_problems.GRAPHS
    }
    assert kinds["chain"] == {0, 1, 2, 3, 4, 5}
    assert max(kinds["series_parallel"]) > 5 and max(kinds["general"]) > 5
    many = [edge for seed in range(50) for edge in problem(seed, "general", infinite=0.5).edges]
    assert any(np.isinf(edge.seconds).any() for edge in many)
