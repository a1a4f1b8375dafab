# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Loads of variables that are not there yet, and plans that place them by name."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_fuse.parameter_server as parameter_server
from tf_fuse.parameter_server import Costs
from tf_fuse.parameter_server.balance import ServerLoads
from tf_fuse.parameter_server.costs import Load, VariableSpec
from tf_fuse.parameter_server.partitioning.partitioner import PartitionDecision
from tf_fuse.parameter_server.placement.placer import Placer
from tf_fuse.parameter_server.placement.planned_places import Expected, make_plan


def _expected(*shapes):
    return [Expected(VariableSpec(f"v{i}", s, "float32")) for i, s in enumerate(shapes)]


def _plan(expected, servers=2, split=None):
    return make_plan(expected, Costs(), ServerLoads(servers, 3), split)


# --- Loads ---------------------------------------------------------------------------------------


def test_what_a_dense_weight_costs():
    costs = Costs(workers=3, slots=2, update_s_per_byte=1e-9, update_s=1e-6)
    assert VariableSpec("kernel", (10, 5), "float32").load(costs) == Load(
        kept=600.0, read=600.0, updated=1800.0, update_s=1800e-9 + 3e-6, sent_back=600.0
    )


def test_of_what_is_gathered_the_rows_count():
    costs = Costs(workers=2, slots=1, rows_per_step={"t": 5}, update_s=0.0)
    load = VariableSpec("t", (100, 4), "float32").load(costs)
    # (Slots change in rows without a gradient, too: the update goes over all of them.)
    assert (load.kept, load.read, load.updated, load.sent_back) == (3200.0, 160.0, 6400.0, 160.0)
    alone = VariableSpec("t", (100, 4), "float32", slots=0).load(costs)
    assert (alone.kept, alone.read, alone.updated) == (1600.0, 160.0, 160.0)
    # A tenth of the rows is on this server.
    piece = VariableSpec("t", (10, 4), "float32").load(replace(costs, rows_per_step={"t": 5}), 0.1)
    assert (piece.kept, piece.read) == (320.0, 16.0)


@pytest.mark.parametrize("dtype, trainable", [("int64", True), ("float32", False)])
def test_what_is_not_trained_is_read_only(dtype, trainable):
    variable = VariableSpec("step", (), dtype, trainable)
    size = float(variable.bytes)
    assert variable.load(Costs()) == Load(kept=size, read=size)


def test_slots_that_are_known_count_in_place_of_those_expected():
    weight = VariableSpec("w", (10,), "float32")
    assert weight.load(Costs(slots=2)).kept == 120
    assert replace(weight, slots=0).load(Costs(slots=2)).kept == 40


# --- Plans ---------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 10**6)), min_size=1, max_size=30),
    st.integers(1, 4),
    st.randoms(),
)
@settings(deadline=None)
def test_a_plan_does_not_depend_on_order(named, servers, shuffle):
    expected = [Expected(VariableSpec(name, (size,), "float32")) for name, size in named]
    before = _plan(expected, servers).places
    shuffle.shuffle(expected)
    assert _plan(expected, servers).places == before


def test_places_are_taken_by_name_shape_and_type_whatever_the_order():
    expected = _expected(*((size,) for size in (1000, 900, 500, 400, 10, 10)))
    servers = {}
    for order in (expected, expected[::-1]):
        placement = Placer(2, Costs())
        placement.add_plan(_plan(expected))
        placed = [placement.place(one.variable) for one in order]
        assert {one.why for one in placed} == {"planned"}
        servers[order is expected] = {one.variable.name: one.server for one in placed}
    assert servers[True] == servers[False]


def test_names_that_are_there_twice_have_a_place_each():
    plan = _plan([Expected(VariableSpec("v", (8,), "float32"))] * 2)
    placement = Placer(2, Costs())
    placement.add_plan(plan)
    placed = [placement.place(VariableSpec("v", (8,), "float32")) for _ in range(3)]
    assert sorted(one.server for one in placed[:2]) == [0, 1]
    assert [one.why for one in placed] == ["planned", "planned", "online"]


@pytest.mark.parametrize("shape, dtype", [((9,), "float32"), ((8,), "float64")])
def test_another_shape_or_type_is_another_variable(shape, dtype):
    placement = Placer(2, Costs())
    plan = _plan([Expected(VariableSpec("v", (8,), "float32"))])
    placement.add_plan(plan)
    assert placement.place(VariableSpec("v", shape, dtype)).why == "online"
    # The place was kept until the plan ended, so the other variable went elsewhere.
    assert [place.variable.name for place in placement.remove_plan(plan)] == ["v"]
    assert placement.plans() == [{"variables": 1, "not_made": ["v"], "reason": "", "spread": []}]
    assert placement.loads().counts in ([1, 0], [0, 1])


def test_what_is_on_servers_already_is_counted():
    placement = Placer(2, Costs())
    first = placement.place(VariableSpec("old", (1000,), "float32"))
    plan = make_plan(_expected((900,), (80,)), Costs(), placement.loads())
    placement.add_plan(plan)
    assert placement.place(VariableSpec("v0", (900,), "float32")).server == 1 - first.server
    assert placement.place(VariableSpec("v1", (80,), "float32")).server == 1 - first.server


def test_explicit_servers_come_first():
    variable = VariableSpec("v", (8,), "float32")
    placement = Placer(2, Costs())
    assert [placement.place(variable, explicit=1).server for _ in range(3)] == [1, 1, 1]
    assert {one.why for one in placement.placed()} == {"explicit"}
    placement.add_plan(_plan([Expected(variable, server=1), *_expected((8,))]))
    assert placement.place(VariableSpec("v0", (8,), "float32")).server == 0
    assert placement.place(variable, explicit=1).why == "explicit"
    assert placement.place(variable, explicit=0).server == 0


def test_pieces_of_a_plan_are_on_different_servers():
    def split(variables, servers):
        return {one: PartitionDecision(one, 3 if one.name == "v0" else 1) for one in variables}

    plan = _plan(_expected((100, 2), (10, 2)), servers=3, split=split)
    pieces = [p for p in plan.places if p.variable.name.startswith("v0/")]
    assert [p.variable.name for p in pieces] == ["v0/part_0", "v0/part_1", "v0/part_2"]
    assert [p.variable.shape for p in pieces] == [(34, 2), (33, 2), (33, 2)]
    assert sorted(p.server for p in pieces) == [0, 1, 2]
    assert [p.share for p in pieces] == [0.34, 0.33, 0.33]


def test_slots_are_counted_once():
    placement = Placer(2, Costs(slots=2))
    placed = placement.place(VariableSpec("w", (10,), "float32"))
    placement.made(placed, placed.variable, "id")
    before = placement.loads().loads
    placement.add_slot("id", 40)
    placement.add_slot("id", 40)
    assert placement.loads().loads == before
    placement.add_slot("id", 40)  # more than were expected
    assert placement.loads().loads[placed.server][0] == before[placed.server][0] + 40
    placement.add_slot("other", 40)
    ((_, load),) = placement.measured()
    assert load.kept == 160


def test_a_variable_that_could_not_be_made_is_forgotten():
    placement = Placer(2, Costs())
    placed = placement.place(VariableSpec("w", (10,), "float32"))
    placement.forget(placed)
    assert placement.placed() == [] and placement.loads().counts == [0, 0]


def test_a_size_that_was_not_known_is_corrected():
    placement = Placer(2, Costs())
    placed = placement.place(VariableSpec("w", (), "float32"), is_sized=False)
    assert placed.why == "unsized"
    placement.made(placed, VariableSpec("w", (1000,), "float32"), "id")
    assert placement.place(VariableSpec("u", (10,), "float32")).server == 1 - placed.server


def test_a_plan_for_other_servers_is_an_error():
    with pytest.raises(ValueError, match="is for 3 parameter servers, and there are 2"):
        Placer(2, Costs()).add_plan(_plan(_expected((1,)), servers=3))
    with pytest.raises(ValueError, match="there are 0 parameter servers"):
        parameter_server.plan(lambda: None, servers=0)
    with pytest.raises(ValueError, match="there are 0 parameter servers"):
        Placer(0, Costs())
