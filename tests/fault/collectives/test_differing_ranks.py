# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One rank differs: by its arguments, cancelled calls, a lost data path, or a missing plugin."""

import re

import psutil
import pytest

from tests.cluster.collectives.ranks import Ranks
from tests.fault.collectives.failing_calls import (
    CANCELLED,
    ENDLESS,
    INTERNAL,
    INVALID,
    LARGE,
    OURS,
    PATH_AND_OP,
    SLOW,
    UNAVAILABLE,
    failed,
    nothing_left,
)
from tests.fault.soak import faults as soak_faults

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("op", "dtype", "elements", "code", "texts"),
    [
        ("all_reduce", "float32", 1001, INVALID, ["[1000]", "[1001]"]),
        pytest.param("all_reduce", "float32", 300001, INVALID, ["[1000]", "[300001]"], marks=SLOW),
        # TensorFlow looks at the types first, and names them so: the one that came first and one
        # that came later, and not whose they are.
        ("all_reduce", "float64", 1000, INTERNAL, ["data_type 1", "data_type 2"]),
        pytest.param(
            "all_reduce", "int32", 1000, INTERNAL, ["data_type 1", "data_type 3"], marks=SLOW
        ),
        pytest.param("reduce_scatter", "float32", 1001, INVALID, ["[1000]", "[1001]"], marks=SLOW),
        ("reduce_scatter", "float32", 300001, INVALID, ["[1000]", "[300001]"]),
        ("reduce_scatter", "float64", 1000, INVALID, ["of float ", "of double "]),
        pytest.param(
            "reduce_scatter", "int32", 1000, INVALID, ["of float ", "of int32 "], marks=SLOW
        ),
    ],
)
def test_rank_that_differs(op, dtype, elements, code, texts):
    with Ranks(OURS) as ranks:
        ranks.start("attempt", [0, 2], op=op, elements=1000)
        ranks.start("attempt", [1], op=op, elements=elements, dtype=dtype)
        errors = failed(ranks.wait())
        for rank, error in enumerate(errors):
            assert error.code == code, (rank, error)
            assert all(text in error.text for text in texts), (rank, error)
        for error in (errors[0], errors[2]) if code == INVALID else ():
            if op == "all_reduce":  # TensorFlow names a member that came after one that differs.
                named = re.search(r"/task:(\d)/device:CPU:0 expected shape \[(\d+)\]", error.text)
                assert named, error
                assert int(named[2]) == (elements if named[1] == "1" else 1000), error
            else:
                assert "/task:1/device:CPU:0" in error.text, error
        nothing_left(ranks, [0, 1, 2])


@pytest.mark.parametrize(("path", "op"), PATH_AND_OP)
def test_cancelled_calls_leave_nothing(op, path):
    args = {"op": op, "elements": 1_000_000, "key": 77}
    with Ranks(OURS, {"TF_FUSE_COLLECTIVE_PATHS": path}) as ranks:
        expected = ranks.values("attempt", **args)
        (errors,) = ranks.values("cancelled", [0], calls=10, **args)
        before = ranks.values("usage")
        (more,) = ranks.values("cancelled", [0], calls=40, **args)
        for error in errors + more:
            assert error.code == CANCELLED, error
        # Peers may not have seen the last cancelled requests yet; these calls come behind them.
        ranks.values("attempt", **{**args, "key": 78})
        nothing_left(ranks, [0, 1, 2])
        for old, new in zip(before, ranks.values("usage"), strict=True):
            assert new["threads"] <= old["threads"] + 2
            assert new["descriptors"] <= old["descriptors"]
            # Of one call there would be 4 MB.
            assert new["rss_kib"] - old["rss_kib"] < 20 << 10
        # By the same keys: a registration of a cancelled call would be in the way.
        again = ranks.values("attempt", **args)
        assert again == expected, [str(one.get("error"))[-330:-60] for one in again]


def _drop_channels(pid):
    """Drops the data channels that others have to a rank."""
    _, *accepted = sorted(  # the first one listens
        c.fd
        for c in psutil.Process(pid).net_connections("unix")
        if c.laddr.startswith(f"@tf_fuse.{pid}.")
    )
    for fd in accepted:
        soak_faults.drop(pid, fd)


@pytest.mark.skipif(bool(soak_faults.may_drop()), reason=soak_faults.may_drop() or "-")
@pytest.mark.parametrize("op", [pytest.param("all_reduce", marks=SLOW), "reduce_scatter"])
def test_a_channel_that_is_lost_is_an_error_with_the_name(op):
    with Ranks(OURS) as ranks:
        ranks.values("attempt", op=op, elements=LARGE)
        ranks.start("attempt", op=op, elements=LARGE, calls=ENDLESS)
        ranks.begun(0)
        # One that is lost between two requests is made anew, and nobody is the worse.
        while not ranks.answers(0):
            _drop_channels(ranks._ranks[2].pid)
        errors = failed(ranks.wait())
        for error in errors:
            assert error.code == UNAVAILABLE, error
            assert "the data channel was" in error.text, error
        for error in errors[:2]:
            assert re.search(r"task:2\b", error.text), error
        nothing_left(ranks, [0, 1, 2])


@pytest.mark.parametrize("op", ["all_reduce", pytest.param("reduce_scatter", marks=SLOW)])
def test_no_shared_memory_is_no_fault(op):
    args = {"op": op, "elements": LARGE}
    with Ranks(OURS) as ranks:
        expected = ranks.values("attempt", **args)
    with Ranks(OURS, {"TF_FUSE_MAX_SHARED_MEMORY_BYTES": "0"}) as ranks:
        results, counted = ranks.counted("attempt", **args)
        assert results == expected
        for rank, of_rank in enumerate(counted):
            assert of_rank["collective_bytes_shm"] > 0, rank  # through the Unix socket
            assert "collective_bytes_grpc" not in of_rank
        assert [c["shared_memory_bytes"] for c in ranks.values("counters")] == [0, 0, 0]


def test_one_rank_without_the_plugin():
    protocols = ["grpc+fuse", "grpc+fuse", "grpc"]
    with Ranks(protocols) as mixed, Ranks(["grpc"] * 3) as stock:
        assert mixed.values("plugin_loaded") == [True, True, False]
        for elements in (1, 1000, 300007):
            for case in ("reduce_shaped", "gather"):
                args = {"shape": [elements]} | ({"dtype": "float32"} if case == "gather" else {})
                before = mixed.values("counters", [0, 1])
                assert mixed.values(case, **args) == stock.values(case, **args)
                after = mixed.values("counters", [0, 1])
                # Rank 0 takes from rank 2, in the ring.
                name = "collective_bytes_stock"
                assert after[0][name] > before[0][name]
                assert after[0]["direct_collectives"] == 0
        said = "/job:worker/replica:0/task:2 does not run the protocol grpc+fuse"
        assert [mixed.log(rank).count(said) for rank in range(2)] == [1, 0]
        assert "does not run the protocol" not in stock.log(0)
