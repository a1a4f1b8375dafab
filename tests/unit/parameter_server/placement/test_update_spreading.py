# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whether the update of a variable is spread over servers: both verdicts, by exact figures."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_fuse import cli
from tf_fuse.parameter_server import Costs, report
from tf_fuse.parameter_server.balance import ServerLoads
from tf_fuse.parameter_server.costs import Load, VariableSpec
from tf_fuse.parameter_server.partitioning.partitioner import PartitionDecision
from tf_fuse.parameter_server.placement import update_spreading
from tf_fuse.parameter_server.placement.placer import Placer
from tf_fuse.parameter_server.placement.planned_places import Expected, make_plan

# 4 MB of weights and 8 MB of slots: updates take 12 ms, and the wire 2 x 4 ms.
_BIG = VariableSpec("kernel", (1000, 1000), "float32", slots=2)
_COSTS = Costs(
    workers=1, link_bytes_per_s=1e9, update_s_per_byte=1e-9, update_s=0.0, piece_s=0.0,
    memory_bytes_per_s=8e9,
)  # fmt: skip


def _empty(servers=2):
    return ServerLoads(servers, len(Load().balanced()))


def _decide(*variables, costs=_COSTS, servers=2, asked=None):
    found = update_spreading.decide(
        variables, _empty(servers), costs, variables if asked is None else asked
    )
    return {variable.name: decision for variable, decision in found.items()}


def _only(*variables, **more):
    return _decide(*variables, **more)["kernel"]


def test_compute_is_the_bottleneck():
    found = _only(_BIG)
    assert (found.verdict, found.pieces) == ("spread", 2)
    assert found.update_s == pytest.approx(12e-3)
    assert found.wire_s == pytest.approx(8e-3)
    assert found.share_s == pytest.approx(6e-3)
    # In two pieces servers take half of both; a worker puts 4 MB together, and cuts them again.
    assert found.seconds == pytest.approx((20e-3, 10e-3 + 1e-3))
    assert found.arithmetic() == (
        "updates 12.000 ms per step (a server's share of all: 6.000 ms), wire 8.000 ms; together "
        "20.000 ms in 1, 11.000 ms in 2: compute is the bottleneck: its update and slots are "
        "spread over 2 servers"
    )


def test_the_wire_is_the_bottleneck():
    # The same in all but the link. Pieces would save time as well, on the wire; but not by compute.
    found = _only(_BIG, costs=replace(_COSTS, link_bytes_per_s=8e6 / 12e-3 * 0.999))
    assert (found.verdict, found.pieces, found.seconds) == ("wire", 1, ())
    assert found.arithmetic() == (
        "updates 12.000 ms per step (a server's share of all: 6.000 ms), wire 12.012 ms: the wire "
        "is the bottleneck: its update stays on one server"
    )
    just_above = _only(_BIG, costs=replace(_COSTS, link_bytes_per_s=8e6 / 12e-3 * 1.001))
    assert (just_above.verdict, just_above.pieces) == ("spread", 2)


def test_by_the_built_in_figures_the_wire_is_the_bottleneck_of_large_variables():
    def verdict(rows, workers):
        return _only(replace(_BIG, shape=(rows, 250)), costs=Costs(workers=workers)).verdict

    for workers in (1, 8):
        assert verdict(68, workers) == "wire"
        assert verdict(67, workers) == "spread"
        assert verdict(100_000, workers) == "wire"
    # The operations alone take as long in pieces.
    assert verdict(20, 1) == "together"


def test_workers_would_take_longer_to_put_pieces_together():
    found = _only(_BIG, costs=replace(_COSTS, memory_bytes_per_s=8e8))
    assert (found.verdict, found.pieces) == ("together", 1)
    assert found.seconds == pytest.approx((20e-3, 20e-3))


def test_no_more_than_a_share_stays_whole():
    # Two of them: one on each server.
    assert _only(_BIG, replace(_BIG, name="other")).verdict == "share"
    others = [replace(_BIG, name=f"other{i}", shape=(100, 1000)) for i in range(8)]
    # 12 ms of 21.6: 10.8 on each server, and up to 1.1 times that may stay on one.
    assert _only(_BIG, *others[:8]).share_s == pytest.approx(10.8e-3)
    assert _only(_BIG, *others[:8]).verdict == "spread"
    assert _only(_BIG, *others, replace(_BIG, name="more", shape=(20, 1000))).verdict == "share"


def test_what_servers_have_already_counts():
    servers = _empty()
    servers.loads[0][2] = 12e-3
    found = update_spreading.decide([_BIG], servers, _COSTS, [_BIG])[_BIG]
    assert (found.verdict, found.share_s) == ("share", pytest.approx(12e-3))


def test_a_program_that_does_not_take_pieces_is_told():
    found = _only(_BIG, asked=())
    assert (found.verdict, found.pieces) == ("not_asked", 1)
    assert "give the variable to tf_fuse.parameter_server.partitioning.pieces" in found.arithmetic()


def test_what_is_not_dense_or_not_trained_is_not_looked_at():
    embedding = VariableSpec("embedding/embeddings", (1000, 1000), "float32")
    frozen = VariableSpec("frozen", (1000, 1000), "float32", trainable=False)
    assert _decide(embedding, frozen, VariableSpec("number", (), "float32")) == {}
    assert _decide(_BIG, servers=1) == {}


_shapes = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=6)


@given(_shapes, st.integers(2, 5), st.floats(1e7, 1e11), st.floats(1e7, 1e11), st.data())
def test_spread_if_and_only_if_it_dominates_and_compute_is_the_bottleneck(
    shapes, servers, link, memory, data
):
    costs = replace(_COSTS, workers=3, link_bytes_per_s=link, memory_bytes_per_s=memory)
    variables = [VariableSpec(f"v{i}", shape, "float32") for i, shape in enumerate(shapes)]
    found = update_spreading.decide(variables, _empty(servers), costs, variables)
    shuffled = data.draw(st.permutations(variables))
    assert found == update_spreading.decide(shuffled, _empty(servers), costs, variables)
    share = sum(3 * 12 * np.prod(one.shape) * 1e-9 for one in variables) / servers
    for one in variables:
        size = float(np.prod(one.shape))
        if size < 2:
            assert one not in found
            continue
        update, wire = 3 * 12 * size * 1e-9, 3 * 8 * size / link
        # Of the largest piece; and the worker's passes over the whole.
        times = [update + wire] + [
            (update + wire) * -(-one.shape[0] // k) / one.shape[0] + 8 * size / memory
            for k in range(2, min(servers, one.shape[0]) + 1)
        ]
        wanted = update > 1.1 * share and update > wire and min(times) < 0.98 * times[0]
        limits = (1.1 * share, wire)
        if any(abs(update - limit) < 1e-9 * update for limit in limits):
            continue
        if abs(min(times) - 0.98 * times[0]) < 1e-9 * times[0]:
            continue
        assert (found[one].pieces > 1) == wanted, found[one].arithmetic()


def test_a_plan_has_the_pieces_on_different_servers_and_tells_of_them():
    def split(variables, servers):
        return update_spreading.decide(variables, servers, _COSTS, variables)

    small = VariableSpec("bias", (1000,), "float32", slots=2)
    plan = make_plan([Expected(_BIG), Expected(small)], _COSTS, _empty(), split)
    kernel = [place for place in plan.places if place.variable.name.startswith("kernel/")]
    assert [place.variable.shape for place in kernel] == [(500, 1000)] * 2
    assert sorted(place.server for place in kernel) == [0, 1]
    placement = Placer(2, _COSTS)
    placement.add_plan(plan)
    (told,) = json.loads(json.dumps(placement.plans()))
    assert [(one["variable"], one["pieces"], one["verdict"]) for one in told["spread"]] == [
        ("bias", 1, "share"),
        ("kernel", 2, "spread"),
    ]
    assert told["spread"][1]["update_s"] == pytest.approx(12e-3)
    assert (
        told["spread"][1]["arithmetic"]
        == plan.decisions["kernel", (1000, 1000), "float32"].arithmetic()
    )


def test_a_partitioners_decisions_are_not_told_of_as_these():
    def split(variables, servers):
        return {one: PartitionDecision(one, 2) for one in variables}

    placement = Placer(2, _COSTS)
    placement.add_plan(make_plan([Expected(_BIG)], _COSTS, _empty(), split))
    assert placement.plans()[0]["spread"] == []


def test_explain_shows_the_arithmetic(tmp_path, capsys):
    placement = Placer(2, _COSTS)
    variables = [_BIG, VariableSpec("bias", (1000,), "float32", slots=2)]
    expected = [Expected(one) for one in variables]

    def split(variables, servers):
        return update_spreading.decide(variables, servers, _COSTS, ())

    placement.add_plan(make_plan(expected, _COSTS, _empty(), split))
    placement.place(_BIG)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report._report(placement, None)))
    assert cli.main(["explain", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("Plan of 2 variables; not made: 1")
    # (Of what is no more than a share there is nothing to say.)
    assert lines[at + 1 :] == [f"kernel: {_only(*variables, asked=()).arithmetic()}"]
    assert "compute is the bottleneck, but nothing takes its pieces" in lines[at + 1]
