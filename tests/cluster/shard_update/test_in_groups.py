# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`shard_weight_update_group_size`: groups of replicas that each keep the whole state."""

import numpy as np
import pytest

from tests.cluster.collectives.ranks import Error, Ranks
from tests.cluster.shard_update.checks import ELEMENTS, check_equal, stock_values
from tests.slow_cases import slow, slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_STEPS = 4


@pytest.fixture(scope="module")
def ranks():
    with Ranks(["grpc+fuse"] * 4, server=False, patient=True) as ranks:
        yield ranks


@pytest.mark.parametrize(
    ("optimizer", "slots", "reads"),
    [
        ("Adam", 2, ["everyone_reads", "assigns"]),
        slow("Adagrad", 1, ["one_reads", "by_function"]),
        slow("Nadam", 2, ["other_batch"]),
        slow("SGD", 0, []),
    ],
)
def test_the_bits_of_whole_updates(ranks, optimizer, slots, reads):
    stock = stock_values(ranks, "trained", optimizer=optimizer, reads=reads)
    here = ranks.values("trained", optimizer=optimizer, reads=reads, group_size=2)
    check_equal(stock, here)
    for result, report in zip(here, ranks.values("report"), strict=True):
        part, whole, _, version = result["held"][-1]
        assert whole == 4 * slots * ELEMENTS
        assert version == _STEPS * (2 if "other_batch" in reads else 1)
        # Of each slot half, and what fills its first and last vector register.
        assert part <= whole // 2 + slots * 6 * 2 * 64 * 4
        function = report["functions"][-1]
        assert (function["replicas"], function["groups"], function["sharded"]) == (4, 2, True)
        (bucket,) = function["buckets"]
        assert all(one["exact"] for one in bucket["gradients"])
        # As of an all-reduce.
        assert function["sent_bytes_per_step"] == 2 * bucket["bytes"] * 3 // 4
    # Each replica has half, and of what others have it reads no copy.
    joins = [one["functions"][-1]["joins"] for one in ranks.values("report")]
    read = sum(join["bytes"] for join in joins)
    assert read == joins[0]["count"] * 2 * 4 * slots * ELEMENTS or "one_reads" in reads
    assert "sharded over 4 replicas in 2 groups: " in ranks.log(0)


def _largest_difference(whole, sharded):
    return max(
        float(np.max(np.abs(np.subtract(a, b))))
        for one, other in zip(whole, sharded, strict=True)
        for a, b in zip(one["values"], other["values"], strict=True)
    )


@pytest.mark.slow
def test_norms(ranks):
    stock = stock_values(ranks, "trained", optimizer="Lamb")
    here = ranks.values("trained", optimizer="Lamb", group_size=2)
    assert len({one["weights"] for one in here}) == 1
    assert _largest_difference(stock, here) <= 1e-5
    for report in ranks.values("report"):
        (bucket,) = report["functions"][-1]["buckets"]
        assert [(one["sharded"], one["exact"]) for one in bucket["gradients"]] == [
            (True, False)
        ] * 6


def test_all_replicas_are_one_group(ranks):
    of_all = ranks.values("trained", group_size=0)
    here = ranks.values("trained", group_size=4)
    check_equal(of_all, here)
    assert [one["held"][-1][0] for one in of_all] == [one["held"][-1][0] for one in here]


def test_groups_that_cannot_be_made(ranks):
    stock = stock_values(ranks, "trained")
    check_equal(stock, ranks.values("trained", group_size=3))
    for rank, report in enumerate(ranks.values("report")):
        function = report["functions"][-1]
        assert (function["sharded"], function["reason"]) == (False, "group_size")
        why = "it is 3, which does not divide 4 replicas evenly; set it to 2, or 0 for all of them"
        assert function["detail"] == why
        assert why in ranks.log(rank)


# (`test_option` has what else processes may do otherwise.)
@pytest.mark.slow
def test_other_groups_in_other_processes_are_an_error():
    with Ranks(["grpc+fuse"] * 4, server=False) as ranks:
        # (Without slots, whose parts would differ.)
        ranks.start("trained", [0, 1], optimizer="SGD", group_size=2)
        ranks.start("trained", [2, 3], optimizer="SGD")
        for error in ranks.wait():
            assert error.kind == "FailedPreconditionError", error
            assert "the replicas shard the update of the weights in different ways" in error.text
            assert "in 2 groups" in error.text


@pytest.mark.parametrize("sizes", [(0,), slow((4, 2, 0))], ids=str)
def test_checkpoints(ranks, tmp_path, sizes):
    path = str(tmp_path / "saved")
    stock = stock_values(ranks, "trained", steps=_STEPS + 2)
    ranks.values("trained", steps=2, group_size=2)
    saved = ranks.values("trained_on", steps=1, saved=path)
    assert [one["losses"] for one in saved] == [one["losses"][:3] for one in stock]
    for size in sizes:
        restored = ranks.values("trained", steps=3, restored=path, group_size=size)
        for one, other in zip(stock, restored, strict=True):
            assert one["losses"][3:] == other["losses"]
            assert (one["weights"], one["slots"]) == (other["weights"], other["slots"])


def test_what_a_dead_replica_had_is_read_from_another_group(ranks):
    stock = stock_values(ranks, "trained", steps=_STEPS + 2)
    with Ranks(["grpc+fuse"] * 4, server=False) as some:
        some.values("trained", group_size=2)
        some.values("only_steps", steps=2)
        some.kill(1)
        for rank in (0, 3, 2):
            (read,) = some.values("only_reads", [rank])
            assert read == stock[rank]["slots"], rank
        assert "task:3/device:CPU:0, which has what /job:worker/replica:0/task:1" in some.log(0)
        assert "which has what" not in some.log(2) + some.log(3)


@pytest.mark.slow
def test_who_is_left_saves_all_that_stock_would(ranks, tmp_path):
    path = str(tmp_path / "left")
    stock = stock_values(ranks, "trained", steps=_STEPS + 2)
    with Ranks(["grpc+fuse"] * 4, server=False) as some:
        some.values("trained", group_size=2)
        some.values("only_steps", steps=2)
        some.kill(1)
        some.values("trained_on", [0], steps=0, saved=path)
    with Ranks(["grpc+fuse"] * 2, server=False) as ranks:
        for restored in ranks.values("trained", on=False, steps=0, restored=path):
            for key in ("weights", "slots"):
                assert restored[key] == stock[0][key], key


def test_what_all_that_had_it_took_along_is_an_error():
    with Ranks(["grpc+fuse"] * 4, server=False) as ranks:
        ranks.values("trained", group_size=2)
        ranks.values("only_steps", steps=1)
        ranks.kill(1)
        ranks.kill(3)
        ranks.start("only_reads", [0])
        (error,) = ranks.wait([0])
        assert error.kind == "UnavailableError", error
        assert "after step 5" in error.text
        assert "task:1/device:CPU:0, /job:worker/replica:0/task:3" in error.text
        assert "restart the program from its last checkpoint" in error.text


# (`test_option` has one without groups.)
@pytest.mark.slow
def test_a_replica_that_does_not_answer_is_not_waited_for_without_end(ranks):
    stock = stock_values(ranks, "trained", steps=_STEPS + 2)
    with Ranks(["grpc+fuse"] * 4, {"TF_FUSE_STATE_TIMEOUT_S": "3"}, server=False) as some:
        some.values("trained", group_size=2)
        some.values("only_steps", steps=1)
        some.pause(1)
        (read,) = some.values("only_reads", [0])
        some.resume(1)
        assert some.values("only_reads") == [read] * 4
        some.values("only_steps", steps=1)
        assert some.values("only_reads") == [one["slots"] for one in stock]


def test_a_death_in_the_middle_of_steps_leaves_a_state():
    with Ranks(["grpc+fuse"] * 4, server=False) as ranks:
        ranks.values("trained", group_size=2)
        ranks.start("only_steps", steps=10_000_000)
        ranks.kill(1)
        for error in ranks.wait([0, 2, 3]):
            assert isinstance(error, Error)
        for rank in (0, 2, 3):
            (read,) = ranks.values("only_reads", [rank])
            assert len(read) == 64


# Steps of several kinds, as in test_rewrite.py; and whether sums are added in the
# order of whole updates.
_KINDS = [
    *(("program", {"name": n}, True) for n in ("accumulation", "half", "loop", "scaled")),
    ("program", {"name": "constrained"}, False),
    ("program", {"name": "two_optimizers"}, True),
    ("program", {"name": "waited_for"}, True),
    *(("reduction", {"name": n}, True) for n in ("all", "max", "max_of_columns", "max_of_rows")),
    *(("reduction", {"name": n}, False) for n in ("mean", "mean_of_rows", "norm", "product")),
]
_FAST_KINDS = {"waited_for", "mean"}


@pytest.mark.parametrize(
    ("case", "args", "is_exact"),
    slow_but(_KINDS, lambda kind: kind[1]["name"] in _FAST_KINDS),
    ids=str,
)
def test_kinds_of_steps(ranks, case, args, is_exact):
    whole = ranks.values(case, sharded=False, **args)
    sharded = []
    for groups in (1, 2):
        ranks.values("in_groups", groups=groups)
        sharded.append(ranks.values(case, sharded=True, **args))
    is_waited_for = args == {"name": "waited_for"}
    for one in sharded[1]:
        assert one["early"] == is_waited_for
        assert one["reasons"] == ["not_elementwise"] * is_waited_for
    assert len({one["weights"] for one in sharded[1]}) == 1
    if is_exact:
        assert [one["weights"] for one in whole] == [other["weights"] for other in sharded[1]]
        assert [one["losses"] for one in whole] == [other["losses"] for other in sharded[1]]
    largest = max(float(np.max(np.abs(value))) for value in whole[0]["values"])
    assert _largest_difference(whole, sharded[1]) <= 1e-5 * largest
    # Each of two groups has everything once.
    of_all, in_groups = (sum(one["own"] for one in results) for results in sharded)
    assert (in_groups, of_all) == (2 * sharded[1][0]["whole"], sharded[0][0]["whole"])
