# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collectives by `grpc+fuse` give the bits of stock TensorFlow's, whichever way the bytes go.

TF_FUSE_TEST_COLLECTIVES=1 (`make collectives`) adds groups of 8, more sizes and longer loops.
"""

import pytest

from tests.cluster.collectives.ranks import Ranks
from tests.cluster.collectives.reductions import (
    LONG,
    MB,
    RANKS,
    SIZES_BUT_MOST_SLOW,
    SLOW,
    all_right,
    all_specs,
    megabytes,
    payloads,
    same,
)
from tests.slow_cases import slow, slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

# In shared memory and by the ring, by gRPC, by TCP.
_PATHS = {"default": "", "shm": "shm", "grpc": "grpc", "tcp": "tcp,grpc", "stock": "stock"}
_COUNTED = {"default": "shm", "shm": "shm", "grpc": "grpc", "tcp": "tcp", "stock": "stock"}


# --- TensorFlow's own collectives ----------------------------------------------------------------


def test_stock_is_stock(stock, ours):
    assert stock.values("plugin_loaded") == [False] * RANKS
    assert ours.values("plugin_loaded") == [True] * RANKS


@pytest.mark.parametrize("n", SIZES_BUT_MOST_SLOW)
def test_all_reduce_directly(stock_reduced, ours, n):
    specs = all_specs(n)
    results, counted = ours.counted("reduce", specs=specs)
    all_right(results)
    same(specs, stock_reduced(specs), results)
    assert [c.get("direct_collectives", 0) for c in counted[:n]] == [len(specs)] * n
    assert not any("collective_bytes_stock" in c for c in counted)


@pytest.mark.parametrize("n", SIZES_BUT_MOST_SLOW)
def test_megabytes(stock_reduced, ours, n):
    specs = megabytes(n)
    results = ours.values("reduce", specs=specs)
    all_right(results)
    same(specs, stock_reduced(specs), results)


@pytest.mark.parametrize("n", SIZES_BUT_MOST_SLOW)
def test_payloads_of_nans(stock_reduced, ours, n):
    specs = payloads(n)
    same(specs, stock_reduced(specs), ours.values("reduce", specs=specs))


@pytest.mark.parametrize("n", SIZES_BUT_MOST_SLOW)
def test_all_reduce_by_the_ring(stock_reduced, ring, n):
    specs = all_specs(n)
    results, counted = ring.counted("reduce", specs=specs)
    same(specs, stock_reduced(specs), results)
    for of_rank in counted[:n]:
        assert "direct_collectives" not in of_rank
        assert of_rank["collective_bytes_shm"] > 0
        assert "collective_bytes_stock" not in of_rank


@pytest.mark.parametrize("n", SIZES_BUT_MOST_SLOW)
def test_megabytes_by_the_ring(stock_reduced, n):
    specs = megabytes(n)
    with Ranks(["grpc+fuse"] * n, {"TF_FUSE_COLLECTIVE_ALGORITHM": "ring"}) as ranks:
        results = ranks.values("reduce", specs=specs)
        same(specs, stock_reduced(specs)[:n], results)


@pytest.mark.parametrize("elements", [400003, pytest.param(1000003, marks=SLOW)])
def test_large_gather(stock, elements):
    args = {"dtype": "float64", "shape": [elements]}
    with Ranks(["grpc+fuse"] * RANKS) as ranks:
        want = stock.values("gather", **args)
        for _ in range(3):
            assert ranks.values("gather", **args) == want


@pytest.mark.parametrize(
    "path", ["default", "grpc", pytest.param("shm", marks=SLOW), "stock", "tcp"]
)
def test_every_data_path(stock_reduced, path):
    specs = all_specs(3)
    with Ranks(["grpc+fuse"] * 3, {"TF_FUSE_COLLECTIVE_PATHS": _PATHS[path]}) as ranks:
        results, counted = ranks.counted("reduce", specs=specs)
        same(specs, stock_reduced(specs)[:3], results)
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


@pytest.mark.parametrize(
    "dtype", slow_but(["float32", "float64", "float16", "int32", "int64"], "float32".__eq__)
)
def test_gather(stock, ours, dtype):
    for shape in ([1], [17, 3], [5], [70001]):
        assert ours.values("gather", dtype=dtype, shape=shape) == stock.values(
            "gather", dtype=dtype, shape=shape
        )


@pytest.mark.parametrize("dtype", ["float32", slow("bfloat16"), slow("int64")])
def test_all_to_all(stock, ours, dtype):
    for elements in (1, 17, 8191, 100003):
        assert ours.values("all_to_all", dtype=dtype, elements=elements) == stock.values(
            "all_to_all", dtype=dtype, elements=elements
        )


@pytest.mark.parametrize("source", [0, RANKS - 1])
def test_broadcast(stock, ours, source):
    for dtype, elements in (("float32", 1), ("int32", 997), ("float64", 100003)):
        args = {"dtype": dtype, "elements": elements, "source": source}
        results = ours.values("broadcast", **args)
        assert len(set(results)) == 1
        assert results == stock.values("broadcast", **args)


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
    [1, slow(17), slow(1000), 70001, slow(4 * MB + 5)],
)
def test_two_devices_in_each_process(two_devices, elements):
    theirs, ours = two_devices
    want = theirs.values("local_reduce", dtype="float32", elements=elements)
    assert len(set(want[0] + want[1])) == 1
    results, counted = ours.counted("local_reduce", dtype="float32", elements=elements)
    assert results == want
    assert [c["direct_collectives"] for c in counted] == [2, 2]
    if elements <= 4 * MB:  # Above: test_reduce_scatter_of_two_subdivisions.
        assert ours.values("local_scatter", elements=elements) == want


@pytest.mark.parametrize("devices", [pytest.param(2, marks=SLOW), 3, pytest.param(4, marks=SLOW)])
def test_mirrored_strategy(devices):
    with Ranks(["grpc+fuse"], devices=devices, server=False) as ranks:
        for elements in (1, 1000, 300007):
            result = ranks.values("mirrored", elements=elements, calls=3)
            assert result == [{"replicas": devices, "right": True}]


# --- Many, and at the same time ------------------------------------------------------------------


@pytest.mark.parametrize("elements", [slow(5), 20000, slow(400000)])
def test_concurrent_groups(stock, ours, elements):
    args = {"groups": 4, "calls": 5, "elements": elements}
    assert ours.values("concurrent", **args) == stock.values("concurrent", **args)


@pytest.mark.parametrize(
    ("op", "calls"),
    [
        ("all_reduce", 2_000),
        pytest.param("all_reduce", 10_000, marks=SLOW),
        ("rs_ag", 10_000 if LONG else 2_000),
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
    assert [c["lent_chunks"] for c in ours.values("counters")] == [0] * RANKS


@pytest.mark.parametrize("calls", [70, slow(200)])
def test_instances_are_forgotten(calls):
    with Ranks(["grpc+fuse"] * 2) as ranks:
        results = ranks.values("repeat", calls=calls, elements=4, op="new_instances", warm=30)
    for result in results:
        assert result["right"] is True
        # TensorFlow keeps a record of each of 100 instances a call, the plugin those of 1,000.
        assert result["after"]["rss_kib"] - result["before"]["rss_kib"] < 8 << 10
