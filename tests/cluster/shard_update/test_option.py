# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training with `shard_weight_update`: the bits of training without, in a part of the memory."""

import pytest

from tests.cluster.collectives.ranks import Error, Ranks
from tests.cluster.shard_update.checks import ELEMENTS, check_equal, stock_values
from tests.slow_cases import slow

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_STEPS = 4


@pytest.fixture(scope="module")
def ranks():
    with Ranks(["grpc+fuse"] * 3, server=False, patient=True) as ranks:
        yield ranks


def _both(ranks, **args):
    stock = stock_values(ranks, "trained", **args)
    here = ranks.values("trained", **args)
    check_equal(stock, here)
    return here


@pytest.mark.parametrize(("optimizer", "slots"), [("Adam", 2), slow("Lion", 1)])
def test_state_is_in_parts(ranks, optimizer, slots):
    for result in _both(ranks, optimizer=optimizer):
        held = result["held"][-1]
        here, whole, is_sharded, version = held
        assert (whole, is_sharded, version) == (4 * slots * ELEMENTS, True, _STEPS)
        # Of each slot a part, and what fills its first and last vector register.
        assert here <= whole // ranks.size + slots * 6 * 2 * 64 * 4


@pytest.mark.parametrize(
    "reads",
    [
        ["everyone_reads", "assigns"],
        ["one_reads", "by_function"],
        slow(["faster", "other_batch"]),
        ["own_batch"],
    ],
    ids=lambda reads: "-".join(reads),
)
def test_who_reads_between_steps_gets_the_values(ranks, reads):
    here = _both(ranks, reads=reads)
    for result in here:
        assert result["held"][-1][3] == _STEPS * (
            2 if {"other_batch", "own_batch"} & set(reads) else 1
        )


def test_traces_of_one_step_share_their_parts(ranks):
    before = ranks.values("trained")
    after = ranks.values("trained_on", steps=2, reads=["other_batch"])
    for one, other in zip(before, after, strict=True):
        assert len(one["held"]) == len(other["held"])


def test_memory_is_a_part(ranks):
    ranks.values("trained", on=False)
    whole = ranks.values("allocated")
    ranks.values("trained", on=True)
    ranks.values("only_steps", steps=1)
    parts = ranks.values("allocated")
    for before, after in zip(whole, parts, strict=True):
        assert after < before * 2 / 3


def test_report(ranks):
    ranks.values("trained", optimizer="Adagrad", steps=3, reads=["by_function"])
    for rank, report in enumerate(ranks.values("report")):
        assert (report["sharded"], report["reason"]) == (True, "")
        function = report["functions"][-1]
        assert function["replicas"] == ranks.size
        assert (function["sharded"], function["reason"]) == (True, "")
        assert (function["variables"], function["steps"]) == (6, 3)
        # (Afterwards, `trained` has read them.)
        assert not function["state_is_sharded"]
        assert function["whole_state_bytes"] == 4 * ELEMENTS
        assert function["state_bytes"] < function["whole_state_bytes"]
        (bucket,) = function["buckets"]
        assert (bucket["sharded"], bucket["reason"], bucket["bytes"]) == (True, "", 4 * ELEMENTS)
        assert function["sent_bytes_per_step"] == 2 * bucket["bytes"] * 2 // 3
        # (The strategy reduces the last ones first.)
        shapes = [[1], [5, 1], [5], [37, 5], [37], [10, 37]]
        assert [one["shape"] for one in bucket["gradients"]] == shapes
        assert all(one["sharded"] and len(one["slots"]) == 1 for one in bucket["gradients"])
        assert [one["variable"].rpartition("/")[2] for one in bucket["gradients"]] == [
            "bias", "kernel"
        ] * 3  # fmt: skip
        joins = function["joins"]
        assert joins["count"] == 3
        assert joins["seconds"] > 0
        (who,) = joins["by"]
        assert who.startswith("function __inference_"), joins
        assert "sharded over 3 replicas: 6 variables of the optimizer" in ranks.log(rank)
        assert "put together 3 times" in ranks.log(rank)
    # Each has read what the others have, each time.
    others = sum(r["functions"][-1]["joins"]["bytes"] for r in ranks.values("report"))
    assert others == 3 * (ranks.size - 1) * 4 * ELEMENTS


def test_report_says_why_an_update_is_left_alone(ranks):
    ranks.values("trained", optimizer="Muon", steps=1)
    for rank, report in enumerate(ranks.values("report")):
        function = report["functions"][-1]
        assert function["sharded"]
        (bucket,) = function["buckets"]
        reasons = [one["reason"] for one in bucket["gradients"]]
        # It multiplies matrices.
        assert reasons == ["", "not_elementwise"] * 3
        assert "left alone: 3 not_elementwise (" in ranks.log(rank)


def test_what_does_not_pay_is_left_alone(ranks):
    stock = stock_values(ranks, "trained", optimizer="Adam")
    here = ranks.values("trained", always=False)
    check_equal(stock, here)
    for report in ranks.values("report"):
        function = report["functions"][-1]
        assert (function["sharded"], function["reason"]) == (False, "nothing_to_shard")
        (bucket,) = function["buckets"]
        assert bucket["reason"] == "no_profit"
        assert bucket["detail"].startswith("it would save 0.0")


@pytest.mark.parametrize(
    ("before", "after", "on_before", "on_after"),
    [(2, 3, True, True), slow(3, 2, True, False), slow(2, 3, False, True)],
)
def test_checkpoints(tmp_path, before, after, on_before, on_after):
    path = str(tmp_path / "saved")
    with Ranks(["grpc+fuse"] * before, server=False) as ranks:
        ranks.values("trained", on=on_before, steps=2)
        ranks.values("trained_on", steps=1, saved=path)
        # Saving has changed nothing.
        expected = ranks.values("trained_on", steps=2)
        stock = ranks.values("trained", on=False, steps=5)
        assert [r["weights"] for r in expected] == [r["weights"] for r in stock]
    with Ranks(["grpc+fuse"] * after, server=False) as ranks:
        restored = ranks.values("trained", on=on_after, steps=2, restored=path)
        stock = ranks.values("trained", on=False, steps=2, restored=path)
        check_equal(stock, restored)


# (`tests/cluster/keras/test_processes.py` goes on from a backup.)
@pytest.mark.slow
def test_restart_after_a_kill_goes_on_from_the_checkpoint(tmp_path):
    path = str(tmp_path / "saved")
    with Ranks(["grpc+fuse"] * 2, server=False) as ranks:
        whole = ranks.values("trained", on=False, steps=6)
        ranks.values("trained", steps=2)
        ranks.values("trained_on", steps=1, saved=path)
        ranks.start("only_steps", steps=10_000_000)
        ranks.kill(1)
        (error,) = ranks.wait([0])
        assert isinstance(error, Error)
        assert error.kind in ("UnavailableError", "CancelledError", "InternalError"), error
    with Ranks(["grpc+fuse"] * 2, server=False) as ranks:
        restored = ranks.values("trained", steps=3, restored=path)
        for one, other in zip(whole, restored, strict=True):
            assert one["losses"][3:] == other["losses"]
            assert (one["weights"], one["slots"]) == (other["weights"], other["slots"])


def test_state_that_died_with_its_replica_is_an_error():
    with Ranks(["grpc+fuse"] * 3, server=False) as ranks:
        ranks.values("trained")
        ranks.values("only_steps", steps=1)
        ranks.kill(2)
        ranks.start("only_reads", [0])
        (error,) = ranks.wait([0])
        assert error.kind == "UnavailableError", error
        assert "after step 5" in error.text
        assert "task:2" in error.text
        assert "restart the program from its last checkpoint" in error.text
        assert "nothing between 1 and 3 divides 3" in error.text


def test_replica_that_does_not_answer_is_an_error():
    with Ranks(["grpc+fuse"] * 2, {"TF_FUSE_STATE_TIMEOUT_S": "3"}, server=False) as ranks:
        ranks.values("trained")
        ranks.values("only_steps", steps=1)
        ranks.pause(1)
        ranks.start("only_reads", [0])
        (error,) = ranks.wait([0])
        assert error.kind == "DeadlineExceededError", error
        # It has changed nothing.
        ranks.resume(1)
        a, b = ranks.values("only_reads")
        assert a == b
        ranks.values("only_steps", steps=1)


def test_python_code_in_a_branch_keeps_a_step_whole(ranks):
    for ((reason, detail),) in ranks.values("with_python"):
        assert (reason, detail) == ("python_code", "cond/EagerPyFunc")


def test_what_is_sharded_wrongly_is_not_run(ranks):
    stock = stock_values(ranks, "trained", optimizer="Adam")
    here = ranks.values("wrongly_sharded")
    check_equal(stock, here)
    reports = ranks.values("report")
    for rank, (result, report) in enumerate(zip(here, reports, strict=True)):
        assert result["decided"][0] == "verification"
        function = report["functions"][-1]
        assert (function["sharded"], function["reason"]) == (False, "verification")
        assert function["detail"] == "it is wrong on purpose"
        assert (function["variables"], function["state_is_sharded"]) == (0, False)
        assert ranks.log(rank).count("is wrong: it is wrong on purpose. Training goes on") == 1


def test_an_error_of_ours_is_no_reason_not_to_train(ranks):
    stock = stock_values(ranks, "trained", optimizer="Adam")
    here = ranks.values("badly_planned")
    check_equal(stock, here)
    for report in ranks.values("report"):
        function = report["functions"][-1]
        assert (function["sharded"], function["reason"]) == (False, "verification")
        assert function["detail"] == "ValueError: badly planned on purpose"


@pytest.mark.slow
def test_replicas_that_clip_otherwise_are_told():
    with Ranks(["grpc+fuse"] * 2, server=False) as ranks:
        # The same variables and operations on them, but one has a sum over all replicas.
        args = {"library": "tf_keras", "optimizer": "SGD", "momentum": 0.9}
        ranks.start("trained", [0], **args)
        ranks.start("trained", [1], **args, global_clipnorm=0.5)
        for error in ranks.wait():
            assert error.kind == "FailedPreconditionError", error
            assert "the replicas shard the update of the weights in different ways" in error.text


def test_replicas_that_decide_otherwise_are_told():
    with Ranks(["grpc+fuse"] * 2, server=False) as ranks:
        # With as many variables, which the strategy makes together.
        ranks.start("trained", [0], optimizer="Adagrad")
        ranks.start("trained", [1], optimizer="RMSprop")
        for error in ranks.wait():
            assert error.kind == "FailedPreconditionError", error
            assert "the replicas shard the update of the weights in different ways" in error.text
            assert "task:0/device:CPU:0 (digest " in error.text
            assert "task:1/device:CPU:0 (digest " in error.text
            assert error.text.count(" operations, ") == 2, error


def test_a_replica_with_the_option_off_is_not_waited_for_without_end():
    with Ranks(["grpc+fuse"] * 2, {"TF_FUSE_PLAN_WAIT_S": "2"}, server=False) as ranks:
        ranks.start("trained", [0])
        ranks.start("trained", [1], on=False)
        (error,) = ranks.wait([0])
        assert error.kind == "FailedPreconditionError", error
        assert "After 2 s (TF_FUSE_PLAN_WAIT_S)" in error.text
        assert "task:1/device:CPU:0 has not called any function with the option on" in error.text
        assert "Set it in the same way in all processes" in error.text
