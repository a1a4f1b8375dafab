# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiled updates of two workers, sharded and whole."""

import numpy as np
import pytest

from tests.cluster.collectives.ranks import Ranks

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

# How many of the six weights and biases are compiled: those with a shard of more than one
# element.
_WHOLE = 5
_PARTS = [5, 1]


@pytest.fixture(scope="module")
def ranks():
    with Ranks(["grpc+fuse"] * 2, server=False, patient=True) as ranks:
        yield ranks


def _compare(stock, compiled):
    for one, other in zip(stock, compiled, strict=True):
        for theirs, ours in zip(one["values"], other["values"], strict=True):
            # In training, last bits grow from step to step.
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["Adam", "RMSprop", "SGD"])
def test_each_replica_compiles_its_part(ranks, optimizer):
    args = {"optimizer": optimizer, "reads": ["everyone_reads"]}
    stock = ranks.values("trained", on=False, **args)
    sharded = ranks.values("trained", on=True, compiled=True, **args)
    _compare(stock, sharded)
    # All have the same weights and slots after, and the same slots in every step.
    assert len({result["weights"] for result in sharded}) == 1
    assert len({result["slots"] for result in sharded}) == 1
    assert len({tuple(result["seen"]) for result in sharded}) == 1
    assert [result["compiled"][-1][0] for result in sharded] == _PARTS


def test_without_sharding(ranks):
    stock = ranks.values("trained", on=False)
    compiled = ranks.values("trained", on=False, compiled=True)
    _compare(stock, compiled)
    assert len({result["weights"] for result in compiled}) == 1
    assert [result["compiled"][-1] for result in compiled] == [(_WHOLE, ["too_small"])] * 2


def test_adam_has_the_same_bits_whether_it_is_sharded_or_not(ranks):
    whole = ranks.values("trained", on=False, compiled=True)
    sharded = ranks.values("trained", on=True, compiled=True)
    assert {result["weights"] for result in whole} == {result["weights"] for result in sharded}
    assert {result["slots"] for result in whole} == {result["slots"] for result in sharded}
