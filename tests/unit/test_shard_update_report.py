# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the log says of a function, and who is told to have had values put together."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest

from tf_fuse.shard_update.decision import FUNCTION_REASONS, Decision
from tf_fuse.shard_update.families import REASONS, Family, Pack
from tf_fuse.shard_update.joining import Joins
from tf_fuse.shard_update.plan import Plan
from tf_fuse.shard_update.report import summary


def _decision(*reasons, reason=None, detail=""):
    families = [Family(f"gradient:{i}", (2, 3)) for i in range(len(reasons))]
    for family, why in zip(families, reasons, strict=True):
        if why is not None:
            family.leave(why, "some/node")
    return Decision("f_1", Plan([Pack("reduce", [], families)]), reason, detail, 2)


def test_all_that_is_cut_is_no_warning():
    assert summary(_decision(None, None)) == (
        False,
        "cut over 2 replicas: 2 of 2 gradients, and 0 variables of the optimizer, which take 0 "
        "bytes here in place of 0 (0 saved)",
    )


def test_what_is_left_alone_is_counted():
    is_left, line = summary(_decision(None, "returned", "escapes", "escapes"))
    assert is_left
    assert "1 of 4 gradients" in line
    assert line.endswith(
        f"; left alone: 2 escapes ({REASONS['escapes']}), 1 returned ({REASONS['returned']})"
    )


@pytest.mark.parametrize("reason", sorted(FUNCTION_REASONS))
def test_a_function_that_is_not_cut(reason):
    is_left, line = summary(_decision("escapes", reason=reason, detail="where"))
    assert is_left
    assert line.startswith(f"not cut: {FUNCTION_REASONS[reason]}: where; left alone: 1 escapes (")


def test_a_loss_that_is_reduced_is_no_warning():
    is_left, line = summary(_decision("returned", "no_update", reason="nothing_to_cut"))
    assert not is_left
    assert line.startswith("not cut: ")


def test_what_does_not_pay_is_no_warning():
    decision = _decision(None, reason="nothing_to_cut")
    decision.plan.packs[0].reason = "no_profit"
    is_left, line = summary(decision)
    assert not is_left
    assert line.endswith(f"; left alone: 1 no_profit ({REASONS['no_profit']})")


def test_names_of_readers_are_bounded():
    joins = Joins()
    for i in range(300):
        joins.add(f"train.py:{i}", 10, 0.5)
    joins.add("train.py:0", 10, 0.5)
    told = joins.as_dict()
    assert (told["count"], told["bytes"], told["seconds"]) == (301, 3010, 150.5)
    assert (len(told["by"]), told["by"]["train.py:0"], told["by"]["others"]) == (101, 2, 200)
