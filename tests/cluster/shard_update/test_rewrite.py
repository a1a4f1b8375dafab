# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Updates that are sharded over replicas: the bits of whole ones, in a part of the memory.

By the rewritten function alone; `test_matrix.py` has what the option makes of it, with
all optimizers, so of these and of programs only some are here. TF_FUSE_TEST_UPDATES=1
(`make updates`) has all. Groups of three are slow, those of two are not.
"""

import importlib.util
import os

import numpy as np
import pytest

from tests.cluster.collectives.ranks import Ranks
from tests.slow_cases import slow

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_LONG = os.environ.get("TF_FUSE_TEST_UPDATES") in ("1", "all")

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
_OPTIONS = [
    ("Adam", {"amsgrad": True, "weight_decay": 0.1}, 3),
    ("Adam", {"clipnorm": 0.1}, 2),  # (Before the all-reduce.)
    ("RMSprop", {"centered": True, "momentum": 0.9}, 3),
    ("SGD", {"momentum": 0.9, "nesterov": True, "global_clipnorm": 0.1}, 1),
]
_KERAS_2 = {
    "Adadelta": ({}, 2),
    "Adagrad": ({}, 1),
    "Adam": ({}, 2),
    "AdamW": ({}, 2),
    "Adamax": ({}, 2),
    "Ftrl": ({}, 2),
    "Lion": ({"clipvalue": 0.01}, 1),
    "Nadam": ({}, 2),
    "RMSprop": ({"centered": True}, 2),
    "SGD": ({"momentum": 0.9}, 1),
}
# Operations that update a variable and its slots at once: options, and number of slots.
_LEGACY = {
    "Adadelta": ({}, 2),
    "Adagrad": ({}, 1),
    "Adam": ({"amsgrad": True}, 3),
    "Adamax": ({}, 2),
    "Ftrl": ({}, 2),
    "Nadam": ({}, 2),
    "RMSprop": ({"centered": True, "momentum": 0.9}, 3),
    "SGD": ({"momentum": 0.9, "nesterov": True}, 1),
}
_V1 = {
    "Adadelta": ({}, 2),
    "Adagrad": ({}, 1),
    "Adam": ({}, 2),
    "Ftrl": ({"l1_regularization_strength": 0.001}, 2),
    "GradientDescent": ({}, 0),
    "Momentum": ({"momentum": 0.9}, 1),
    "ProximalAdagrad": ({}, 1),
    "ProximalGradientDescent": ({}, 0),
    "RMSProp": ({}, 2),
}
# Those whose sums are added in another order, and by how much weights of about 1 differ at most.
_INEXACT = {
    ("keras", "Adafactor"): ({}, 1, 1e-5),
    ("keras", "Lamb"): ({}, 2, 1e-5),
    ("tf_keras", "Adafactor"): ({}, 1, 1e-5),
    ("tf_keras", "Adam"): ({"global_clipnorm": 0.5}, 2, 1e-5),
    ("tf_keras", "SGD"): ({"clipnorm": 0.1, "momentum": 0.9}, 1, 1e-5),
}
_ONLY_LONG = pytest.mark.skipif(not _LONG, reason="long: make updates")


@pytest.fixture(scope="module", params=[2, slow(3)])
def ranks(request):
    with Ranks(["grpc+fuse"] * request.param, server=False, patient=True) as ranks:
        yield ranks


def _runs(ranks, case, **args):
    whole = ranks.values(case, sharded=False, **args)
    sharded = ranks.values(case, sharded=True, **args)
    for results in (whole, sharded):
        assert len({result["weights"] for result in results}) == 1
    # They change, so weights do.
    assert len(set(whole[0]["losses"])) > 1
    return whole, sharded


def _largest_difference(whole, sharded):
    return max(
        float(np.max(np.abs(a - b)))
        for one, other in zip(whole, sharded, strict=True)
        for a, b in zip(one["values"], other["values"], strict=True)
    )


def _both(ranks, library, optimizer, **more):
    args = {"library": library, "optimizer": optimizer, "steps": _STEPS, **more}
    whole, sharded = _runs(ranks, "update", **args)
    for one, other in zip(whole, sharded, strict=True):
        assert (one["weights"], one["losses"]) == (other["weights"], other["losses"])
    return sharded


def _check(sharded, slots):
    assert [result["reasons"] for result in sharded] == [[]] * len(sharded)
    assert [result["whole"] for result in sharded] == [slots * _ELEMENTS] * len(sharded)
    assert sum(result["own"] for result in sharded) == slots * _ELEMENTS
    # Parts begin at multiples of 16 elements, so the last one is shorter.
    assert max(result["own"] for result in sharded) <= slots * (_ELEMENTS // len(sharded) + 16)


@pytest.mark.parametrize("optimizer", sorted(_SLOTS) if _LONG else ["Adam"])
def test_keras_3(ranks, optimizer):
    _check(_both(ranks, "keras", optimizer), _SLOTS[optimizer])


@_ONLY_LONG
@pytest.mark.parametrize("options", _OPTIONS, ids=str)
def test_options_of_keras_3(ranks, options):
    optimizer, more, slots = options
    _check(_both(ranks, "keras", optimizer, options=more), slots)


@_ONLY_LONG
def test_matrices_of_muon_are_left_alone(ranks):
    for result in _both(ranks, "keras", "Muon"):
        # (Of vectors it makes what AdamW does.)
        assert (result["reasons"], result["whole"]) == (["not_elementwise"], 2 * (37 + 5 + 1))


@pytest.mark.skipif(not _HAS_TF_KERAS, reason="tf_keras (Keras 2) is not installed")
@_ONLY_LONG
@pytest.mark.parametrize("optimizer", sorted(_KERAS_2))
def test_keras_2(ranks, optimizer):
    options, slots = _KERAS_2[optimizer]
    _check(_both(ranks, "tf_keras", optimizer, options=options), slots)


@pytest.mark.skipif(not _HAS_TF_KERAS, reason="tf_keras (Keras 2) is not installed")
@pytest.mark.parametrize("optimizer", sorted(_LEGACY) if _LONG else ["RMSprop"])
def test_keras_2_legacy(ranks, optimizer):
    options, slots = _LEGACY[optimizer]
    _check(_both(ranks, "tf_keras.legacy", optimizer, options=options), slots)


@pytest.mark.parametrize("optimizer", sorted(_V1) if _LONG else ["Ftrl"])
def test_tensorflow_1(ranks, optimizer):
    options, slots = _V1[optimizer]
    _check(_both(ranks, "v1", f"{optimizer}Optimizer", options=options), slots)


@pytest.mark.parametrize(
    ("library", "optimizer"), sorted(_INEXACT) if _LONG else [("tf_keras", "Adam")]
)
def test_sums_are_added_in_another_order(ranks, library, optimizer):
    options, slots, limit = _INEXACT[library, optimizer]
    args = {"library": library, "optimizer": optimizer, "steps": _STEPS, "options": options}
    whole, sharded = _runs(ranks, "update", **args)
    _check(sharded, slots)
    assert [result["inexact"] for result in sharded] == [6] * len(sharded)
    assert _largest_difference(whole, sharded) <= limit


@pytest.mark.parametrize(
    "name", ["all", slow("any"), slow("max"), "max_of_columns", slow("max_of_rows"), slow("min")]
)
def test_reductions_that_keep_bits(ranks, name):
    whole, sharded = _runs(ranks, "reduction", name=name)
    assert [(result["reasons"], result["inexact"]) for result in sharded] == [([], 0)] * len(
        sharded
    )
    assert [one["weights"] for one in whole] == [other["weights"] for other in sharded]


@pytest.mark.parametrize(
    "name",
    [slow("mean"), "mean_of_rows", slow("norm"), slow("product"), "sum_of_first_and_last"],
)
def test_reductions_that_do_not(ranks, name):
    whole, sharded = _runs(ranks, "reduction", name=name)
    assert [(result["reasons"], result["inexact"]) for result in sharded] == [([], 3)] * len(
        sharded
    )
    largest = max(float(np.max(np.abs(value))) for value in whole[0]["values"])
    assert _largest_difference(whole, sharded) <= 1e-5 * largest


def test_exact_leaves_sums_alone(ranks):
    for result in _both(ranks, "keras", "Lamb", exact=True):
        assert (result["reasons"], result["whole"]) == (["not_exact"], 0)


@pytest.mark.slow
def test_averages_of_weights(ranks):
    _check(_both(ranks, "keras", "SGD", options={"use_ema": True}), 1)


# Steps of several kinds: why gradients are left alone, and how many elements slots have.
_PROGRAMS = {
    "accumulation": ([], 2 * _ELEMENTS),
    "embedding": ([], 2 * 7),
    "frozen": ([], 2 * (37 * 5 + 5 + 5 + 1)),
    "half": ([], 2 * _ELEMENTS),
    "loop": ([], 2 * _ELEMENTS),
    "nested": ([], 2 * _ELEMENTS),
    "scaled": ([], 2 * _ELEMENTS),
    "scaled_2": ([], 2 * _ELEMENTS),
    "several_packs": ([], _ELEMENTS),
    "two_optimizers": ([], 2 * _ELEMENTS),
}


@pytest.mark.parametrize("name", sorted(_PROGRAMS) if _LONG else [slow("accumulation"), "scaled"])
def test_programs(ranks, name):
    reasons, slots = _PROGRAMS[name]
    whole, sharded = _runs(ranks, "program", name=name)
    told = [(result["reasons"], result["whole"], result["inexact"]) for result in sharded]
    assert [one["weights"] for one in whole] == [other["weights"] for other in sharded]
    assert [one["losses"] for one in whole] == [other["losses"] for other in sharded]
    assert told == [(reasons, slots, 0)] * len(sharded)
    assert sum(result["own"] for result in sharded) == slots


def test_a_constraint_behind_the_update(ranks):
    whole, sharded = _runs(ranks, "program", name="constrained")
    assert [(r["reasons"], r["whole"], r["inexact"]) for r in sharded] == [
        ([], 2 * _ELEMENTS, 1)
    ] * len(sharded)
    assert _largest_difference(whole, sharded) <= 1e-5
