# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which variables are split, by cost."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.large_tables.model import CRITEO_ROWS
from tf_fuse.parameter_server import CostPartitioner, Costs
from tf_fuse.parameter_server.balance import ServerLoads
from tf_fuse.parameter_server.costs import VariableSpec
from tf_fuse.parameter_server.partitioning.partitioner import decide, decide_all, rows_of_pieces
from tf_fuse.parameter_server.placement.planned_places import Expected, make_plan


def _variable(*shape, name="kernel", **more):
    return VariableSpec(name, shape, "float32", **more)


def test_a_large_kernel_is_split_over_all_servers():
    assert CostPartitioner(4)(tf.TensorShape([4096, 1024]), tf.float32) == [4, 1]


@pytest.mark.parametrize("shape", [[], [1], [64], [64, 64]])
def test_a_small_variable_stays_whole(shape):
    assert CostPartitioner(4)(tf.TensorShape(shape), tf.float32) == [1] * len(shape)


def test_no_more_pieces_than_rows():
    assert CostPartitioner(4)(tf.TensorShape([3, 4_000_000]), tf.float32) == [3, 1]
    assert CostPartitioner(4)(tf.TensorShape([1, 4_000_000]), tf.float32) == [1, 1]


def test_one_server_splits_nothing():
    partitioner = CostPartitioner(1)
    assert partitioner(tf.TensorShape([10**6, 100]), tf.float32) == [1, 1]
    (decision,) = partitioner.decisions.values()
    assert decision.arithmetic() == "there is one parameter server"


def test_the_arithmetic_adds_up():
    # A gigabyte per second, 10 ms for 10 MB each way; nothing else costs anything.
    costs = Costs(slots=0, update_s=0, update_s_per_byte=0, piece_s=1e-3, memory_bytes_per_s=1e18)
    decision = decide(_variable(2500, 1000), 4, costs)
    assert decision.seconds == pytest.approx((20e-3, 11e-3, 20 / 3e3 + 2e-3, 8e-3), rel=1e-3)
    assert decision.pieces == 4
    assert decision.arithmetic() == (
        "20.000 ms in 1, 11.000 ms in 2, 8.672 ms in 3, 8.000 ms in 4: 4 along axis 0"
    )


def test_a_slow_worker_or_a_fast_link_leaves_it_whole():
    variable = _variable(2500, 1000)
    assert decide(variable, 4, Costs()).pieces > 1
    assert decide(variable, 4, Costs(piece_s=1.0)).pieces == 1
    assert decide(variable, 4, Costs(memory_bytes_per_s=1e6)).pieces == 1
    fast = Costs(link_bytes_per_s=1e15, update_s_per_byte=0.0)
    assert decide(variable, 4, fast).pieces == 1


def test_what_is_gathered_is_not_put_together():
    slow = Costs(slots=0, memory_bytes_per_s=1e6, rows_per_step={"table": 10_000})
    assert decide(_variable(10**6, 64, name="table"), 4, slow).pieces == 4
    few = Costs(slots=0, memory_bytes_per_s=1e6, rows_per_step={"table": 1})
    assert decide(_variable(10**6, 64, name="table"), 4, few).pieces == 1


def test_an_embedding_is_known_by_its_name_unless_it_is_told():
    shape = (10**6, 64)
    assert Costs().rows_of("Model/Embedding_3/embeddings", shape) == 1024
    assert Costs(rows_per_step={"*": 0}).rows_of("embeddings", shape) is None
    assert Costs(rows_per_step={"a*": 7}).rows_of("abc", shape) == 7
    assert Costs(rows_per_step={"a*": 7}).rows_of("abc", (3, 2)) == 3
    assert Costs().rows_of("embedding/bias", (64,)) is None


def test_any_axis():
    partitioner = CostPartitioner(4, axis=None)
    assert partitioner(tf.TensorShape([1, 4_000_000]), tf.float32) == [1, 4]
    # Pieces along the first axis are put together faster.
    assert partitioner(tf.TensorShape([4096, 4096]), tf.float32) == [4, 1]
    # Where that costs little, pieces that are alike count: 5 rows are 2 + 1 + 1 + 1.
    partitioner = CostPartitioner(4, Costs(memory_bytes_per_s=1e12), axis=None)
    assert partitioner(tf.TensorShape([5, 4_000_000]), tf.float32) == [1, 4]


def test_an_axis_that_is_asked_for():
    assert CostPartitioner(4)(tf.TensorShape([4096, 4096]), tf.float32, axis=1) == [1, 4]
    assert CostPartitioner(4, axis=1)(tf.TensorShape([4096, 4096]), tf.float32) == [1, 4]
    with pytest.raises(ValueError, match=r"shape \(4096, 2\) has no axis 2"):
        CostPartitioner(2)(tf.TensorShape([4096, 2]), tf.float32, axis=2)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="there are 0 parameter servers"):
        CostPartitioner(0)
    with pytest.raises(ValueError, match="axis is -1"):
        CostPartitioner(2, axis=-1)
    with pytest.raises(ValueError, match=r"shape \(None, 2\) cannot be split"):
        CostPartitioner(2)(tf.TensorShape([None, 2]), tf.float32)
    with pytest.raises(ValueError, match="workers is 0, must be a whole number from 1"):
        Costs(workers=0)
    with pytest.raises(ValueError, match="link_bytes_per_s is 0, must be a positive number"):
        Costs(link_bytes_per_s=0)
    with pytest.raises(ValueError, match="update_s is nan, must be 0 or more"):
        Costs(update_s=float("nan"))
    with pytest.raises(ValueError, match=r"rows_per_step\['x'\] is -1"):
        Costs(rows_per_step={"x": -1})


def test_of_a_plan_only_what_dominates_is_split():
    alike = [_variable(1024, 1024, name=f"kernel_{i}") for i in range(8)]
    decisions = decide_all(alike, ServerLoads(4, 3), Costs())
    assert {one.pieces for one in decisions.values()} == {1}
    # By itself each would be.
    assert decide(alike[0], 4, Costs()).pieces == 4
    big = _variable(64 * 1024, 1024, name="big")
    decisions = decide_all([big, *alike], ServerLoads(4, 3), Costs())
    assert decisions[big].pieces == 4
    assert {decisions[one].pieces for one in alike} == {1}


def test_of_a_plan_what_would_fill_a_server_is_split():
    table = _variable(10**7, 64, name="embeddings")
    others = [_variable(1024, 1024, name=f"kernel_{i}") for i in range(8)]
    costs = Costs(slots=0, rows_per_step={"embeddings": 1})
    assert decide(table, 4, costs).pieces == 1
    assert decide_all([table, *others], ServerLoads(4, 3), costs)[table].pieces == 4


@pytest.mark.parametrize("servers", [2, 4, 6])
def test_updates_of_tables_with_slots_are_spread(servers):
    """Adam goes over all rows of a table in each step, however few were gathered."""
    tables = [_variable(rows, 16, name=f"embeddings_{rows}", slots=2) for rows in CRITEO_ROWS]
    expected = [Expected(one) for one in tables]

    def split(variables, loads):
        return decide_all(variables, loads, Costs())

    plan = make_plan(expected, Costs(), ServerLoads(servers, 3), split)
    kept = [0.0] * servers
    for place in plan.places:
        kept[place.server] += place.item.loads[0]
    assert max(kept) <= 1.1 * sum(kept) / servers
    assert decide(max(tables, key=lambda one: one.bytes), servers, Costs()).pieces == servers


@given(st.integers(1, 1000), st.integers(1, 8))
def test_pieces_have_the_rows_that_tensorflow_gives_them(rows, pieces):
    pieces = min(rows, pieces)
    result = rows_of_pieces(rows, pieces)
    assert sum(result) == rows and len(result) == pieces
    assert result == sorted(result, reverse=True) and result[0] - result[-1] <= 1


_SHAPES = st.lists(st.integers(1, 3000), max_size=3).map(tuple)


@given(_SHAPES, st.integers(1, 6), st.sampled_from([None, 0]))
@settings(deadline=None)
def test_what_is_returned_fits_the_shape(shape, servers, axis):
    pieces = CostPartitioner(servers, axis=axis)(tf.TensorShape(shape), tf.float32)
    assert len(pieces) == len(shape)
    assert sum(count != 1 for count in pieces) <= 1
    for count, size in zip(pieces, shape, strict=True):
        assert 1 <= count <= min(size, servers)


@given(st.lists(_SHAPES, max_size=12), st.integers(2, 5), st.randoms())
@settings(deadline=None)
def test_a_plan_does_not_depend_on_order(shapes, servers, shuffle):
    variables = [_variable(*shape, name=f"v{i % 5}") for i, shape in enumerate(shapes)]
    before = decide_all(variables, ServerLoads(servers, 3), Costs())
    shuffle.shuffle(variables)
    assert decide_all(variables, ServerLoads(servers, 3), Costs()) == before


def test_it_takes_what_a_strategy_knows():
    partitioner = CostPartitioner(2)
    partitioner.adapt(2, 5)
    assert partitioner.costs == Costs(workers=5)
    told = CostPartitioner(2, Costs(workers=3))
    told.adapt(2, 5)
    assert told.costs.workers == 3
    with pytest.raises(ValueError, match="is for 2 parameter servers, the cluster has 4: make it"):
        told.adapt(4, 1)
