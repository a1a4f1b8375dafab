# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranks of stock TensorFlow and of this package, shared by the tests of a file."""

import pytest

from tests.cluster.collectives.ranks import Ranks
from tests.cluster.collectives.reductions import RANKS


@pytest.fixture(scope="module")
def stock():
    with Ranks(["grpc"] * RANKS) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def ours():
    with Ranks(["grpc+fuse"] * RANKS) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def ring():
    with Ranks(["grpc+fuse"] * RANKS, {"TF_FUSE_COLLECTIVE_ALGORITHM": "ring"}) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def stock_reduced(stock):
    """What stock makes of specifications, computed once."""
    made = {}

    def reduced(specs):
        key = tuple(specs)
        if key not in made:
            made[key] = stock.values("reduce", specs=specs)
        return made[key]

    return reduced
