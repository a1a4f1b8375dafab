# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Updates that are cut over replicas: the bits of whole ones, in a part of the memory."""

import importlib.util

import pytest
from cluster.collective_ranks import Ranks

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_HAS_TF_KERAS = importlib.util.find_spec("tf_keras") is not None
_STEPS = 4
_ELEMENTS = 10 * 37 + 37 + 37 * 5 + 5 + 5 * 1 + 1  # of all weights
# By optimizer, how many slots of the weights' shapes it has.
_SLOTS = {
    "Adadelta": 2,
    "Adagrad": 1,
    "Adam": 2,
    "AdamW": 2,
    "Adamax": 2,
    "Ftrl": 2,
    "Lion": 1,
    "Nadam": 2,
    "RMSprop": 1,
    "SGD": 0,
}
# Why they are left alone so far.
_LEFT = {"Adafactor": "not_elementwise", "Lamb": "read_after_update"}


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request):
    with Ranks(["grpc+fuse"] * request.param, server=False) as ranks:
        yield ranks


def _both(ranks, library, optimizer):
    args = {"library": library, "optimizer": optimizer, "steps": _STEPS}
    whole = ranks.values("update", sharded=False, **args)
    cut = ranks.values("update", sharded=True, **args)
    assert len({result["weights"] for result in whole}) == 1
    assert len(set(whole[0]["losses"])) == _STEPS
    for one, other in zip(whole, cut, strict=True):
        assert (one["weights"], one["losses"]) == (other["weights"], other["losses"])
    return cut


def _check(cut, slots):
    assert [result["reasons"] for result in cut] == [[]] * len(cut)
    assert [result["whole"] for result in cut] == [slots * _ELEMENTS] * len(cut)
    assert sum(result["own"] for result in cut) == slots * _ELEMENTS
    # Parts begin at multiples of 16 elements, so the last one is shorter.
    assert max(result["own"] for result in cut) <= slots * (_ELEMENTS // len(cut) + 16)


@pytest.mark.parametrize("optimizer", sorted(_SLOTS))
def test_keras_3(ranks, optimizer):
    _check(_both(ranks, "keras", optimizer), _SLOTS[optimizer])


@pytest.mark.skipif(not _HAS_TF_KERAS, reason="tf_keras (Keras 2) is not installed")
@pytest.mark.parametrize(("optimizer", "slots"), [("Adam", 2), ("SGD", 1)])  # (momentum)
def test_keras_2(ranks, optimizer, slots):
    _check(_both(ranks, "tf_keras", optimizer), slots)


@pytest.mark.parametrize("optimizer", sorted(_LEFT))
def test_what_is_left_alone(ranks, optimizer):
    for result in _both(ranks, "keras", optimizer):
        assert _LEFT[optimizer] in result["reasons"]
