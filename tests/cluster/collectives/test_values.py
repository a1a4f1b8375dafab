# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collectives by `grpc+fuse` give the bits of stock TensorFlow's, whichever way the bytes go.

TF_FUSE_TEST_COLLECTIVES=1 (`make collectives`) adds groups of 8, more sizes and longer loops.
"""

import itertools
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.collectives.ranks import Ranks, Reduce

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_LONG = os.environ.get("TF_FUSE_TEST_COLLECTIVES") == "1"
_SIZES = [2, 3, 4] + [8] * _LONG  # of groups
_RANKS = max(_SIZES)
_SLOW = pytest.mark.slow
# Three are neither all ranks nor a power of two.
_SIZES_BUT_MOST_SLOW = [pytest.param(n, marks=() if n == 3 else _SLOW) for n in _SIZES]
_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}
# In shared memory and by the ring, by gRPC, by TCP.
_PATHS = {"default": "", "shm": "shm", "grpc": "grpc", "tcp": "tcp,grpc", "stock": "stock"}
_COUNTED = {"default": "shm", "shm": "shm", "grpc": "grpc", "tcp": "tcp", "stock": "stock"}
_MB = 1 << 20


def _lengths(n):
    """Around what the ring and the library divide by, and primes."""
    return sorted({1, n - 1, n, n + 1, 15, 16, 17, 16 * n - 1, 16 * n, 16 * n + 1, 101, 997})


def _around(limit, element_bytes):
    return [limit // element_bytes + d for d in (-1, 0, 1)]


def _large(n, dtype):
    """Around the limits of one step, of what goes through a socket, and of pieces."""
    size = _BYTES[dtype]
    limits = [16 << 10, 32 << 10, (32 << 10) * n]
    if dtype == "float32":
        limits += [_MB, _MB * n]
    return [length for limit in limits for length in _around(limit, size)]


def _specs(n):
    specs = [Reduce(n, dtype, e) for dtype in _BYTES for e in _lengths(n) + _large(n, dtype)]
    specs += [
        Reduce(n, dtype, 1009, merge, final)
        for dtype in _BYTES
        for merge, final in itertools.product(("Add", "Mul", "Max", "Min"), ("Id", "Div"))
    ]
    specs += [
        Reduce(n, dtype, e, merge, final, "special")
        for dtype in ("float32", "float64", "float16", "bfloat16")
        for merge in ("Mul", "Max", "Min")
        for final in ("Id", "Div")
        for e in (17, 20011)
    ]
    return specs


def _payloads(n):
    """Sums of several NaNs: which one's bits are the sum's depends on the order of operands."""
    return [
        Reduce(n, dtype, elements, "Add", final, "special")
        for dtype in ("float32", "float64", "float16", "bfloat16")
        for final in ("Id", "Div")
        for elements in (17, 20011)
    ]


def _megabytes(n):
    """Two subdivisions of the ring, from 4 MiB for each member; and one, where it is asked for."""
    lengths = [n * _MB, n * _MB + 4 * n + 1, n * _MB + 100003]
    return [
        *(Reduce(n, "float32", e) for e in lengths),
        Reduce(n, "float32", n * _MB + 6, subdivs=-1),
        Reduce(n, "int64", n * 3 * _MB // 4),
    ]


@pytest.fixture(scope="module")
def stock():
    with Ranks(["grpc"] * _RANKS) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def ours():
    with Ranks(["grpc+fuse"] * _RANKS) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def ring():
    with Ranks(["grpc+fuse"] * _RANKS, {"TF_FUSE_COLLECTIVE_ALGORITHM": "ring"}) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def stock_reduced(stock):
    """What stock makes of specifications, computed once."""
    made = {}

    def reduced(specs):
        key = tuple(specs)
        if key not in made:
            made[key] = stock.values("reduce", specs=specs)
        return made[key]

    return reduced


def _same(specs, stock, ours):
    """Compares by specification, and names those that differ."""
    different = [
        (str(spec), rank)
        for rank, (theirs, its) in enumerate(zip(stock, ours, strict=True))
        for spec, a, b in zip(specs, theirs, its, strict=True)
        if a != b
    ]
    assert not different, f"{len(different)} of {len(specs)}: {different[:10]}"


def _all_right(results):
    """That members have the same, and that something was compared."""
    for of_one in zip(*results, strict=True):
        got = {x for x in of_one if x is not None}
        assert len(got) == 1, of_one


# --- TensorFlow's own collectives ----------------------------------------------------------------


def test_stock_is_stock(stock, ours):
    assert stock.values("plugin_loaded") == [False] * _RANKS
    assert ours.values("plugin_loaded") == [True] * _RANKS


@pytest.mark.parametrize("n", _SIZES_BUT_MOST_SLOW)
def test_all_reduce_directly(stock_reduced, ours, n):
    specs = _specs(n)
    results, counted = ours.counted("reduce", specs=specs)
    _all_right(results)
    _same(specs, stock_reduced(specs), results)
    assert [c.get("direct_collectives", 0) for c in counted[:n]] == [len(specs)] * n
    assert not any("collective_bytes_stock" in c for c in counted)


@pytest.mark.parametrize("n", _SIZES_BUT_MOST_SLOW)
def test_megabytes(stock_reduced, ours, n):
    specs = _megabytes(n)
    results = ours.values("reduce", specs=specs)
    _all_right(results)
    _same(specs, stock_reduced(specs), results)


@pytest.mark.parametrize("n", _SIZES)
def test_payloads_of_nans(stock_reduced, ours, n):
    specs = _payloads(n)
    _same(specs, stock_reduced(specs), ours.values("reduce", specs=specs))


@pytest.mark.parametrize("n", _SIZES_BUT_MOST_SLOW)
def test_all_reduce_by_the_ring(stock_reduced, ring, n):
    specs = _specs(n)
    results, counted = ring.counted("reduce", specs=specs)
    _same(specs, stock_reduced(specs), results)
    for of_rank in counted[:n]:
        assert "direct_collectives" not in of_rank
        assert of_rank["collective_bytes_shm"] > 0
        assert "collective_bytes_stock" not in of_rank


@pytest.mark.parametrize("n", _SIZES_BUT_MOST_SLOW)
def test_megabytes_by_the_ring(stock_reduced, n):
    specs = _megabytes(n)
    with Ranks(["grpc+fuse"] * n, {"TF_FUSE_COLLECTIVE_ALGORITHM": "ring"}) as ranks:
        results = ranks.values("reduce", specs=specs)
        _same(specs, stock_reduced(specs)[:n], results)


@pytest.mark.parametrize("elements", [400003, pytest.param(1000003, marks=_SLOW)])
def test_large_gather(stock, elements):
    args = {"dtype": "float64", "shape": [elements]}
    with Ranks(["grpc+fuse"] * _RANKS) as ranks:
        want = stock.values("gather", **args)
        for _ in range(3):
            assert ranks.values("gather", **args) == want


@pytest.mark.parametrize(
    "path", ["default", "grpc", pytest.param("shm", marks=_SLOW), "stock", "tcp"]
)
def test_every_data_path(stock_reduced, path):
    specs = _specs(3)
    with Ranks(["grpc+fuse"] * 3, {"TF_FUSE_COLLECTIVE_PATHS": _PATHS[path]}) as ranks:
        results, counted = ranks.counted("reduce", specs=specs)
        _same(specs, stock_reduced(specs)[:3], results)
        for of_rank in counted:
            moved = {
                k.removeprefix("collective_bytes_")
                for k in of_rank
                if k.startswith("collective_bytes_")
            }
            assert moved == {_COUNTED[path]}
            assert ("direct_collectives" in of_rank) == (path != "stock")
            assert "lent_chunks" not in of_rank


def test_shapes_are_kept(stock, ours):
    for shape in ([], [1], [3, 5, 7], [1, 1, 70001]):
        assert ours.values("reduce_shaped", shape=shape) == stock.values(
            "reduce_shaped", shape=shape
        )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
def test_gather(stock, ours, dtype):
    for shape in ([1], [17, 3], [5], [70001]):
        assert ours.values("gather", dtype=dtype, shape=shape) == stock.values(
            "gather", dtype=dtype, shape=shape
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_all_to_all(stock, ours, dtype):
    for elements in (1, 17, 8191, 100003):
        assert ours.values("all_to_all", dtype=dtype, elements=elements) == stock.values(
            "all_to_all", dtype=dtype, elements=elements
        )


@pytest.mark.parametrize("source", [0, _RANKS - 1])
def test_broadcast(stock, ours, source):
    for dtype, elements in (("float32", 1), ("int32", 997), ("float64", 100003)):
        args = {"dtype": dtype, "elements": elements, "source": source}
        results = ours.values("broadcast", **args)
        assert len(set(results)) == 1
        assert results == stock.values("broadcast", **args)


# --- Ours ----------------------------------------------------------------------------------------


def _scatter_gather_is_all_reduce(stock, ranks, tensors, members=None):
    """Runs one call of many vectors; the gathered ones are stock's all-reduces."""
    members = members or list(range(_RANKS))
    ours = ranks.values("scatter_gather", tensors=tensors, members=members)
    for index, (dtype, (elements,)) in enumerate(tensors):
        if elements == 0:
            continue
        want = stock.values("group_reduce", dtype=dtype, elements=elements, members=members)
        for rank in members:
            assert ours[rank]["whole"][index] == want[rank], (dtype, elements, rank)
    for rank in set(range(_RANKS)) - set(members):
        assert ours[rank] is None
    return ours


@pytest.mark.parametrize("n", _SIZES)
@pytest.mark.parametrize("dtype", sorted(_BYTES))
def test_reduce_scatter_and_all_gather_are_the_all_reduce(stock, ours, dtype, n):
    lengths = [1, n - 1, n, 15, 17, 16 * n + 1, 0, 997, 8193, 40009]
    _scatter_gather_is_all_reduce(
        stock, ours, [(dtype, [e]) for e in lengths], members=list(range(n))
    )


@pytest.mark.parametrize("n", _SIZES_BUT_MOST_SLOW[1:])
def test_reduce_scatter_of_large_chunks(stock, ours, n):
    tensors = [("float32", [4 * _MB + 4099])]
    _scatter_gather_is_all_reduce(stock, ours, tensors, list(range(n)))


@pytest.mark.parametrize("n", _SIZES)
@pytest.mark.parametrize("elements", [_MB, 1234577])
def test_large_reduce_scatter_and_all_gather(stock, ours, n, elements):
    _scatter_gather_is_all_reduce(stock, ours, [("float32", [elements])], list(range(n)))


def test_many_tensors_in_one_call(stock, ours):
    # Tiny ones share pieces; large ones begin and end within pieces.
    lengths = [0, 1, 2, 0, 300007, 3, *range(1, 60, 7), 262144, 5, 0]
    results = _scatter_gather_is_all_reduce(stock, ours, [("float32", [e]) for e in lengths])
    for elements, *of_ranks in zip(lengths, *(r["lengths"] for r in results), strict=True):
        assert sum(of_ranks) == elements


@pytest.mark.parametrize("n", _SIZES_BUT_MOST_SLOW)
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


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    "dtype", [pytest.param("bfloat16", marks=_SLOW), "float32", pytest.param("int64", marks=_SLOW)]
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


@pytest.mark.parametrize("elements", [1, 31, 64, 1000, 300007])
def test_two_levels(ours, elements):
    results = ours.values("two_levels", elements=elements)
    assert [r["right"] for r in results] == [True] * _RANKS
    assert all(r["length"] == r["range"][1] - r["range"][0] for r in results)


@pytest.mark.parametrize("elements", [1, 3, 16, 100, 4099])
def test_gradients(ours, elements):
    assert (
        ours.values("gradients", elements=elements) == [{"scatter": True, "gather": True}] * _RANKS
    )


@settings(
    max_examples=60 if _LONG else 12,
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
    dtype=st.sampled_from(sorted(_BYTES)),
    n=st.sampled_from(_SIZES),
)
def test_any_lengths(stock, ours, lengths, dtype, n):
    _scatter_gather_is_all_reduce(stock, ours, [(dtype, [e]) for e in lengths], list(range(n)))
    specs = [Reduce(n, dtype, e) for e in lengths if e]
    _same(specs, stock.values("reduce", specs=specs), ours.values("reduce", specs=specs))


# --- Devices of one process ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_devices():
    with (
        Ranks(["grpc"] * 2, devices=2) as theirs,
        Ranks(["grpc+fuse"] * 2, devices=2) as ours,
    ):
        yield theirs, ours


@pytest.mark.parametrize(
    "elements",
    [1, 17, 1000, 70001, pytest.param(4 * _MB + 5, marks=_SLOW)],
)
def test_two_devices_in_each_process(two_devices, elements):
    theirs, ours = two_devices
    want = theirs.values("local_reduce", dtype="float32", elements=elements)
    assert len(set(want[0] + want[1])) == 1
    results, counted = ours.counted("local_reduce", dtype="float32", elements=elements)
    assert results == want
    assert [c["direct_collectives"] for c in counted] == [2, 2]
    if elements <= 4 * _MB:  # Above: test_reduce_scatter_of_two_subdivisions.
        assert ours.values("local_scatter", elements=elements) == want


@pytest.mark.parametrize("devices", [pytest.param(2, marks=_SLOW), 3, pytest.param(4, marks=_SLOW)])
def test_mirrored_strategy(devices):
    with Ranks(["grpc+fuse"], devices=devices, server=False) as ranks:
        for elements in (1, 1000, 300007):
            result = ranks.values("mirrored", elements=elements, calls=3)
            assert result == [{"replicas": devices, "right": True}]


# --- Many, and at the same time ------------------------------------------------------------------


@pytest.mark.parametrize("elements", [5, 20000, pytest.param(400000, marks=_SLOW)])
def test_concurrent_groups(stock, ours, elements):
    args = {"groups": 4, "calls": 5, "elements": elements}
    assert ours.values("concurrent", **args) == stock.values("concurrent", **args)


@pytest.mark.parametrize(
    ("op", "calls"),
    [
        ("all_reduce", 2_000),
        pytest.param("all_reduce", 10_000, marks=_SLOW),
        ("rs_ag", 10_000 if _LONG else 2_000),
    ],
)
def test_many_small_calls_leave_nothing(ours, op, calls):
    results = ours.values("repeat", calls=calls, elements=100, op=op, warm=500)
    for result in results:
        assert result["right"] is True
        before, after = result["before"], result["after"]
        assert after["descriptors"] == before["descriptors"]
        assert after["threads"] <= before["threads"] + 2
        # A leak of a request or buffer for each call would be megabytes.
        assert after["rss_kib"] - before["rss_kib"] < 8 << 10
    assert [c["lent_chunks"] for c in ours.values("counters")] == [0] * _RANKS
