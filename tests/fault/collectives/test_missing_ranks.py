# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, stop or never come: the others name them, and nothing hangs or stays."""

import re
from pathlib import Path

import pytest

from tests.cluster.collectives.ranks import Ended, Ranks
from tests.fault import coordinator
from tests.fault.collectives.failing_calls import (
    CANCELLED,
    DEADLINE,
    ENDLESS,
    LARGE,
    OURS,
    PATH_AND_OP,
    SLOW,
    failed,
    nothing_left,
    under_way,
    with_time_limit,
)

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(300)]


# --- What stock TensorFlow has not ---------------------------------------------------------------


@pytest.mark.parametrize(("path", "op"), PATH_AND_OP)
def test_killed_rank(op, path):
    with Ranks(OURS, {"TF_FUSE_COLLECTIVE_PATHS": path}) as ranks:
        ranks.values("attempt", op=op, elements=LARGE)
        ranks.start("attempt", op=op, elements=LARGE, calls=ENDLESS)
        ranks.begun(0)
        ranks.kill(2)
        errors = failed(ranks.wait([0, 1]))
        for error in errors:
            assert "task:2" in error.text, error
        nothing_left(ranks, [0, 1])


@pytest.mark.parametrize(("path", "op"), PATH_AND_OP)
def test_stopped_rank(op, path):
    with Ranks(OURS, {"TF_FUSE_COLLECTIVE_PATHS": path}) as ranks:
        args = with_time_limit(ranks, op=op, elements=LARGE)
        ranks.start("attempt", calls=ENDLESS, **args)
        ranks.begun(0)
        ranks.pause(1)
        errors = failed(ranks.wait([0, 2]))
        # One that waits for a sum asks who was to make it, which may wait for the stopped one.
        for error in errors:
            assert error.code == DEADLINE, error
            assert "task:1" in error.text, error
        ranks.resume(1)
        (late,) = ranks.wait([1])
        assert late is not Ended
        nothing_left(ranks, [0, 1, 2])


# gRPC gives up a new connection to a stopped process after 20 s, as one to a dead one.
@SLOW
@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter"])
def test_a_rank_that_stops_for_long_is_not_lost(op):
    with Ranks(OURS) as ranks:
        ranks.values("attempt", op=op, elements=LARGE)
        ranks.start("attempt", op=op, elements=LARGE, calls=ENDLESS, timeout_seconds=40)
        ranks.begun(0)
        ranks.pause(1)
        for error in failed(ranks.wait([0, 2])):
            assert error.code == DEADLINE, error
            assert "task:1" in error.text, error
        ranks.resume(1)
        ranks.wait([1])


@pytest.mark.parametrize(
    "path", ["", pytest.param("grpc", marks=SLOW), pytest.param("tcp,grpc", marks=SLOW)]
)
def test_who_waits_for_one_that_waits_names_the_one_that_is_missing(path):
    # Rank 0 has the only sum, which rank 2 of the other group waits for.
    args = {"op": "reduce_scatter_in_groups", "elements": 1}
    with Ranks(["grpc+fuse"] * 4, {"TF_FUSE_COLLECTIVE_PATHS": path}) as ranks:
        with_limit = with_time_limit(ranks, **args)
        ranks.start("attempt", [0, 3], **args)
        ranks.start("attempt", [2], **with_limit)
        (error,) = failed(ranks.wait([2]))
        assert error.code == DEADLINE, error
        assert "it waited for member 0 (/job:worker/replica:0/task:0" in error.text, error
        missing = "; member 1 (/job:worker/replica:0/task:1/device:CPU:0) has not come"
        assert f"{missing} or does not answer" in error.text, error
        # Rank 0 hears of it; rank 3 has no shard, and may have ended before.
        (told,) = failed(ranks.wait([0]))
        assert missing in told.text, told
        ranks.wait([3])
        nothing_left(ranks, [0, 2, 3])


_COME = r"Group 3003 has 2 of 3 members: (\S+), (\S+)\. No member has come from (\S+)\."
_LEADER = "/job:worker/replica:0/task:0"


def _limit(ranks):
    """A limit that passes, of calls of a few elements."""
    return with_time_limit(ranks, op="all_reduce", elements=9, group_key=4000)["timeout_seconds"]


def _never_comes(ranks, absent, limit):
    """The errors of those that wait for one that does not come, and whose group nobody knows."""
    waiting = [rank for rank in range(3) if rank != absent]
    ranks.start("attempt", waiting, op="reduce_scatter", elements=9, timeout_seconds=limit)
    errors = failed(ranks.wait(waiting))
    # The time of one is over first. It gives up, which ends the group for the other one.
    assert {error.code for error in errors} <= {CANCELLED, DEADLINE}, errors
    assert DEADLINE in {error.code for error in errors}, errors
    return errors


# The leader, which completes groups; another one.
@pytest.mark.parametrize("absent", [0, pytest.param(2, marks=SLOW)])
def test_who_never_comes_is_named(absent):
    tasks = [f"/job:worker/replica:0/task:{rank}" for rank in range(3)]
    missing = tasks.pop(absent)
    with Ranks(OURS) as ranks:
        for error in _never_comes(ranks, absent, _limit(ranks)):
            found = re.search(_COME, error.text)
            assert found, error
            assert sorted(found.groups()[:2]) == [f"{task}/device:CPU:0" for task in tasks], error
            assert found[3] == missing, error
        nothing_left(ranks, range(3))


def test_a_leader_that_has_stopped_is_named():
    with Ranks(OURS) as ranks:
        limit = _limit(ranks)
        ranks.pause(0)
        for error in _never_comes(ranks, 0, limit):
            said = f"{_LEADER}, the leader of group 3003, which knows the members that have come"
            assert f"{said}, does not answer: DEADLINE_EXCEEDED" in error.text, error
        ranks.resume(0)
        nothing_left(ranks, range(3))


def test_a_leader_without_the_plugin_says_nothing():
    with Ranks(["grpc", "grpc+fuse", "grpc+fuse"]) as ranks:
        for error in _never_comes(ranks, 0, _limit(ranks)):
            assert "Group 3003" not in error.text and "the leader of" not in error.text, error


def _memory(rank, access):
    """The inodes of shared memory that a rank has mapped with some access."""
    lines = Path(f"/proc/{rank.pid}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "/memfd:tf_fuse" in line and access in line}


def test_nothing_stays_of_a_killed_rank():
    with Ranks(OURS) as ranks:
        under_way(ranks, "all_reduce")
        *living, killed = ranks._ranks
        lent = _memory(killed, "rw-s")
        assert all(lent & _memory(rank, "r--s") for rank in living)
        ranks.kill(2)
        failed(ranks.wait([0, 1]))
        nothing_left(ranks, [0, 1])
        assert coordinator.wait_until(
            lambda: not any(lent & _memory(rank, "r--s") for rank in living)
        )
