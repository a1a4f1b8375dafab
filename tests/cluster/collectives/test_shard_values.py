# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reduce-scatter and all-gather give the bits of stock TensorFlow's all-reduce.

TF_FUSE_TEST_COLLECTIVES=1 (`make collectives`) adds groups of 8.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.collectives.ranks import Reduce
from tests.cluster.collectives.reductions import (
    BYTES,
    LONG,
    MB,
    RANKS,
    SIZES,
    SIZES_BUT_MOST_SLOW,
    SLOW,
    same,
)
from tests.slow_cases import slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


# --- Ours ----------------------------------------------------------------------------------------


def _scatter_gather_is_all_reduce(stock, ranks, tensors, members=None):
    """Runs one call of many vectors; the gathered ones are stock's all-reduces."""
    members = members or list(range(RANKS))
    ours = ranks.values("scatter_gather", tensors=tensors, members=members)
    for index, (dtype, (elements,)) in enumerate(tensors):
        if elements == 0:
            continue
        want = stock.values("group_reduce", dtype=dtype, elements=elements, members=members)
        for rank in members:
            assert ours[rank]["whole"][index] == want[rank], (dtype, elements, rank)
    for rank in set(range(RANKS)) - set(members):
        assert ours[rank] is None
    return ours


@pytest.mark.parametrize("n", SIZES_BUT_MOST_SLOW)
@pytest.mark.parametrize("dtype", sorted(BYTES))
def test_reduce_scatter_and_all_gather_are_the_all_reduce(stock, ours, dtype, n):
    lengths = [1, n - 1, n, 15, 17, 16 * n + 1, 0, 997, 8193, 40009]
    _scatter_gather_is_all_reduce(
        stock, ours, [(dtype, [e]) for e in lengths], members=list(range(n))
    )


@pytest.mark.parametrize("n", SIZES_BUT_MOST_SLOW[1:])
def test_reduce_scatter_of_large_chunks(stock, ours, n):
    tensors = [("float32", [4 * MB + 4099])]
    _scatter_gather_is_all_reduce(stock, ours, tensors, list(range(n)))


@pytest.mark.parametrize("n", SIZES_BUT_MOST_SLOW)
@pytest.mark.parametrize("elements", [MB, 1234577])
def test_large_reduce_scatter_and_all_gather(stock, ours, n, elements):
    _scatter_gather_is_all_reduce(stock, ours, [("float32", [elements])], list(range(n)))


def test_many_tensors_in_one_call(stock, ours):
    # Tiny ones share pieces; large ones begin and end within pieces.
    lengths = [0, 1, 2, 0, 300007, 3, *range(1, 60, 7), 262144, 5, 0]
    results = _scatter_gather_is_all_reduce(stock, ours, [("float32", [e]) for e in lengths])
    for elements, *of_ranks in zip(lengths, *(r["lengths"] for r in results), strict=True):
        assert sum(of_ranks) == elements


@pytest.mark.parametrize("n", SIZES_BUT_MOST_SLOW)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("lengths", [[1], [3, 0, 1, 40009, 16], [300007, 5, 262144, *[100] * 50]])
def test_tensors_cut_as_one_are_the_all_reduce_of_their_concatenation(
    stock, ours, dtype, n, lengths
):
    members = list(range(n))
    results = ours.values("packed", dtype=dtype, lengths=lengths, members=members)
    args = {"dtype": dtype, "elements": sum(lengths), "members": members}
    want = stock.values("group_reduce", **args)
    for rank in members:
        assert results[rank]["lengths"] == results[rank]["ranges"]
        assert results[rank]["whole"] == results[rank]["sums"]
        assert results[rank]["whole"] == want[rank]
    of_ranks = zip(*(results[rank]["lengths"] for rank in members), strict=True)
    assert [sum(counts) for counts in of_ranks] == lengths


@pytest.mark.parametrize("groups", [pytest.param(1, marks=SLOW), 2, 4])
@pytest.mark.parametrize(
    "dtype", [pytest.param("bfloat16", marks=SLOW), "float32", pytest.param("int64", marks=SLOW)]
)
@pytest.mark.parametrize("lengths", [[1], [3, 0, 1, 40009, 16], [300007, 5, 262144, *[100] * 50]])
def test_groups_that_each_hold_everything(ours, groups, dtype, lengths):
    results = ours.values("grouped", dtype=dtype, lengths=lengths, groups=groups)
    for result in results:
        assert result["whole"] == result["sums"]
        assert all(result["right"])
    size = len(results) // groups
    for first in range(0, len(results), size):
        of_group = zip(*(one["lengths"] for one in results[first : first + size]), strict=True)
        assert [sum(counts) for counts in of_group] == lengths


@pytest.mark.parametrize("groups", [3, 8])
def test_groups_of_different_sizes_are_an_error(ours, groups):
    for error in ours.run("grouped", dtype="float32", lengths=[100], groups=groups):
        assert error.kind == "InvalidArgumentError", error
        assert f"4 members cannot be in {groups} groups of one size" in error.text


def test_shapes_of_gathered_tensors(ours):
    shapes = [[], [3, 5], [0, 4], [2, 1, 64]]
    results = ours.values("scatter_gather", tensors=[("float32", shape) for shape in shapes])
    for result in results:
        kinds = [x.rpartition(" ")[0] for x in result["whole"]]
        assert kinds == [f"float32{shape}" for shape in shapes]


@pytest.mark.parametrize("members", [[1, 3], [0, 2, 3], [2], [0, 1, 2, 3]])
def test_groups_of_some_ranks(stock, ours, members):
    tensors = [("float32", [e]) for e in (1, 17, 100003)]
    if len(members) == 1:
        results = ours.values("scatter_gather", tensors=tensors, members=members)
        assert results[members[0]]["whole"] == results[members[0]]["shards"]
        return
    _scatter_gather_is_all_reduce(stock, ours, tensors, members)


@pytest.mark.parametrize(
    "elements", slow_but([1, 31, 64, 1000, 300007], (1, 1000, 300007).__contains__)
)
def test_two_levels(ours, elements):
    results = ours.values("two_levels", elements=elements)
    assert [r["right"] for r in results] == [True] * RANKS
    assert all(r["length"] == r["range"][1] - r["range"][0] for r in results)


@pytest.mark.parametrize("elements", slow_but([1, 3, 16, 100, 4099], (3, 4099).__contains__))
def test_gradients(ours, elements):
    assert (
        ours.values("gradients", elements=elements) == [{"scatter": True, "gather": True}] * RANKS
    )


@settings(
    max_examples=60 if LONG else 12,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    lengths=st.lists(
        st.one_of(st.integers(0, 200), st.integers(0, 70000), st.integers(262100, 262200)),
        min_size=1,
        max_size=6,
    ),
    dtype=st.sampled_from(sorted(BYTES)),
    n=st.sampled_from(SIZES),
)
def test_any_lengths(stock, ours, lengths, dtype, n):
    _scatter_gather_is_all_reduce(stock, ours, [(dtype, [e]) for e in lengths], list(range(n)))
    specs = [Reduce(n, dtype, e) for e in lengths if e]
    same(specs, stock.values("reduce", specs=specs), ours.values("reduce", specs=specs))
