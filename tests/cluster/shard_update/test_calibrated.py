# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""All replicas weigh updates by the figures of the first one: real processes that train."""

import pytest

from tests.cluster.collectives.ranks import Error, Ranks
from tests.cluster.shard_update.checks import check_equal
from tests.slow_cases import slow
from tf_fuse.shard_update.cost_figures import DEFAULTS, RANGE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_VARIABLE = "TF_FUSE_UPDATE_COSTS"
_TASKS = [f"/job:worker/replica:0/task:{rank}" for rank in range(3)]
# So all that saves anything is sharded, and nothing.
_SHARDED = "collective_us=0,gradient_us=0,wire_ns_per_byte=0,share_us=0"
_WHOLE = "operation_ns_per_byte=0"


def _ranks(*pins):
    envs = [{} if pin is None else {_VARIABLE: pin} for pin in pins]
    return Ranks(["grpc+fuse"] * len(pins), envs, server=False)


def _decided(ranks):
    """Of each rank: whether it has sharded, and by which figures."""
    functions = [report["functions"][-1] for report in ranks.values("report")]
    return [(function["sharded"], function["costs"]) for function in functions]


def test_the_first_one_measures_for_all():
    with _ranks(None, None, None) as ranks:
        ranks.values("trained", steps=1)
        decided = _decided(ranks)
        assert decided[1:] == decided[:1] * 2
        ((is_sharded, costs),) = decided[:1]
        assert is_sharded
        assert costs.pop("origin").startswith(f"measured by {_TASKS[0]}")
        for name, default in DEFAULTS.figures().items():
            assert default / RANGE <= costs[name] <= default * RANGE
        # Two of its figures are of no measurement.
        assert (costs["collective_us"], costs["share_us"]) == (500.0, 200.0)
        assert f"Estimated by operation_ns_per_byte={costs['operation_ns_per_byte']:.3g}, " in (
            ranks.log(2)
        )
        assert f"(measured by {_TASKS[0]}" in ranks.log(2)


@pytest.mark.parametrize("pins", [slow((_SHARDED, None, None)), (_SHARDED, None, _SHARDED)])
def test_what_the_first_one_pins_holds_for_all(pins):
    with _ranks(*pins) as ranks:
        stock = ranks.values("trained", on=False)
        here = ranks.values("trained", always=False)
        check_equal(stock, here)
        decided = _decided(ranks)
        # A small model, which is left alone by the usual figures.
        assert [is_sharded for is_sharded, _ in decided] == [True] * 3
        origins = [costs.pop("origin") for _, costs in decided]
        assert origins == [
            f"{_VARIABLE} of {_TASKS[0 if pin is None else rank]}" for rank, pin in enumerate(pins)
        ]
        figures = dict.fromkeys(DEFAULTS.figures(), 0.0) | {"operation_ns_per_byte": 0.08}
        assert [costs for _, costs in decided] == [figures] * 3


def test_figures_that_differ_are_an_error_on_both():
    with _ranks(_SHARDED, _WHOLE) as ranks:
        ranks.start("trained", always=False)
        for error in ranks.wait():
            assert isinstance(error, Error)
            assert error.kind == "FailedPreconditionError", error
            assert f": {_VARIABLE} of {_TASKS[0]}'" in error.text
            assert f": {_VARIABLE} of {_TASKS[1]}'" in error.text
            assert "it decides by operation_ns_per_byte=0.08,wire_ns_per_byte=0.0," in error.text
            assert "it decides by operation_ns_per_byte=0.0,wire_ns_per_byte=0.15," in error.text


def test_a_pin_that_the_first_one_has_not_is_an_error_on_both():
    with _ranks(None, _WHOLE) as ranks:
        ranks.start("trained")
        for error in ranks.wait():
            assert error.kind == "FailedPreconditionError", error
            assert f": measured by {_TASKS[0]}" in error.text
            assert f": {_VARIABLE} of {_TASKS[1]}'" in error.text


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_wrong_pin_is_an_error_on_both(wrong):
    with _ranks(*("fast" if rank == wrong else None for rank in range(2))) as ranks:
        ranks.start("trained")
        errors = ranks.wait()
        kinds = ["FailedPreconditionError"] * 2
        kinds[wrong] = "InvalidArgumentError"
        assert [error.kind for error in errors] == kinds, errors
        for error in errors:
            assert f"{_VARIABLE}='fast' of {_TASKS[wrong]} cannot be used" in error.text


@pytest.mark.parametrize(
    ("gone", "kind"), [("kill", "UnavailableError"), ("pause", "DeadlineExceededError")]
)
def test_a_first_one_that_is_gone_before_it_tells_is_an_error(gone, kind):
    with Ranks(["grpc+fuse"] * 2, {"TF_FUSE_STATE_TIMEOUT_S": "3"}, server=False) as ranks:
        ranks.values("trained", steps=0)
        getattr(ranks, gone)(0)
        ranks.start("only_steps", [1], steps=1)
        (error,) = ranks.wait([1])
        assert error.kind == kind, error
        if gone == "pause":
            # When it goes on, it does not wait for the one that has given up.
            ranks.resume(0)
            ranks.start("only_steps", [0], steps=1)
            (error,) = ranks.wait([0])
            assert error.kind == "FailedPreconditionError", error
            assert "the replicas shard the update of the weights in different ways" in error.text


def test_a_first_one_with_the_option_off_is_an_error():
    with Ranks(["grpc+fuse"] * 2, {"TF_FUSE_PLAN_WAIT_S": "2"}, server=False) as ranks:
        ranks.start("trained", [0], on=False)
        ranks.start("trained", [1])
        (error,) = ranks.wait([1])
        assert error.kind == "FailedPreconditionError", error
        assert "After 2 s (TF_FUSE_PLAN_WAIT_S)" in error.text
        assert f"{_TASKS[0]}/device:CPU:0 has not called any function with the option on" in (
            error.text
        )
