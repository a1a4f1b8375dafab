# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Synchronous training on parameter servers: gradients are added up beside their weights."""

from pathlib import Path

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_SCRIPT = str(Path(__file__).with_name("synchronous_cases.py"))
_KERNEL, _BIAS = 64 * 64, 64


@pytest.fixture(scope="module")
def runs():
    return {mode: coordinator.run(_SCRIPT, mode) for mode in ("stock", "on")}


@pytest.mark.parametrize("case", ["loop", "session"])
def test_values_are_those_of_stock(runs, case):
    stock, here = runs["stock"][case], runs["on"][case]
    assert "raised" not in stock and "raised" not in here, (stock, here)
    assert here["values"] == stock["values"]
    assert here.get("losses") == stock.get("losses")
    assert here.get("steps") == stock.get("steps")


@pytest.mark.parametrize("case", ["loop", "session"])
def test_accumulators_and_state_are_spread_alike(runs, case):
    # In stock TensorFlow every kernel is on one server, and every bias on the other.
    assert sorted(runs["stock"][case]["sums"]) == [4 * _BIAS, 4 * _KERNEL]
    even = [2 * (_KERNEL + _BIAS)] * 2
    assert sorted(runs["on"][case]["sums"]) == even
    assert sorted(runs["on"][case]["state"]) == [3 * one for one in even]


def test_accumulators_of_a_loop_are_beside_their_weights(runs):
    assert runs["on"]["loop"]["beside"] == [True] * 8
