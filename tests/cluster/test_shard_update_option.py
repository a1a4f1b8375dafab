# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training with `shard_weight_update`: the bits of training without, in a part of the memory."""

import pytest
from cluster.collective_ranks import Error, Ranks

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_ELEMENTS = 10 * 37 + 37 + 37 * 5 + 5 + 5 * 1 + 1  # of all weights
_STEPS = 4
_SAME = ("losses", "seen", "slots", "weights")


@pytest.fixture(scope="module")
def ranks():
    with Ranks(["grpc+fuse"] * 3, server=False) as ranks:
        yield ranks


def _check_equal(stock, here):
    for one, other in zip(stock, here, strict=True):
        for key in _SAME:
            assert one[key] == other[key], key


def _both(ranks, **args):
    stock = ranks.values("trained", on=False, **args)
    here = ranks.values("trained", on=True, **args)
    _check_equal(stock, here)
    return here


@pytest.mark.parametrize(("optimizer", "slots"), [("Adam", 2), ("Lion", 1)])
def test_state_is_in_parts(ranks, optimizer, slots):
    for result in _both(ranks, optimizer=optimizer):
        held = result["held"][-1]
        here, whole, is_parted, version = held
        assert (whole, is_parted, version) == (4 * slots * _ELEMENTS, True, _STEPS)
        # Of each slot a part, and what fills its first and last vector register.
        assert here <= whole // ranks.size + slots * 6 * 2 * 64 * 4


@pytest.mark.parametrize(
    "reads",
    [["everyone_reads", "assigns"], ["one_reads", "by_function"], ["faster", "other_batch"]],
    ids=lambda reads: "-".join(reads),
)
def test_who_reads_between_steps_gets_the_values(ranks, reads):
    here = _both(ranks, reads=reads)
    for result in here:
        assert result["held"][-1][3] == _STEPS * (2 if "other_batch" in reads else 1)


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


@pytest.mark.parametrize(
    ("before", "after", "on_before", "on_after"),
    [(2, 3, True, True), (3, 2, True, False), (2, 3, False, True)],
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
        _check_equal(stock, restored)


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


def test_replicas_that_decide_otherwise_are_told():
    with Ranks(["grpc+fuse"] * 2, server=False) as ranks:
        # With as many variables, which the strategy makes together.
        ranks.start("trained", [0], optimizer="Adagrad")
        ranks.start("trained", [1], optimizer="RMSprop")
        for error in ranks.wait():
            assert error.kind == "FailedPreconditionError", error
            assert "the replicas cut the update of the weights in different ways" in error.text
            assert "task:0/device:CPU:0 (digest " in error.text
            assert "task:1/device:CPU:0 (digest " in error.text
            assert error.text.count("all-reduce ") == 2, error
