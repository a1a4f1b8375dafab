# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is said to be equal on all replicas is, whatever the function does."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.slow_cases import slow
from tests.unit.shard_update.analysis import replication_programs
from tests.unit.shard_update.analysis.replication_programs import OWN, REPLICAS, STEPS, Traced, run
from tf_fuse.function_graph.function_lookup import REDUCE
from tf_fuse.shard_update.analysis import replication
from tf_fuse.shard_update.analysis.replication import analyse_replication

_OWNS = st.lists(OWN, min_size=REPLICAS, max_size=REPLICAS)


def _programs(longest):
    return st.lists(STEPS, min_size=1, max_size=longest), _OWNS


def _settings(**more):
    return settings(
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
        **more,
    )


def _analysed(traced):
    mirrored = [handle for handle in traced.handles if handle]
    return analyse_replication(traced.view, traced.program, [traced.same], mirrored)


def _check(steps, owns):
    """Whether a program ends; then what is replicated in it is equal on all replicas."""
    traced = Traced(steps)
    found = _analysed(traced)
    ran = run(steps, owns)
    if ran is None:
        return False
    (tensors, left), *others = ran
    for other_tensors, other_left in others:
        for name, one, other in zip(traced.view.results, tensors, other_tensors, strict=True):
            if name in found.tensors:
                np.testing.assert_array_equal(one, other, err_msg=name)
        for handle, one, other in zip(traced.handles, left, other_left, strict=True):
            if handle in found.variables:
                np.testing.assert_array_equal(one, other, err_msg=handle)
    return True


@pytest.mark.parametrize("examples", [60, slow(150)])
def test_what_is_replicated_is_equal_on_all_replicas(examples):
    ended = Counter()

    @_settings(max_examples=examples)
    @given(*_programs(12))
    def check(steps, owns):
        ended[_check(steps, owns)] += 1

    check()
    # Most say something.
    assert ended[True] > 2 * ended[False] > 0, ended


def _any_reduce(count):
    return lambda view, node: node.op == REDUCE


@pytest.mark.parametrize(
    ("module", "rule", "broken"),
    [
        (replication, "is_run_by_all", lambda program, name: True),
        slow(replication, "_assigned", lambda view, program, name, arguments, found: set()),
        (replication, "_is_pure", lambda program, node: True),
        slow(replication, "_visit_assignment", lambda view, node, found: set()),
        slow(replication_programs, "reduces_over", _any_reduce),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_rule_is_found(monkeypatch, module, rule, broken):
    monkeypatch.setattr(module, rule, broken)

    # What is found needs no shorter form.
    @_settings(max_examples=1000, phases=[Phase.generate])
    @given(*_programs(5))
    def check(steps, owns):
        _check(steps, owns)

    with pytest.raises(AssertionError):
        check()


def _found(steps):
    """Whether each result is replicated, and each variable (None: not used)."""
    traced = Traced(steps)
    found = _analysed(traced)
    # The first three results are what every program begins with.
    return (
        [tensor in found.tensors for tensor in traced.view.results[3:]],
        [None if h is None else h in found.variables for h in traced.handles],
    )


_MINE, _SAME, _CONSTANT = 0, 1, 2


@pytest.mark.parametrize(
    ("steps", "results", "variables"),
    [
        ([("unary", "tanh", _SAME)], [True], [None, None]),
        ([("unary", "tanh", _MINE)], [False], [None, None]),
        ([("binary", "add", _SAME, _CONSTANT)], [True], [None, None]),
        ([("binary", "add", _SAME, _MINE)], [False], [None, None]),
        ([("unary", "random", _SAME)], [False], [None, None]),
        ([("unary", "stateless", _SAME)], [True], [None, None]),
        ([("reduce", "all", _MINE)], [True], [None, None]),
        # Only sums are known to be equal; a group of one replica changes nothing.
        ([("reduce", "max", _MINE)], [False], [None, None]),
        ([("reduce", "alone", _MINE)], [False], [None, None]),
        ([("read", 0)], [True], [True, None]),
        ([("assign", 0, _SAME), ("read", 0)], [True], [True, None]),
        # Not even what was read before: the function may run again.
        ([("read", 0), ("assign_add", 0, _MINE)], [False], [False, None]),
        ([("cond", 0, _SAME, _SAME, _CONSTANT)], [True, True], [True, None]),
        ([("cond", 0, _MINE, _SAME, _SAME)], [False, True], [True, None]),
        ([("cond", 0, _SAME, _MINE, _SAME)], [False, True], [True, None]),
        ([("cond_assign", 0, _SAME, _SAME, _SAME)], [True, True], [True, None]),
        ([("cond_assign", 0, _MINE, _SAME, _SAME)], [False, False], [False, None]),
        # All replicas take the branch with an all-reduce, or none, also where it is in a call.
        ([("cond_reduce", 0, _MINE, _MINE, _SAME)], [False, True], [True, None]),
        ([("cond_reduce", 0, _SAME, _MINE, _SAME)], [True, True], [True, None]),
        ([("cond_reduce", 0, _SAME, _MINE, _MINE)], [False, True], [True, None]),
        ([("cond_call_reduce", 0, _MINE, _MINE, _SAME)], [False, True], [True, None]),
        # Of the other branch nothing is known.
        ([("cond_other_reduce", 0, _MINE, _MINE, _SAME)], [False, False], [False, None]),
        ([("cond_other_reduce", 0, _SAME, _MINE, _SAME)], [True, True], [True, None]),
        # Two rounds on all replicas; the values change places in each round.
        ([("loop", 0, 2, _SAME, _CONSTANT)], [True, True], [None, None]),
        ([("loop", 0, 2, _MINE, _SAME)], [False, False], [None, None]),
        # As many rounds as the replica wants.
        ([("loop", 0, 1, _SAME, _CONSTANT)], [False, False], [None, None]),
        ([("loop_assign", 0, 2, _SAME, _CONSTANT)], [True, True], [True, None]),
        ([("loop_assign", 0, 1, _SAME, _CONSTANT)], [False, False], [False, None]),
        # As many as all want: they reduce in each.
        ([("loop_reduce", 0, 1, _SAME, _CONSTANT)], [True, True], [True, None]),
        ([("loop_reduce", 0, 1, _SAME, _MINE)], [False, False], [True, None]),
        ([("call", 0, _SAME, _CONSTANT, 0)], [True], [True, None]),
        ([("call", 0, _MINE, _CONSTANT, 0)], [False], [False, None]),
        ([("call_reduce", 0, _MINE, _CONSTANT, 0)], [False], [True, None]),
    ],
)
def test_rules(steps, results, variables):
    assert _found(steps) == (results, variables)
