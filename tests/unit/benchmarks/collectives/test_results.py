# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The numbers of benchmarks/collectives, and which path was taken."""

import pytest

from benchmarks.collectives import results as numbers
from benchmarks.collectives import run as collectives
from benchmarks.common import rank_group
from benchmarks.common.rank_group import Measurement, RankError, Variant


def _measured(ms, wire=100, cpu_ms=1.0, calls=2, **counters):
    return Measurement(calls, calls * ms / 1e3, calls * wire, calls * cpu_ms / 1e3, counters)


def _rounds():
    ours = {"collective_bytes_shm": 30, "collective_bytes_grpc": 10, "collective_copied_bytes": 60}
    return {
        "stock": [_measured(8, 200, 3), _measured(4, 100, 5), _measured(6, 210, 4)],
        "tf_fuse": [_measured(2, 0, 1, **ours), _measured(2, 0, 1, **ours), _measured(1, 0, 1)],
        "gloo": [_measured(1), _measured(3), _measured(2)],
    }


def test_row():
    row = numbers.row("all_reduce", 4, 4096, _rounds())
    approx = pytest.approx
    assert {key: row[key] for key in ("op", "ranks", "bytes", "rounds", "calls")} == {
        "op": "all_reduce", "ranks": 4, "bytes": 4096, "rounds": 3, "calls": 2
    }  # fmt: skip
    assert row["ms"] == {
        "stock": approx({"median": 6, "min": 4, "max": 8}),
        "tf_fuse": approx({"median": 2, "min": 1, "max": 2}),
        "gloo": approx({"median": 2, "min": 1, "max": 3}),
    }
    assert row["wire_bytes"] == {"stock": 200, "tf_fuse": 0, "gloo": 100}
    assert row["cpu_ms"] == approx({"stock": 4, "tf_fuse": 1, "gloo": 1})
    # 60 + 20 bytes in two of three rounds of two calls, and 120 copied.
    assert row["path_bytes"] == {"tf_fuse": approx({"shm": 10, "grpc": 20 / 6})}
    assert row["copies_per_byte"] == approx({"tf_fuse": 1.5})
    # By round, not of medians.
    assert row["ratio"] == {
        "stock/tf_fuse": approx({"median": 4, "min": 2, "max": 6}),
        "gloo/tf_fuse": approx({"median": 1.5, "min": 0.5, "max": 2}),
        "stock/gloo": approx({"median": 3, "min": 4 / 3, "max": 8}),
    }


@pytest.mark.parametrize(
    ("path", "counters", "fine"),
    [
        (None, {"collective_bytes_shm": 5, "collective_bytes_grpc": 5}, True),
        ("grpc", {}, True),  # a library that does not count
        ("grpc", {"collective_bytes_shm": 0, "collective_bytes_grpc": 5}, True),
        ("grpc", {"collective_bytes_shm": 1, "collective_bytes_grpc": 5}, False),
        ("grpc", {"collective_bytes_shm": 0, "collective_bytes_grpc": 0}, False),
    ],
)
def test_forced_path(path, counters, fine):
    variant, measurement = Variant("tf_fuse[x]", path=path), _measured(1, **counters)
    if fine:
        collectives.check_path(variant, measurement)
        return
    shm, grpc = counters.values()
    text = (
        rf"variant tf_fuse\[x\]: bytes by data path are {{'shm': {shm}, 'grpc': {grpc}}}, expected "
        "some by grpc and none by another"
    )
    with pytest.raises(collectives.WrongPathError, match=text):
        collectives.check_path(variant, measurement)


@pytest.mark.parametrize(
    ("counters", "apart", "fine"),
    [
        ({"collective_bytes_shm": 0, "collective_bytes_grpc": 5}, True, True),
        ({"collective_bytes_shm": 1, "collective_bytes_grpc": 5}, True, False),
        ({"collective_bytes_shm": 1, "collective_bytes_grpc": 5}, False, True),
        ({}, True, True),
    ],
)
def test_hosts_apart_share_no_memory(counters, apart, fine):
    variant, measurement = Variant("tf_fuse"), _measured(1, **counters)
    if fine:
        collectives.check_path(variant, measurement, apart)
        return
    text = r"are {'shm': 1, 'grpc': 5}, expected none by shm: each rank has a host of its own"
    with pytest.raises(collectives.WrongPathError, match=text):
        collectives.check_path(variant, measurement, apart)


def test_bytes_of_stock_are_another_way():
    counters = {"collective_bytes_grpc": 5, "collective_bytes_stock": 1}
    with pytest.raises(collectives.WrongPathError, match=r"are {'grpc': 5, 'stock': 1}, expected"):
        collectives.check_path(Variant("x", path="grpc"), _measured(1, **counters))


def test_neighbours_share_a_host():
    two = rank_group.Network(["a", "b"], [["in", "a"], ["in", "b"]], "link")
    assert [two.host(rank, 4) for rank in range(4)] == [0, 0, 1, 1]
    assert [two.host(rank, 3) for rank in range(3)] == [0, 0, 1]
    assert [two.host(rank, 2) for rank in range(2)] == [0, 1]
    assert [rank_group.LOOPBACK.host(rank, 3) for rank in range(3)] == [0, 0, 0]


def test_counter_of_the_interface():
    text = (
        "Inter-|   Receive                    |  Transmit\n"
        " face |bytes packets errs drop fifo frame compressed multicast|bytes    packets errs\n"
        "  eth0: 11 1 0 0 0 0 0 0 12 1 0 0 0 0 0 0\n"
        "    lo: 7001 9 0 0 0 0 0 0 7002 9 0 0 0 0 0 0\n"
    )
    assert rank_group.wire_bytes("lo", text) == 7002  # what one sends, another receives
    assert rank_group.wire_bytes("eth0", text) == 11 + 12
    with pytest.raises(RankError, match="/proc/net/dev has no interface lo"):
        rank_group.wire_bytes("lo", text.replace("  lo:", " lo0:"))
