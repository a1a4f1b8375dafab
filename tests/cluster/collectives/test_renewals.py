# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collectives of a server that TensorFlow updates: by another strategy, or other tasks.

TensorFlow makes a new manager of collectives then, and has made its own in place of the plugin's.
"""

import itertools

import pytest

from examples.standalone import cluster_package
from tests.cluster.collectives.ranks import Ranks, Reduce
from tests.cluster.shard_update.checks import check_equal
from tests.slow_cases import slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_SLOW = pytest.mark.slow
_PATHS_BUT_TCP_SLOW = ("", "grpc", pytest.param("tcp,grpc", marks=_SLOW))
_ELEMENTS = 300_000


def _reduce(n):
    return {"specs": [Reduce(n, "float32", _ELEMENTS)]}


def _goes_by(counted, path):
    """Whether every rank took an all-reduce by the plugin's algorithm and path alone."""
    for of_rank in counted:
        assert of_rank["direct_collectives"] == 1
        assert of_rank[f"collective_bytes_{path.partition(',')[0] or 'shm'}"] > 0
        assert "collective_bytes_stock" not in of_rank


@pytest.mark.parametrize("path", _PATHS_BUT_TCP_SLOW)
def test_the_plugin_stays(path):
    with Ranks(["grpc+fuse"] * 2, {"TF_FUSE_COLLECTIVE_PATHS": path}) as ranks:
        expected, counted = ranks.counted("reduce", **_reduce(2))
        _goes_by(counted, path)
        for _ in range(2):
            ranks.values("renew", from_one=True)
            results, counted = ranks.counted("reduce", **_reduce(2))
            assert results == expected
            _goes_by(counted, path)
        # One rank alone: the others know its former form.
        ranks.values("renew", [1])
        results, counted = ranks.counted("reduce", **_reduce(2))
        assert results == expected
        _goes_by(counted, path)
        # The leader alone: TensorFlow's groups are gone with it, which it says, also in stock. (It
        # has met the other one since that one renewed.)
        assert ranks.values("reduce", **_reduce(2)) == expected
        ranks.values("renew", [0])
        ranks.start("reduce", **_reduce(2))
        (error,) = ranks.wait([1])
        assert "This normally means the server has restarted" in error.text, error.text


def test_stock_with_one_rank_that_renews():
    # What the test above expects of the plugin.
    with Ranks(["grpc"] * 2) as ranks:
        expected = ranks.values("reduce", **_reduce(2))
        ranks.values("renew", [1])
        assert ranks.values("reduce", **_reduce(2)) == expected


@pytest.mark.parametrize("path", _PATHS_BUT_TCP_SLOW)
def test_who_waits_for_a_rank_that_renews_is_answered(path):
    """Ranks renew one after the other, and the first one need not wait for the last.

    Most of its requests, for a chunk or for a group that is not known yet, are there before.
    """
    with Ranks(["grpc+fuse"] * 2, {"TF_FUSE_COLLECTIVE_PATHS": path}) as ranks:
        for op in ("all_reduce", "reduce_scatter"):
            args = {"op": op, "elements": _ELEMENTS, "key": 77}
            expected = ranks.values("attempt", **args)
            for group_key in (3000, 3000, 3000, 5000, 6000, 7000):
                ranks.values("renew", [1])
                ranks.start("attempt", [1], **args, group_key=group_key)
                if path == "grpc" and group_key == 3000:
                    ranks.values("wait_for_requests", [0])
                ranks.values("renew", [0])
                ranks.start("attempt", [0], **args, group_key=group_key)
                assert ranks.wait() == expected
        assert [c["collective_bytes_stock"] for c in ranks.values("counters")] == [0, 0]


@pytest.mark.parametrize(
    ("path", "sizes"),
    slow_but(
        itertools.product(("", "grpc", "tcp,grpc"), ([_ELEMENTS] * 2, [7, 8])),
        lambda one: one in (("", [7, 8]), ("grpc", [_ELEMENTS] * 2)),
    ),
)
def test_who_waits_for_a_broadcast_of_a_rank_that_renews_gets_its_value(path, sizes):
    """The strategy of another model gives its variables the keys that those of the first one had.

    Rank 0 knows a broadcast of that key when rank 1 asks, and begins anew only then.
    """
    with Ranks(["grpc+fuse"] * 2, {"TF_FUSE_COLLECTIVE_PATHS": path}) as ranks:
        ranks.values("attempt", op="broadcast", elements=_ELEMENTS, key=77)
        for times, elements in enumerate(sizes, 1):
            ranks.values("renew", [1])
            ranks.start("attempt", [1], op="broadcast", elements=elements, key=77)
            if path == "grpc" or elements != _ELEMENTS:
                ranks.values("wait_for_requests", [0])
            for _ in range(times):
                ranks.values("renew", [0])
            ranks.start("attempt", [0], op="broadcast", elements=elements, key=77)
            sent, received = ranks.wait()
            assert sent == received, (sent, received)


def test_another_size_of_who_renewed_is_an_error_if_nobody_else_renews():
    with Ranks(["grpc+fuse"] * 2) as ranks:
        args = {"op": "broadcast", "key": 77}
        ranks.values("attempt", **args, elements=_ELEMENTS)
        ranks.values("renew", [1])
        ranks.start("attempt", [1], **args, elements=7)
        ranks.values("wait_for_requests", [0])
        ranks.start("attempt", [0], **args, elements=_ELEMENTS)
        (received,) = ranks.wait([1])
        assert "Shape mismatch in the collective instance 77" in received["error"].text, received


_ANEW = (
    "the collectives of /job:worker/replica:0/task:0 began anew while this one was under way: the "
    "program made another strategy or enabled collectives once more"
)


def test_what_is_under_way_where_it_renews_is_an_error():
    with Ranks(["grpc+fuse"] * 2) as ranks:
        ranks.values("attempt", op="all_reduce", elements=_ELEMENTS)
        (error,) = ranks.run("renewed_under_way", [0], elements=_ELEMENTS)
        assert error.code == 10
        assert _ANEW in error.text, error
        ranks.values("renew", [1], from_one=True)
        results, counted = ranks.counted("attempt", op="all_reduce", elements=_ELEMENTS, key=1)
        assert results[0] == results[1]
        _goes_by(counted, "")


def test_who_was_in_it_with_the_one_that_renews_hears_of_it():
    """Nobody else renews, and there is no time limit."""
    with Ranks(["grpc+fuse"] * 3, {"TF_FUSE_COLLECTIVE_PATHS": "grpc"}) as ranks:
        args = {"elements": _ELEMENTS, "key": 77}
        ranks.values("attempt", op="all_reduce", elements=_ELEMENTS)
        ranks.start("attempt", [1], op="all_reduce", **args)
        # Of rank 1: what rank 0 has summed, and whether it has failed.
        (error,) = ranks.run("renewed_under_way", [0], **args, requests=2)
        assert error.code == 10
        (of_other,) = ranks.wait([1])
        assert of_other["error"].code == 10, of_other
        assert "From member 0 (/job:worker/replica:0/task:0/device:CPU:0) of 3: " in str(of_other)
        assert _ANEW in of_other["error"].text, of_other


def test_tasks_come_and_go():
    with Ranks(["grpc+fuse"] * 3) as ranks:
        of_three, counted = ranks.counted("reduce", **_reduce(3))
        _goes_by(counted, "")
        ranks.values("renew", [0, 1], tasks=2, from_one=True)
        of_two = ranks.values("reduce", [0, 1], **_reduce(2))
        assert of_two[0] == of_two[1] != of_three[0]
        ranks.kill(2)
        ranks.restart(2)
        ranks.values("renew", [0, 1], from_one=True)
        results, counted = ranks.counted("reduce", **_reduce(3))
        assert results == of_three
        _goes_by(counted, "")


@pytest.mark.parametrize(
    "path", ["", pytest.param("grpc", marks=_SLOW), pytest.param("tcp,grpc", marks=_SLOW)]
)
def test_other_contexts(path):
    """Each has a server of its own: TensorFlow ends none, so the old address stays taken."""
    with Ranks(["grpc+fuse"] * 2, {"TF_FUSE_COLLECTIVE_PATHS": path}) as ranks:
        expected, counted = ranks.counted("reduce", **_reduce(2))
        _goes_by(counted, path)
        for how in ("second", "reset"):
            with cluster_package().ports.HeldPorts(2) as ports:
                addresses = [f"127.0.0.1:{port}" for port in ports.numbers]
                ranks.values("begin_anew", addresses=addresses, how=how)
                results, counted = ranks.counted("reduce", **_reduce(2))
                assert results == expected
                _goes_by(counted, path)
                if how == "second":
                    ranks.values("go_back")
                    results, counted = ranks.counted("reduce", **_reduce(2))
                    assert results == expected
                    _goes_by(counted, path)


def test_a_second_strategy_is_as_the_first():
    with Ranks(["grpc+fuse"] * 2, server=False) as ranks:
        first, counted = ranks.counted("train", kind="keras")
        again, counted_again = ranks.counted("train", kind="keras")
        assert again == first
        for one, two in zip(counted, counted_again, strict=True):
            assert two["direct_collectives"] == one["direct_collectives"] > 0
            assert two["collective_bytes_shm"] == one["collective_bytes_shm"] > 0
            assert "collective_bytes_stock" not in one and "collective_bytes_stock" not in two


@pytest.mark.parametrize("gather", [pytest.param("end", marks=_SLOW), "first_use"])
def test_updates_that_are_cut_under_two_strategies(gather):
    with Ranks(["grpc+fuse"] * 2, server=False) as ranks:
        stock = ranks.values("with_two_strategies", on=False, gather="end")
        here = ranks.values("with_two_strategies", on=True, gather=gather)
        for one, other in zip(stock, here, strict=True):
            check_equal(one, other)
            # Each of the two has parts of its own, and keeps them while the other one trains.
            assert [held[2:] for held in other[-1]["held"]] == [(True, 4), (True, 4)]
