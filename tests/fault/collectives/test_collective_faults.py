# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, stop, differ or speak another protocol: others hear of it, and nothing hangs.

A failed collective ends all later ones of its process in stock TensorFlow: each case has ranks of
its own. What the others are told, and what the next collective gives, are rows of docs/faults.md.
"""

import re
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster.collectives.ranks import Ended, Error, Ranks
from tests.fault import coordinator, table
from tests.fault.soak import faults as soak_faults

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(300)]

_STOCK, _OURS = ["grpc"] * 3, ["grpc+fuse"] * 3
_ENDLESS = 10_000_000  # calls
_LARGE = 3_000_000  # elements
_LIMIT_S = 4.0  # of a collective, on an idle machine: in stock, some ranks wait until then
_TIMES_A_CALL = 5  # A limit that passes is at least so many times what a call takes.
# And at most this, so that tests end.
_LONGEST_LIMIT_S = 15.0
_LONG_LIMIT_S = 30.0  # One that does not pass.
_ONLY_OURS = ["reduce_scatter", "all_gather"]
_SLOW = pytest.mark.slow
# A fault by each data path once; `make slow` has the other op, too.
_PATH_AND_OP = [
    ("", "reduce_scatter"),
    ("grpc", "all_reduce"),
    ("tcp,grpc", "reduce_scatter"),
    pytest.param("", "all_reduce", marks=_SLOW),
    pytest.param("grpc", "reduce_scatter", marks=_SLOW),
    pytest.param("tcp,grpc", "all_reduce", marks=_SLOW),
]
_CANCELLED, _INVALID, _DEADLINE, _INTERNAL, _UNAVAILABLE = 1, 3, 4, 13, 14


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


# --- The table: each fault returns the ranks that are asked how their call ended, what the texts of
# --- their errors should have, and when it was.


def _with_limit(ranks, **args):
    """Let all ranks call an op; return the arguments, with a time limit that is long enough."""
    start = time.monotonic()
    ranks.values("attempt", **args)
    taken = time.monotonic() - start
    limit = min(_LONGEST_LIMIT_S, max(_LIMIT_S, _TIMES_A_CALL * taken))
    return args | {"timeout_seconds": limit}


def _under_way(ranks, op):
    """Lets all ranks call an op again and again."""
    args = _with_limit(ranks, op=op, elements=_LARGE)
    ranks.start("attempt", calls=_ENDLESS, **args)
    ranks.begun(0)


def _killed(ranks, op):
    _under_way(ranks, op)
    start = time.monotonic()
    ranks.kill(2)
    return [0, 1], ["task:2"], start


def _killed_before(ranks, op):
    args = _with_limit(ranks, op=op, elements=_LARGE)
    ranks.kill(2)
    start = time.monotonic()
    ranks.start("attempt", [0, 1], **args)
    return [0, 1], ["task:2"], start


def _stopped(ranks, op):
    _under_way(ranks, op)
    start = time.monotonic()
    ranks.pause(2)
    return [0, 1], ["task:2"], start


def _never(ranks, op):
    # A call of another group, for the limit.
    args = _with_limit(ranks, op=op, elements=1000)
    start = time.monotonic()
    ranks.start("attempt", [0, 1], group_key=4000, **args)
    return [0, 1], ["task:2"], start


def _absent(ranks, op):
    args = _with_limit(ranks, op=op, elements=1000)
    start = time.monotonic()
    ranks.start("attempt", [0, 1], **args)
    return [0, 1], ["task:2"], start


def _aborted(ranks, op):
    ranks.values("attempt", op=op, elements=1000)
    start = time.monotonic()
    ranks.start("aborted", [0], op=op, elements=1000, text="task:2 is missed")
    ranks.start("attempt", [1], op=op, elements=1000, timeout_seconds=_LONG_LIMIT_S)
    return [0, 1], ["task:2 is missed"], start


def _cancelled(ranks, op):
    ranks.values("attempt", op=op, elements=1000)
    start = time.monotonic()
    ranks.start("cancelled", [0], op=op, elements=1000)
    return [0], [], start


def _differing(texts, common=1000, limit=_LONG_LIMIT_S, **differs):
    """Rank 1 calls with other arguments."""

    def fault(ranks, op):
        start = time.monotonic()
        args = {"op": op, "elements": common, "timeout_seconds": limit}
        ranks.start("attempt", [0, 2], **args)
        ranks.start("attempt", [1], **(args | differs))
        return [0, 1, 2], texts, start

    return fault


def _unknown(ranks, op):
    start = time.monotonic()
    ranks.start("attempt", op=op, elements=999, timeout_seconds=_LONG_LIMIT_S)
    return [0, 1, 2], ["did not find collective implementation"], start


_SHAPES = _differing(["[1000]", "[1001]"], elements=1001)
_SIZES = _differing(
    ["is joining a group with size", "but that group has size"], n=2, group_key=3001
)
_FAULTS = {
    "killed_all_reduce": (_killed, "all_reduce"),
    "killed_reduce_scatter": (_killed, "reduce_scatter"),
    "killed_before_all_reduce": (_killed_before, "all_reduce"),
    "killed_before_reduce_scatter": (_killed_before, "reduce_scatter"),
    "stopped_all_reduce": (_stopped, "all_reduce"),
    "stopped_reduce_scatter": (_stopped, "reduce_scatter"),
    "absent_all_reduce": (_absent, "all_reduce"),
    "absent_reduce_scatter": (_absent, "reduce_scatter"),
    "never_all_reduce": (_never, "all_reduce"),
    "never_reduce_scatter": (_never, "reduce_scatter"),
    "aborted_all_reduce": (_aborted, "all_reduce"),
    "aborted_reduce_scatter": (_aborted, "reduce_scatter"),
    "cancelled_all_reduce": (_cancelled, "all_reduce"),
    "cancelled_reduce_scatter": (_cancelled, "reduce_scatter"),
    "shape_all_reduce": (_SHAPES, "all_reduce"),
    "shape_reduce_scatter": (_SHAPES, "reduce_scatter"),
    "shape_all_gather": (_SHAPES, "all_gather"),
    # Most ranks have no shard, and only wait for others to take theirs: without a limit.
    "shape_of_few": (_differing(["[1]", "[2]"], 1, 0.0, elements=2), "reduce_scatter"),
    "type_all_reduce": (
        _differing(["data_type 1 ", "data_type 2"], dtype="float64"), "all_reduce"),
    "type_reduce_scatter": (
        _differing(["of float ", "of double "], dtype="float64"), "reduce_scatter"),
    "size_all_reduce": (_SIZES, "all_reduce"),
    "size_reduce_scatter": (_SIZES, "reduce_scatter"),
    "unknown": (_unknown, "CollectiveReduceScatterV2"),
}  # fmt: skip
_DIES = "the process dies"
_NAMED = {1: "named", 2: "with both"}


def _told(result, texts):
    """How a rank's call ended, in a few words."""
    result = result[0] if isinstance(result, list) else result
    if isinstance(result, dict):
        result = result.get("error", "its result")
    if not isinstance(result, Error):
        return _DIES if result is Ended else str(result)
    # Who is named, or both values.
    named = texts and all(text in result.text for text in texts)
    return f"`{result.kind}`" + (f" ({_NAMED[len(texts)]})" if named else "")


def _later(result):
    if result is Ended:
        return _DIES
    if isinstance(result, Error):
        return "aborted" if "Collective ops is aborted by" in result.text else f"`{result.kind}`"
    return "the values" if result else "wrong values"


def _joined(outcomes):
    return " or ".join(sorted(set(outcomes)))


def _observe(case, protocols):
    fault, op = _FAULTS[case]
    if protocols is _STOCK and op in _ONLY_OURS:
        return {"outcome": "no such operation"}
    with Ranks(protocols) as ranks:
        asked, texts, start = fault(ranks, op)
        results = ranks.wait(asked)
        seconds = round(time.monotonic() - start, 3)
        living = [r for r, result in zip(asked, results, strict=True) if result is not Ended]
        members = living if len(asked) > 1 else [0, 1, 2]
        ranks.start("later", members, members=members, group_key=9000)
        later = ranks.wait(members)
    following = _joined(map(_later, later)) or "nobody is left"
    return {
        "outcome": f"{_joined(_told(r, texts) for r in results)}; {following}",
        "seconds": seconds,
        "results": results,
        "later": later,
    }


def test_the_table_has_each_fault():
    assert set(table.cases(__file__)) == set(_FAULTS)


# The same fault as in a case of the other op.
_OF_THE_OTHER_OP = {
    "aborted_reduce_scatter",
    "absent_all_reduce",
    "cancelled_reduce_scatter",
    "killed_before_reduce_scatter",
    "killed_reduce_scatter",
    "never_all_reduce",
    "shape_reduce_scatter",
    "size_reduce_scatter",
    "stopped_all_reduce",
    "type_reduce_scatter",
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(one, marks=_SLOW if one in _OF_THE_OTHER_OP else ()) for one in sorted(_FAULTS)],
)
def test_outcome(case):
    table.check(__file__, case, _observe(case, _STOCK), _observe(case, _OURS))


# --- What stock TensorFlow has not ---------------------------------------------------------------


@pytest.mark.parametrize(("path", "op"), _PATH_AND_OP)
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


@pytest.mark.parametrize(("path", "op"), _PATH_AND_OP)
def test_stopped_rank(op, path):
    with Ranks(_OURS, {"TF_FUSE_COLLECTIVE_PATHS": path}) as ranks:
        args = _with_limit(ranks, op=op, elements=_LARGE)
        ranks.start("attempt", calls=_ENDLESS, **args)
        ranks.begun(0)
        ranks.pause(1)
        errors = _failed(ranks.wait([0, 2]))
        # One that waits for a sum asks who was to make it, which may wait for the stopped one.
        for error in errors:
            assert error.code == _DEADLINE, error
            assert "task:1" in error.text, error
        ranks.resume(1)
        (late,) = ranks.wait([1])
        assert late is not Ended
        _nothing_left(ranks, [0, 1, 2])


# gRPC gives up a new connection to a stopped process after 20 s, as one to a dead one.
@_SLOW
@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter"])
def test_a_rank_that_stops_for_long_is_not_lost(op):
    with Ranks(_OURS) as ranks:
        ranks.values("attempt", op=op, elements=_LARGE)
        ranks.start("attempt", op=op, elements=_LARGE, calls=_ENDLESS, timeout_seconds=40)
        ranks.begun(0)
        ranks.pause(1)
        for error in _failed(ranks.wait([0, 2])):
            assert error.code == _DEADLINE, error
            assert "task:1" in error.text, error
        ranks.resume(1)
        ranks.wait([1])


@pytest.mark.parametrize(
    "path", ["", pytest.param("grpc", marks=_SLOW), pytest.param("tcp,grpc", marks=_SLOW)]
)
def test_who_waits_for_one_that_waits_names_the_one_that_is_missing(path):
    # Rank 0 has the only sum, which rank 2 of the other group waits for.
    args = {"op": "reduce_scatter_in_groups", "elements": 1}
    with Ranks(["grpc+fuse"] * 4, {"TF_FUSE_COLLECTIVE_PATHS": path}) as ranks:
        with_limit = _with_limit(ranks, **args)
        ranks.start("attempt", [0, 3], **args)
        ranks.start("attempt", [2], **with_limit)
        (error,) = _failed(ranks.wait([2]))
        assert error.code == _DEADLINE, error
        assert "it waited for member 0 (/job:worker/replica:0/task:0" in error.text, error
        missing = "; member 1 (/job:worker/replica:0/task:1/device:CPU:0) has not come"
        assert f"{missing} or does not answer" in error.text, error
        # Rank 0 hears of it; rank 3 has no shard, and may have ended before.
        (told,) = _failed(ranks.wait([0]))
        assert missing in told.text, told
        ranks.wait([3])
        _nothing_left(ranks, [0, 2, 3])


_COME = r"Group 3003 has 2 of 3 members: (\S+), (\S+)\. No member has come from (\S+)\."
_LEADER = "/job:worker/replica:0/task:0"


def _limit(ranks):
    """A limit that passes, of calls of a few elements."""
    return _with_limit(ranks, op="all_reduce", elements=9, group_key=4000)["timeout_seconds"]


def _never_comes(ranks, absent, limit):
    """The errors of those that wait for one that does not come, and whose group nobody knows."""
    waiting = [rank for rank in range(3) if rank != absent]
    ranks.start("attempt", waiting, op="reduce_scatter", elements=9, timeout_seconds=limit)
    errors = _failed(ranks.wait(waiting))
    # The time of one is over first. It gives up, which ends the group for the other one.
    assert {error.code for error in errors} <= {_CANCELLED, _DEADLINE}, errors
    assert _DEADLINE in {error.code for error in errors}, errors
    return errors


# The leader, which completes groups; another one.
@pytest.mark.parametrize("absent", [0, pytest.param(2, marks=_SLOW)])
def test_who_never_comes_is_named(absent):
    tasks = [f"/job:worker/replica:0/task:{rank}" for rank in range(3)]
    missing = tasks.pop(absent)
    with Ranks(_OURS) as ranks:
        for error in _never_comes(ranks, absent, _limit(ranks)):
            found = re.search(_COME, error.text)
            assert found, error
            assert sorted(found.groups()[:2]) == [f"{task}/device:CPU:0" for task in tasks], error
            assert found[3] == missing, error
        _nothing_left(ranks, range(3))


def test_a_leader_that_has_stopped_is_named():
    with Ranks(_OURS) as ranks:
        limit = _limit(ranks)
        ranks.pause(0)
        for error in _never_comes(ranks, 0, limit):
            said = f"{_LEADER}, the leader of group 3003, which knows the members that have come"
            assert f"{said}, does not answer: DEADLINE_EXCEEDED" in error.text, error
        ranks.resume(0)
        _nothing_left(ranks, range(3))


def test_a_leader_without_the_plugin_says_nothing():
    with Ranks(["grpc", "grpc+fuse", "grpc+fuse"]) as ranks:
        for error in _never_comes(ranks, 0, _limit(ranks)):
            assert "Group 3003" not in error.text and "the leader of" not in error.text, error


@pytest.mark.parametrize(
    ("op", "dtype", "elements", "code", "texts"),
    [
        ("all_reduce", "float32", 1001, _INVALID, ["[1000]", "[1001]"]),
        pytest.param(
            "all_reduce", "float32", 300001, _INVALID, ["[1000]", "[300001]"], marks=_SLOW
        ),
        # TensorFlow looks at the types first, and names them so: the one that came first and one
        # that came later, and not whose they are.
        ("all_reduce", "float64", 1000, _INTERNAL, ["data_type 1", "data_type 2"]),
        pytest.param(
            "all_reduce", "int32", 1000, _INTERNAL, ["data_type 1", "data_type 3"], marks=_SLOW
        ),
        pytest.param(
            "reduce_scatter", "float32", 1001, _INVALID, ["[1000]", "[1001]"], marks=_SLOW
        ),
        ("reduce_scatter", "float32", 300001, _INVALID, ["[1000]", "[300001]"]),
        ("reduce_scatter", "float64", 1000, _INVALID, ["of float ", "of double "]),
        pytest.param(
            "reduce_scatter", "int32", 1000, _INVALID, ["of float ", "of int32 "], marks=_SLOW
        ),
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
        for error in (errors[0], errors[2]) if code == _INVALID else ():
            assert "/task:1/device:CPU:0" in error.text, error
        _nothing_left(ranks, [0, 1, 2])


@pytest.mark.parametrize(("path", "op"), _PATH_AND_OP)
def test_cancelled_calls_leave_nothing(op, path):
    args = {"op": op, "elements": 1_000_000, "key": 77}
    with Ranks(_OURS, {"TF_FUSE_COLLECTIVE_PATHS": path}) as ranks:
        expected = ranks.values("attempt", **args)
        (errors,) = ranks.values("cancelled", [0], calls=10, **args)
        before = ranks.values("usage")
        (more,) = ranks.values("cancelled", [0], calls=40, **args)
        for error in errors + more:
            assert error.code == _CANCELLED, error
        # Peers may not have seen the last cancelled requests yet; these calls come behind them.
        ranks.values("attempt", **{**args, "key": 78})
        _nothing_left(ranks, [0, 1, 2])
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
@pytest.mark.parametrize("op", [pytest.param("all_reduce", marks=_SLOW), "reduce_scatter"])
def test_a_channel_that_is_lost_is_an_error_with_the_name(op):
    with Ranks(_OURS) as ranks:
        ranks.values("attempt", op=op, elements=_LARGE)
        ranks.start("attempt", op=op, elements=_LARGE, calls=_ENDLESS)
        ranks.begun(0)
        # One that is lost between two requests is made anew, and nobody is the worse.
        while not ranks.answers(0):
            _drop_channels(ranks._ranks[2].pid)
        errors = _failed(ranks.wait())
        for error in errors:
            assert error.code == _UNAVAILABLE, error
            assert "the data channel was" in error.text, error
        for error in errors[:2]:
            assert re.search(r"task:2\b", error.text), error
        _nothing_left(ranks, [0, 1, 2])


@pytest.mark.parametrize("op", ["all_reduce", pytest.param("reduce_scatter", marks=_SLOW)])
def test_no_shared_memory_is_no_fault(op):
    args = {"op": op, "elements": _LARGE}
    with Ranks(_OURS) as ranks:
        expected = ranks.values("attempt", **args)
    with Ranks(_OURS, {"TF_FUSE_MAX_SHARED_MEMORY_BYTES": "0"}) as ranks:
        results, counted = ranks.counted("attempt", **args)
        assert results == expected
        for rank, of_rank in enumerate(counted):
            assert of_rank["collective_bytes_shm"] > 0, rank  # through the Unix socket
            assert "collective_bytes_grpc" not in of_rank
        assert [c["shared_memory_bytes"] for c in ranks.values("counters")] == [0, 0, 0]


def _memory(rank, access):
    """The inodes of shared memory that a rank has mapped with some access."""
    lines = Path(f"/proc/{rank.pid}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "/memfd:tf_fuse" in line and access in line}


def test_nothing_stays_of_a_killed_rank():
    with Ranks(_OURS) as ranks:
        _under_way(ranks, "all_reduce")
        *living, killed = ranks._ranks
        lent = _memory(killed, "rw-s")
        assert all(lent & _memory(rank, "r--s") for rank in living)
        ranks.kill(2)
        _failed(ranks.wait([0, 1]))
        _nothing_left(ranks, [0, 1])
        assert coordinator.wait_until(
            lambda: not any(lent & _memory(rank, "r--s") for rank in living)
        )


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
