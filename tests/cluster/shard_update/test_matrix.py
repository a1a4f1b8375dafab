# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the tables of docs/weight_update.md say, with `shard_weight_update` and in stock TensorFlow.

Stock TensorFlow has the protocol `grpc`, and nothing of tf_fuse is loaded. TF_FUSE_TEST_UPDATES=1
(`make updates`) has all of it with two workers and with three; otherwise it is all optimizers with
two, and some programs with three. Of these, those that are named in `_FAST` and such are not slow.
"""

import numpy as np
import pytest

from tests.cluster.collectives.ranks import DEADLINE_S, Ended, Error, Ranks
from tests.cluster.shard_update.matrix_rows import (
    EXACT,
    HAS_TF_KERAS,
    INEXACT,
    LIMIT,
    LONG,
    NESTEROV,
    PROGRAMS,
    STEPS,
    has,
)
from tests.slow_cases import slow, slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_WEIGHTS = 4
_SMALL = [37, 1]  # of these, vectors
# Those that are not slow: some of each library, with the names of their options.
_FAST = {
    ("keras", "Adam"),
    ("keras", "Lamb"),
    ("tf_keras", "RMSprop", "centered"),
    ("tf_keras.legacy", "RMSprop", "centered", "momentum"),
    ("v1", "FtrlOptimizer", "l1_regularization_strength"),
}
# Later, gradients of one replica overflow while those of others are finite. There stock Keras
# hangs: each replica decides by its own gradients whether it takes part in the all-reduce.
_MOST_STEPS = {"half_scaled": min(STEPS, 12)}
# Those that are tried in the short form, too.
_SHORT_PROGRAMS = [
    "embedding",
    slow("loop"),
    "scaled_2",
    slow("several_packs"),
    slow("tied"),
    "tiny",
]


def _of_installed(cases):
    skip = pytest.mark.skipif(not HAS_TF_KERAS, reason="tf_keras (Keras 2) is not installed")
    return [
        pytest.param(
            *case,
            marks=[
                *([] if (*case[:2], *case[2]) in _FAST else [pytest.mark.slow]),
                *([] if has(case[0]) else [skip]),
            ],
        )
        for case in cases
    ]


def _sizes(short):
    return pytest.mark.parametrize("groups", [2, 3] if LONG else [short], indirect=True,
                                   scope="module")  # fmt: skip


@pytest.fixture(scope="module")
def groups(request):
    """As many workers in stock TensorFlow, and as many with the option."""
    size = request.param
    with Ranks(["grpc"] * size, server=False, patient=True) as stock:
        with Ranks(["grpc+fuse"] * size, server=False, patient=True) as here:
            yield stock, here
        assert stock.values("plugin_loaded") == [False] * size


def _both(groups, case, **args):
    """What each of the two gives, which run at the same time."""
    for group in groups:
        group.start(case, **args)
    results = [group.wait(seconds=2 * DEADLINE_S) for group in groups]
    for group, some in zip(groups, results, strict=True):
        for rank, one in enumerate(some):
            assert one is not Ended and not isinstance(one, Error), f"{one}\n{group.log(rank)}"
    stock, here = results
    for one, other in zip(stock, here, strict=True):
        assert len(one["values"]) == len(other["values"]) > 0
        assert one["decided"] == []
        # The losses change, so weights do.
        assert len(set(one["losses"])) > 1
    return results


def _largest_difference(stock, here):
    pairs = [
        (a, b)
        for one, other in zip(stock, here, strict=True)
        for a, b in zip(one["values"], other["values"], strict=True)
    ]
    return max(float(np.max(np.abs(a.astype(float) - b), initial=0.0)) for a, b in pairs)


def _check_same(stock, here):
    for one, other in zip(stock, here, strict=True):
        assert one["losses"] == other["losses"]
        for number, (a, b) in enumerate(zip(one["values"], other["values"], strict=True)):
            assert a.tobytes() == b.tobytes(), f"variable {number}, of {a.shape}"


def _check_decided(here, **expected):
    for result in here:
        (decided,) = result["decided"]
        assert {key: decided[key] for key in expected} == expected, decided


@_sizes(2)
@pytest.mark.parametrize(("library", "name", "options", "slots"), _of_installed(EXACT))
def test_same_bits(groups, library, name, options, slots):
    args = {"library": library, "name": name, "options": options, "steps": STEPS}
    stock, here = _both(groups, "optimizer", **args)
    _check_same(stock, here)
    _check_decided(here, reason="", reasons=[], sharded=_WEIGHTS, inexact=0, slots=_WEIGHTS * slots)
    if slots:
        # Of what it has whole, each has a part.
        assert all(0 < one["decided"][0]["here"] < one["decided"][0]["whole"] for one in here)


@_sizes(2)
@pytest.mark.parametrize(("library", "name", "options", "slots"), _of_installed(INEXACT))
def test_sums_are_added_in_another_order(groups, library, name, options, slots):
    args = {"library": library, "name": name, "options": options, "steps": STEPS}
    stock, here = _both(groups, "optimizer", **args)
    assert _largest_difference(stock, here) <= LIMIT
    _check_decided(
        here, reason="", reasons=[], sharded=_WEIGHTS, inexact=_WEIGHTS, slots=_WEIGHTS * slots
    )
    for other in here:
        assert [v.tobytes() for v in other["values"]] == [v.tobytes() for v in here[0]["values"]]


# Each with options, and how many operations there are for the parts of the four weights on each
# worker, by where these are gathered: of one element, none, and with "end" the slots of Adam have
# some of their own. With Nesterov's momentum, weight and slot are changed by the same product.
_FUSED = [
    ("Adam", {}, {"end": [6, 2], "first_use": [3, 1]}),
    ("AdamW", {"weight_decay": 0.1}, {"end": [6, 2], "first_use": [3, 1]}),
    ("Nadam", {}, {"end": [6, 2], "first_use": [3, 1]}),
    ("RMSprop", {}, {"end": [3, 1], "first_use": [3, 1]}),
    ("SGD", NESTEROV, {"end": [0, 0], "first_use": [3, 1]}),
]


@_sizes(2)
@pytest.mark.parametrize("gather", ["end", "first_use"])
@pytest.mark.parametrize(
    ("name", "options", "counts"), slow_but(_FUSED, lambda case: case[0] == "Adam")
)
def test_updates_in_one_operation(groups, name, options, counts, gather):
    switches = {"shard_weight_update_gather": gather}
    args = {"library": "keras", "name": name, "options": options}
    stock, here = _both(groups, "optimizer", **args, **switches)
    _check_same(stock, here)
    _check_decided(here, reason="", reasons=[], sharded=_WEIGHTS, inexact=0)
    if len(here) == 2:
        assert [one["fused"] for one in here] == counts[gather]


@pytest.mark.slow
@_sizes(2)
def test_matrices_of_muon_are_left_alone(groups):
    stock, here = _both(groups, "optimizer", library="keras", name="Muon", options={})
    _check_same(stock, here)
    # (Of vectors it makes what AdamW does.)
    _check_decided(here, reason="", reasons=["not_elementwise"], sharded=2, slots=2 * len(_SMALL))


@_sizes(3)
@pytest.mark.parametrize("name", sorted(PROGRAMS) if LONG else _SHORT_PROGRAMS)
def test_programs(groups, name):
    if name == "scaled_2" and not HAS_TF_KERAS:
        pytest.skip("tf_keras (Keras 2) is not installed")
    stock, here = _both(groups, "step_of_program", name=name, steps=_MOST_STEPS.get(name, STEPS))
    _check_same(stock, here)
    sharded, slots = PROGRAMS[name]
    _check_decided(here, reason="", reasons=[], sharded=sharded, inexact=0, slots=slots)


@pytest.mark.slow
@_sizes(3)
def test_a_constraint_behind_the_update(groups):
    stock, here = _both(groups, "step_of_program", name="constrained", steps=STEPS)
    assert _largest_difference(stock, here) <= LIMIT
    _check_decided(here, reason="", reasons=[], sharded=6, inexact=1, slots=12)


@_sizes(3)
def test_layers_have_rates_of_their_own(groups):
    stock, here = _both(groups, "step_of_program", name="lars", steps=STEPS)
    assert _largest_difference(stock, here) <= LIMIT
    _check_decided(here, reason="", reasons=[], sharded=6, inexact=6, slots=6)


# Of `fit`: library, optimizer, type of the layers, steps of a call, and how many slots.
_FITS = [
    ("tf_keras", "Adam", "mixed_float16", 3, 8),
    ("tf_keras.legacy", "RMSprop", "mixed_float16", 1, 4),
    ("tf_keras.legacy", "Adam", "float32", 3, 8),
    ("tf_keras", "Nadam", "float32", 1, 8),
]


@_sizes(2)
@pytest.mark.skipif(not HAS_TF_KERAS, reason="tf_keras (Keras 2) is not installed")
@pytest.mark.parametrize(
    ("library", "name", "policy", "execution", "slots"),
    _FITS if LONG else [_FITS[0], slow(*_FITS[1])],
)
def test_fit(groups, library, name, policy, execution, slots):
    args = {"library": library, "name": name, "policy": policy, "execution": execution}
    stock, here = _both(groups, "fitted", **args)
    _check_same(stock, here)
    # (The sums that the metrics are made of are all-reduces, too.)
    metrics = ["no_update"]
    _check_decided(here, reason="", reasons=metrics, sharded=_WEIGHTS, inexact=0, slots=slots)


@_sizes(2)
def test_stock_cannot_fit_keras_3_with_workers(groups):
    for group in groups:
        group.start("fitted", library="keras", name="Adam")
    for error in (one for group in groups for one in group.wait()):
        assert error.kind == "ValueError", error
        assert error.text.startswith("Attempt to convert a value (PerReplica:"), error


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 8] if LONG else [4])
def test_more_workers(size):
    with (
        Ranks(["grpc"] * size, server=False) as stock,
        Ranks(["grpc+fuse"] * size, server=False) as here,
    ):
        for case, args in [
            ("optimizer", {"library": "keras", "name": "Adam", "options": {}}),
            ("step_of_program", {"name": "tiny"}),
        ]:
            results = _both((stock, here), case, **args)
            _check_same(*results)
            _check_decided(results[1], reason="", reasons=[], inexact=0)


def test_one_worker_has_nothing_to_shard():
    with Ranks(["grpc"], server=False) as stock, Ranks(["grpc+fuse"], server=False) as here:
        args = {"library": "keras", "name": "Adam", "options": {}}
        results = _both((stock, here), "optimizer", **args)
        _check_same(*results)
        _check_decided(results[1], reason="no_group", detail="there is one replica", slots=0)
        (line,) = [line for line in here.log(0).splitlines() if line.startswith("tf_fuse:")]
        assert line.endswith(
            " is not sharded: it is not known which replicas train together: there is one replica."
        )
