# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Small operations of a session's tasks run as one, as those of functions do."""

import pytest
import tensorflow as tf

from tests.unit.passes.fuse_recv import operation_groups
from tests.unit.passes.fuse_recv.operation_groups import (
    compare,
    groups_of,
    lookups,
    members_of,
    random_exchange,
)
from tests.unit.passes.graph_interpreters import DEAD, evaluate, stuck
from tests.unit.passes.pass_testing import PS0, W0, node
from tests.unit.passes.random_graphs import random_choices, random_conditionals
from tests.unit.passes.sessions.stamped_graphs import STAMP, copy, stamp_of, stamped_nodes
from tf_fuse.explain import rewrite


def _rewritten(graph, **options):
    return rewrite(graph, session=True, fuse_operations=True, **options)


def test_lookups_and_updates_of_a_server_are_one_operation_each():
    for tables in (10, 300):
        assert groups_of(_rewritten(lookups(tables))) == [
            (PS0, {"ResourceGather": tables, "_Send": tables}),
            (PS0, {"ResourceScatterSub": tables}),
            (W0, {"StridedSlice": tables, "_Send": tables}),
        ]


def test_the_master_asks_for_groups():
    """A worker groups nothing if the master does not ask for it, or is of an earlier version."""
    with_groups, without = (
        _rewritten(lookups(10)),
        rewrite(lookups(10), session=True),
    )
    assert {stamp_of(n).fuse_operations for n in stamped_nodes(with_groups.before).values()} == {
        True
    }
    assert groups_of(without) == []
    assert {stamp_of(n).fuse_operations for n in stamped_nodes(without.before).values()} == {False}


def test_what_is_received_without_a_word_about_it_may_be_dead():
    """An earlier master does not say which receives are live: what needs them stays single."""
    graphs = copy(_rewritten(lookups(10)).before)
    for one in stamped_nodes(graphs).values():
        stamp = stamp_of(one)
        for decision in stamp.inputs:
            decision.live = False
        one.attr[STAMP].s = stamp.SerializeToString()
    assert groups_of(_rewritten(graphs)) == [(W0, {"StridedSlice": 10, "_Send": 10})]


def _names(graphs):
    return [n.name for g in graphs.values() for n in g.node if n.op == operation_groups.GROUP]


def test_a_name_says_what_the_group_does():
    """TensorFlow keeps the kernels of a session by the names of their nodes."""
    result = _rewritten(lookups(10))
    assert _names(result.after) == _names(_rewritten(lookups(10)).after)
    graphs = copy(result.before)
    graphs[PS0].node.append(node("count", "NoOp", ["^ResourceGather"], PS0))
    assert _names(_rewritten(graphs).after) == _names(result.after)
    # One output more: another group, though its operations are the same.
    graphs[PS0].node.append(node("of_rows", "Rank", ["ResourceGather"], PS0, T=tf.float32))
    changed = set(_names(result.after)) ^ set(_names(_rewritten(graphs).after))
    assert len(changed) == 2 and {name.rpartition("/")[0] for name in changed} == {
        "tf_fuse/ps_0/operations_0"
    }


@pytest.mark.parametrize("block", range(2))
def test_random_graphs_are_the_same_and_never_deadlock(block):
    members = 0
    for seed in range(block * 50, block * 50 + 50):
        graph = random_exchange(seed)
        without, result = rewrite(graph, session=True), _rewritten(graph)
        compare(result, without)
        at_once = {device: operation_groups.at_once(g) for device, g in result.after.items()}
        assert stuck(at_once) == set(), f"seed {seed}"
        members += sum(sum(operations.values()) for _, operations in groups_of(result))
    assert members > 300, "the graphs are too dull to find anything"


def test_what_may_be_dead_is_in_no_group():
    members = dead = 0
    for seed in range(40):
        result = _rewritten(random_conditionals(seed))
        for choice in random_choices():
            values = evaluate(operation_groups.flattened(result.after), choice)
            assert not [name for name in members_of(result) if values[name] is DEAD], (seed, choice)
            dead += sum(value is DEAD for value in values.values())
        members += len(members_of(result))
    assert min(members, dead) > 60, "the graphs are too dull to find anything"
