# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, stop, differ or speak another protocol: others hear of it, and nothing hangs.

A failed collective ends all later ones of its process in stock TensorFlow: each case has ranks of
its own.
"""

import pytest
from cluster.collective_ranks import Ended, Error, Ranks

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(300)]

_OURS = ["grpc+fuse"] * 3
_ENDLESS = 10_000_000  # calls
_LARGE = 3_000_000  # elements
_OPS = ["all_reduce", "reduce_scatter"]
_PATHS = ["", "grpc", "tcp,grpc"]
_CANCELLED, _INVALID, _DEADLINE, _INTERNAL = 1, 3, 4, 13


def _failed(results):
    """The errors of results, all of which must have one."""
    errors = []
    for result in results:
        error = result.get("error") if isinstance(result, dict) else result
        assert isinstance(error, Error), result
        errors.append(error)
    return errors


def _nothing_left(ranks, living):
    """Gauges fall to zero in ranks that live."""
    ranks.start("wait_for_gauges", living)
    for counters in ranks.wait(living):
        assert counters["lent_chunks"] == 0
        assert counters["pending_requests"] == 0


@pytest.mark.parametrize("op", _OPS)
@pytest.mark.parametrize("path", _PATHS)
def test_killed_rank(op, path):
    with Ranks(_OURS, {"TF_FUSE_COLLECTIVE_PATHS": path}) as ranks:
        ranks.values("attempt", op=op, elements=_LARGE)
        ranks.start("attempt", op=op, elements=_LARGE, calls=_ENDLESS)
        ranks.begun(0)
        ranks.kill(2)
        errors = _failed(ranks.wait([0, 1]))
        for error in errors:
            assert "task:2" in error.text, error
        _nothing_left(ranks, [0, 1])


@pytest.mark.parametrize("op", _OPS)
@pytest.mark.parametrize("path", _PATHS)
def test_stopped_rank(op, path):
    with Ranks(_OURS, {"TF_FUSE_COLLECTIVE_PATHS": path}) as ranks:
        args = {"op": op, "elements": _LARGE, "timeout_seconds": 3.0}
        ranks.values("attempt", **args)
        ranks.start("attempt", calls=_ENDLESS, **args)
        ranks.begun(0)
        ranks.pause(1)
        errors = _failed(ranks.wait([0, 2], seconds=40))
        # A rank that failed first may tell the other, whose text then names both.
        for error in errors:
            assert error.code == _DEADLINE, error
            assert "task:1" in error.text, error
        ranks.resume(1)
        (late,) = ranks.wait([1], seconds=40)
        assert late is not Ended
        _nothing_left(ranks, [0, 1, 2])


@pytest.mark.parametrize(
    ("op", "dtype", "elements", "code", "texts"),
    [
        ("all_reduce", "float32", 1001, _INVALID, ["[1000]", "[1001]"]),
        ("all_reduce", "float32", 300001, _INVALID, ["[1000]", "[300001]"]),
        # TensorFlow looks at the types first, and names them so.
        ("all_reduce", "float64", 1000, _INTERNAL, ["data_type 1 ", "data_type 2"]),
        ("all_reduce", "int32", 1000, _INTERNAL, ["data_type 1 ", "data_type 3"]),
        ("reduce_scatter", "float32", 1001, _INVALID, ["[1000]", "[1001]"]),
        ("reduce_scatter", "float32", 300001, _INVALID, ["[1000]", "[300001]"]),
        ("reduce_scatter", "float64", 1000, _INVALID, ["of float ", "of double "]),
        ("reduce_scatter", "int32", 1000, _INVALID, ["of float ", "of int32 "]),
    ],
)
def test_rank_that_differs(op, dtype, elements, code, texts):
    with Ranks(_OURS) as ranks:
        ranks.start("attempt", [0, 2], op=op, elements=1000)
        ranks.start("attempt", [1], op=op, elements=elements, dtype=dtype)
        errors = _failed(ranks.wait())
        for rank, error in enumerate(errors):
            assert error.code == code, (rank, error)
            assert all(text in error.text for text in texts), (rank, error)
        for error in (errors[0], errors[2]):
            assert "/task:1/device:CPU:0" in error.text, error
        _nothing_left(ranks, [0, 1, 2])


@pytest.mark.parametrize("op", _OPS)
def test_cancelled(op):
    with Ranks(_OURS) as ranks:
        ranks.values("attempt", op=op, elements=1000)
        ranks.start("cancelled", [0], op=op, elements=1000)
        (error,) = _failed(ranks.wait([0]))
        assert error.code == _CANCELLED, error
        ranks.run("skip_keys", [1, 2])
        _nothing_left(ranks, [0, 1, 2])


@pytest.mark.parametrize("op", _OPS)
def test_members_that_never_come(op):
    with Ranks(_OURS) as ranks:
        ranks.start("attempt", [0], op=op, elements=1000, timeout_seconds=2.0)
        (error,) = _failed(ranks.wait([0], seconds=30))
        assert error.code == _DEADLINE, error
        _nothing_left(ranks, [0])


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
