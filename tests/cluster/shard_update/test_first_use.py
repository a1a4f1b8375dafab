# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Weights that are gathered right before their first use: the bits, bytes and reads in between.

With two workers; with three, all of it is slow.
"""

import pytest

from tests.cluster.collectives.ranks import Ranks
from tests.cluster.shard_update.checks import ELEMENTS, SIZES, check_equal, stock_values
from tests.slow_cases import slow
from tf_fuse.collectives import packed_ranges

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_STEPS = 4


@pytest.fixture(scope="module", params=[2, slow(3)])
def ranks(request):
    with Ranks(["grpc+fuse"] * request.param, server=False, patient=True) as ranks:
        yield ranks


def _gradients(report):
    (bucket,) = report["functions"][-1]["buckets"]
    return bucket["gradients"]


def _last_column(log):
    """The last column of the last table, whose cells are as wide as the names beside them let."""
    lines = log[log.rindex("all-reduce ") :].splitlines()
    place = lines[0].rindex("update")
    return " ".join(" ".join(line[place:] for line in lines[1:]).split())


def _check_all_first(ranks, dtype="float32"):
    for report in ranks.values("report"):
        for one in _gradients(report):
            assert (one["gather"], one["gather_type"]) == ("first_use", dtype)
            assert (one["gather_reason"], one["gather_detail"]) == ("", "")


@pytest.mark.parametrize(
    ("optimizer", "args", "slots"),
    [
        slow("SGD", {}, 0),
        ("SGD", {"momentum": 0.9, "nesterov": True, "use_ema": True, "ema_momentum": 0.5}, 2),
        slow("Adam", {}, 2),
        slow("AdamW", {"weight_decay": 0.1}, 2),
        ("Lion", {"clipnorm": 0.1}, 1),
        slow("Ftrl", {}, 2),
    ],
    ids=str,
)
def test_the_bits_of_stock(ranks, optimizer, args, slots):
    stock = stock_values(ranks, "gathered", optimizer=optimizer, **args)
    here = ranks.values("gathered", optimizer=optimizer, **args)
    check_equal(stock, here)
    for result in here:
        held, whole, is_sharded, version = result["held"][-1]
        # The weights are in shards like the optimizer's state.
        assert (whole, is_sharded, version) == (4 * (slots + 1) * ELEMENTS, True, _STEPS)
        assert held <= whole // ranks.size + (slots + 1) * len(SIZES) * 2 * 64 * 4
    _check_all_first(ranks)
    for rank, report in enumerate(ranks.values("report")):
        function = report["functions"][-1]
        assert (function["weights"], function["variables"]) == (6, 6 * slots)
        assert function["whole_state_bytes"] == whole
        assert f"{6 * slots} variables of the optimizer and 6 weights" in ranks.log(rank)
        assert (
            _last_column(ranks.log(rank)).count("in shards, gathered before its first use, in f")
            >= 6
        )


@pytest.mark.parametrize(
    ("optimizer", "args"),
    [
        slow("Adam", {"amsgrad": True}),
        # One operation updates the weight and its slots.
        slow("legacy.Adam", {}),
        ("legacy.RMSprop", {"momentum": 0.5}),
    ],
    ids=str,
)
def test_optimizers_of_tf_keras(ranks, optimizer, args):
    args = {"library": "tf_keras", "optimizer": optimizer, **args}
    stock = stock_values(ranks, "gathered", **args)
    check_equal(stock, ranks.values("gathered", **args))
    _check_all_first(ranks)


@pytest.mark.parametrize("batch", [1, slow(100)])
def test_batches(ranks, batch):
    args = {"policy": "mixed_bfloat16", "optimizer": "AdamW", "reads": ["evaluates"]}
    stock = stock_values(ranks, "gathered", **args)
    check_equal(stock, ranks.values("gathered", batch=batch, narrow=True, **args))


@pytest.mark.parametrize("optimizer", [slow("Lamb"), "Adafactor"])
def test_the_bits_of_the_end(ranks, optimizer):
    end = ranks.values("gathered", optimizer=optimizer, gather="end")
    check_equal(end, ranks.values("gathered", optimizer=optimizer))
    _check_all_first(ranks)


def test_gradients_of_the_pack_that_are_left_alone(ranks):
    stock = stock_values(ranks, "gathered", optimizer="Muon")
    check_equal(stock, ranks.values("gathered", optimizer="Muon"))
    for report in ranks.values("report"):
        gathers = [one["gather"] for one in _gradients(report)]
        # It multiplies matrices.
        assert gathers == ["first_use", ""] * 3


@pytest.mark.parametrize(
    "reads",
    [
        slow(["weights", "halves"]),
        ["one_weights", "evaluates"],
        slow(["evaluates", "everyone_reads", "other_batch"]),
        slow(["own_batch", "one_reads", "one_weights"]),
        ["changes", "weights"],
        slow(["switches", "changes", "one_weights"]),
        ["halves", "assigns", "faster"],
    ],
    ids=lambda reads: "-".join(reads),
)
def test_who_reads_between_steps_gets_the_values(ranks, reads):
    stock = stock_values(ranks, "gathered", reads=reads)
    check_equal(stock, ranks.values("gathered", reads=reads))


def test_a_read_costs_a_transfer(ranks):
    ranks.values("gathered", reads=["evaluates"])
    reports = ranks.values("report")
    for report in reports:
        joins = report["functions"][-1]["joins"]
        # The evaluation of each step; the values are whole when the test reads them.
        assert joins["count"] == _STEPS, joins
        assert all(who.startswith("function __inference_") for who in joins["by"]), joins
    others = sum(report["functions"][-1]["joins"]["bytes"] for report in reports)
    assert others == _STEPS * (ranks.size - 1) * 3 * 4 * ELEMENTS
    ranks.values("only_steps", steps=3)
    for report in ranks.values("report"):
        assert report["functions"][-1]["joins"]["count"] == _STEPS


def test_weights_have_no_values_of_their_own_between_steps(ranks):
    ranks.values("gathered")
    for result in ranks.values("unwritten", steps=2):
        assert result == [[False] * 6] * 2
    ranks.values("gathered", gather="end")
    for result in ranks.values("unwritten", steps=2):
        assert result == [[True] * 6] * 2


def test_compiled(ranks):
    here = ranks.values("gathered", compiled=True)
    end = ranks.values("gathered", compiled=True, gather="end")
    for one, other in zip(here, end, strict=True):
        assert one["weights"] == other["weights"]
        assert one["compiled"][-1][0] == other["compiled"][-1][0] > 0


def test_casts_to_bfloat16_travel_in_it(ranks):
    def run(**args):
        result = ranks.values("gathered", policy="mixed_bfloat16", **args)
        return result, ranks.values("received", steps=2)

    stock = stock_values(ranks, "gathered", policy="mixed_bfloat16")
    end, bytes_at_the_end = run(gather="end", narrow=True)
    for report in ranks.values("report"):
        assert {one["gather"] for one in _gradients(report)} == {"end"}
        sent = 2 * 4 * ELEMENTS * (ranks.size - 1) // ranks.size
        assert report["functions"][-1]["sent_bytes_per_step"] == sent
    wide, bytes_of_float32 = run()
    _check_all_first(ranks)
    narrow, bytes_of_bfloat16 = run(narrow=True)
    _check_all_first(ranks, "bfloat16")
    for report in ranks.values("report"):
        sent = (4 + 2) * ELEMENTS * (ranks.size - 1) // ranks.size
        assert report["functions"][-1]["sent_bytes_per_step"] == sent
    # Rounding before and behind the way is the same.
    for result in (end, wide, narrow):
        check_equal(stock, result)
    assert bytes_of_float32 == bytes_at_the_end
    for rank in range(ranks.size):
        own = packed_ranges(SIZES, 4, ranks.size, rank)
        others = ELEMENTS - sum(end - begin for begin, end in own)
        assert bytes_of_float32[rank] - bytes_of_bfloat16[rank] == 2 * 2 * others


def test_what_needs_more_than_bfloat16_travels_in_float32(ranks):
    args = {"policy": "mixed_bfloat16", "optimizer": "AdamW", "weight_decay": 0.1}
    stock = stock_values(ranks, "gathered", **args)
    check_equal(stock, ranks.values("gathered", narrow=True, **args))
    for report in ranks.values("report"):
        first, *others = _gradients(report)
        # The decay of one element is not sharded.
        assert (first["gather"], first["gather_type"]) == ("first_use", "float32")
        assert first["gather_wide"].endswith("(Mul)")
        # That of others is of the parts, which are whole numbers of float32.
        assert {one["gather_type"] for one in others} == {"bfloat16"}
        assert {one["gather_wide"] for one in others} == {""}
    stock = stock_values(ranks, "gathered")
    check_equal(stock, ranks.values("gathered", narrow=True))
    for report in ranks.values("report"):
        assert {one["gather_type"] for one in _gradients(report)} == {"float32"}
        assert all(one["gather_wide"] for one in _gradients(report))


@pytest.mark.slow
def test_float16(ranks):
    # Without loss scaling, which would update in a branch.
    args = {"policy": "mixed_float16", "optimizer": "SGD"}
    stock = stock_values(ranks, "gathered", **args)
    check_equal(stock, ranks.values("gathered", narrow=True, **args))
    _check_all_first(ranks, "float16")


@pytest.mark.parametrize(
    ("first", "then", "before", "after"),
    [
        ("first_use", "end", 3, 2),
        slow("first_use", "end", 2, 3),
        slow("end", "first_use", 2, 3),
        slow("end", "first_use", 3, 2),
    ],
)
def test_checkpoints(tmp_path, first, then, before, after):
    path = str(tmp_path / "saved")
    with Ranks(["grpc+fuse"] * before, server=False) as ranks:
        ranks.values("gathered", steps=2, gather=first)
        ranks.values("trained_on", steps=1, saved=path)
        # Saving has changed nothing.
        expected = ranks.values("trained_on", steps=2)
        stock = ranks.values("gathered", on=False, steps=5)
        assert [r["weights"] for r in expected] == [r["weights"] for r in stock]
    with Ranks(["grpc+fuse"] * after, server=False) as ranks:
        restored = ranks.values("gathered", gather=then, steps=2, restored=path)
        stock = ranks.values("gathered", on=False, steps=2, restored=path)
        check_equal(stock, restored)


# (`test_option` has the same of the optimizer's state.)
@pytest.mark.slow
def test_weights_that_died_with_their_replica_are_an_error():
    with Ranks(["grpc+fuse"] * 3, server=False) as ranks:
        ranks.values("gathered")
        ranks.values("only_steps", steps=1)
        ranks.kill(2)
        ranks.start("reads_weights", [0])
        (error,) = ranks.wait([0])
        assert error.kind == "UnavailableError", error
        assert "variables of the optimizer and weights" in error.text
        assert "restart the program from its last checkpoint" in error.text


def test_replicas_that_gather_otherwise_are_told():
    with Ranks(["grpc+fuse"] * 2, server=False) as ranks:
        ranks.start("gathered", [0])
        ranks.start("gathered", [1], gather="end")
        for error in ranks.wait():
            assert error.kind == "FailedPreconditionError", error
            assert "the replicas shard the update of the weights in different ways" in error.text
            assert "gathered at first_use" in error.text
            assert "gathered at end" in error.text


@pytest.mark.parametrize("execution", [slow(1), 3])
def test_fit(ranks, execution):
    args = {"library": "tf_keras", "name": "Adam", "execution": execution}
    stock = ranks.values("fitted", shard_weight_update=False, **args)
    here = ranks.values("fitted", shard_weight_update_gather="first_use", **args)
    for one, other in zip(stock, here, strict=True):
        assert one["losses"] == other["losses"]
        for theirs, ours in zip(one["values"], other["values"], strict=True):
            assert theirs.tobytes() == ours.tobytes()
    for report in ranks.values("report"):
        sharded = [function for function in report["functions"] if function["sharded"]][-1]
        # (Sums of the loss are reduced, too.)
        gradients = [one for p in sharded["buckets"] for one in p["gradients"] if one["sharded"]]
        gathers = [(one["gather"], one["gather_reason"]) for one in gradients]
        assert gathers == [("first_use", "")] * 4
