# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Lists of variables over servers: alike, tiny, skewed, and with a huge one among others."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_fuse.parameter_server import Costs
from tf_fuse.parameter_server.balance import ServerLoads
from tf_fuse.parameter_server.costs import VariableSpec
from tf_fuse.parameter_server.partitioning.partitioner import decide_all
from tf_fuse.parameter_server.placement.placer import Placer
from tf_fuse.parameter_server.placement.planned_places import Expected, make_plan

_SERVERS = 3


@st.composite
def _lists_of_variables(draw):
    """Lists that are alike, skewed over seven decades, tiny, or with a huge one among others."""
    tiny = st.sampled_from([(), (0, 3), (1,), (2,), (7,), (3, 2)])
    sizes = st.integers(0, 7).map(lambda decade: 10**decade)
    rows = st.tuples(sizes, st.integers(1, 9)).map(lambda each: (each[0] * each[1],))
    matrices = st.tuples(sizes, st.integers(1, 64))
    one = draw(st.sampled_from([tiny, rows, matrices, st.one_of(tiny, rows, matrices)]))
    shapes = draw(st.lists(one, min_size=1, max_size=40))
    huge = draw(st.lists(st.just((10**8, 64)), max_size=2))
    dtypes = st.sampled_from(["float32", "float64", "bfloat16", "int64"])
    return [
        Expected(VariableSpec(f"v{i % 9}", shape, draw(dtypes), draw(st.booleans())))
        for i, shape in enumerate(shapes + huge)
    ]


def _mean(loads, kind):
    return sum(load.balanced()[kind] for load in loads) / _SERVERS


@given(_lists_of_variables())
@settings(deadline=None)
def test_any_list_is_placed_once_and_evenly_but_for_what_dominates(expected):
    loads = [one.variable.load(Costs()) for one in expected]
    placement = Placer(_SERVERS, Costs())
    placement.add_plan(make_plan(expected, Costs(), ServerLoads(_SERVERS, 3)))
    placed = [placement.place(one.variable) for one in expected]
    assert {one.why for one in placed} == {"planned"}
    servers = placement.loads()
    assert sum(servers.counts) == len(expected)
    kinds = [k for k in range(3) if _mean(loads, k)]
    # A server is fuller than others at most by what dominates, in the kind in which most does.
    worst = max(
        (max(load.balanced()[k] for load in loads) / _mean(loads, k) for k in kinds), default=0
    )
    for kind in range(3):
        of_servers = [one[kind] for one in servers.loads]
        assert sum(of_servers) == pytest.approx(_SERVERS * _mean(loads, kind))
        assert max(of_servers) <= max(1.1, 1 + worst) * _mean(loads, kind) * (1 + 1e-9)


@given(_lists_of_variables())
@settings(deadline=None)
def test_any_list_that_is_not_planned_fills_no_server_while_another_is_emptier(expected):
    placement = Placer(_SERVERS, Costs())
    loads = []
    for one in expected:
        before = placement.loads().loads
        chosen = placement.place(one.variable).server
        loads.append(one.variable.load(Costs()))
        kinds = [k for k in range(3) if loads[-1].balanced()[k]]
        for other in before if kinds else ():
            # By much: what is little beside the rest makes no difference.
            much = [0.2 * _mean(loads, k) for k in range(3)]
            assert not all(other[k] + much[k] < before[chosen][k] for k in kinds)
    servers = placement.loads()
    assert sum(servers.counts) == len(expected)
    for kind in range(3):
        of_servers = sum(one[kind] for one in servers.loads)
        assert of_servers == pytest.approx(_SERVERS * _mean(loads, kind))


@given(_lists_of_variables())
@settings(deadline=None)
def test_pieces_of_any_list_are_its_variables(expected):
    def split(variables, servers):
        return decide_all(variables, servers, Costs())

    plan = make_plan(expected, Costs(), ServerLoads(_SERVERS, 3), split)
    elements = sum(math.prod(one.variable.shape) for one in expected)
    assert sum(math.prod(place.variable.shape) for place in plan.places) == elements
    servers = {}
    for place in plan.places:
        if place.item.whole:
            servers.setdefault(place.item.whole, []).append(place.server)
    for of_pieces in servers.values():
        assert 2 <= len(of_pieces) == len(set(of_pieces))
