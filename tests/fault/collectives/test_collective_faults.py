# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, stop, differ or speak another protocol: others hear of it, and nothing hangs.

A failed collective ends all later ones of its process in stock TensorFlow: each case has ranks of
its own. The errors of the others, and what the next collective gives, are rows of docs/faults.md.
"""

import time

import pytest

from tests.cluster.collectives.ranks import Ended, Error, Ranks
from tests.fault import table
from tests.fault.collectives.failing_calls import (
    LARGE,
    OURS,
    SLOW,
    STOCK,
    under_way,
    with_time_limit,
)

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(300)]

_LONG_LIMIT_S = 30.0  # One that does not pass.
_ONLY_OURS = ["reduce_scatter", "all_gather"]


# --- The table: each fault returns the ranks that are asked how their call ended, what the texts of
# --- their errors should have, and when it was.


def _killed(ranks, op):
    under_way(ranks, op)
    start = time.monotonic()
    ranks.kill(2)
    return [0, 1], ["task:2"], start


def _killed_before(ranks, op):
    args = with_time_limit(ranks, op=op, elements=LARGE)
    ranks.kill(2)
    start = time.monotonic()
    ranks.start("attempt", [0, 1], **args)
    return [0, 1], ["task:2"], start


def _stopped(ranks, op):
    under_way(ranks, op)
    start = time.monotonic()
    ranks.pause(2)
    return [0, 1], ["task:2"], start


def _never(ranks, op):
    # A call of another group, for the limit.
    args = with_time_limit(ranks, op=op, elements=1000)
    start = time.monotonic()
    ranks.start("attempt", [0, 1], group_key=4000, **args)
    return [0, 1], ["task:2"], start


def _absent(ranks, op):
    args = with_time_limit(ranks, op=op, elements=1000)
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
    if protocols is STOCK and op in _ONLY_OURS:
        return {"outcome": "n/a"}
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
    [pytest.param(one, marks=SLOW if one in _OF_THE_OTHER_OP else ()) for one in sorted(_FAULTS)],
)
def test_outcome(case):
    table.check(__file__, case, _observe(case, STOCK), _observe(case, OURS))
