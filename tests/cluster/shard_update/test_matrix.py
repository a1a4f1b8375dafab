# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the tables of docs/weight_update.md say, with `shard_weight_update` and in stock TensorFlow.

Stock TensorFlow has the protocol `grpc`, and nothing of tf_fuse is loaded. TF_FUSE_TEST_UPDATES=1
(`make updates`) has all of it with two workers and with three; otherwise it is all optimizers with
two, some programs with three, and all optimizers of Keras 3 with three replicas in a process. Of
these, those that are named in `_FAST` and such are not slow.
"""

import importlib.util
import os
import re
from pathlib import Path

import numpy as np
import pytest

from tests.cluster.collectives.ranks import DEADLINE_S, Ended, Error, Ranks
from tests.slow_cases import slow, slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_LONG = os.environ.get("TF_FUSE_TEST_UPDATES") in ("1", "all")
_EVERY = 1 if os.environ.get("TF_FUSE_TEST_UPDATES") == "all" else 4  # size of a bias
_ROOT = Path(__file__).resolve().parents[3]
_STEPS = 40 if _LONG else 4
_WEIGHTS = 4
_SMALL = [37, 1]  # of these, vectors
_HAS_TF_KERAS = importlib.util.find_spec("tf_keras") is not None
_NESTEROV = {"momentum": 0.9, "nesterov": True}
# Of a library and an optimizer, its options and how many slots it has for a weight.
_EXACT = [
    ("keras", "Adadelta", {}, 2),
    ("keras", "Adagrad", {}, 1),
    ("keras", "Adam", {}, 2),
    ("keras", "Adam", {"amsgrad": True, "weight_decay": 0.1}, 3),
    ("keras", "Adam", {"clipnorm": 0.1}, 2),  # (Before the all-reduce.)
    ("keras", "AdamW", {}, 2),
    ("keras", "Adamax", {}, 2),
    ("keras", "Ftrl", {}, 2),
    ("keras", "Lion", {}, 1),
    ("keras", "Nadam", {}, 2),
    ("keras", "RMSprop", {"centered": True, "momentum": 0.9}, 3),
    ("keras", "SGD", {}, 0),
    ("keras", "SGD", {"use_ema": True}, 1),
    ("keras", "SGD", {**_NESTEROV, "global_clipnorm": 0.1}, 1),
    ("tf_keras", "Adadelta", {}, 2),
    ("tf_keras", "Adagrad", {}, 1),
    ("tf_keras", "Adam", {"amsgrad": True}, 3),
    ("tf_keras", "AdamW", {}, 2),
    ("tf_keras", "Adamax", {}, 2),
    ("tf_keras", "Ftrl", {}, 2),
    ("tf_keras", "Lion", {"clipvalue": 0.01}, 1),
    ("tf_keras", "Nadam", {}, 2),
    # (Of one element, its products were in another order.)
    ("tf_keras", "RMSprop", {"centered": True}, 2),
    # (What it adds to a weight is a sum.)
    ("tf_keras", "SGD", _NESTEROV, 1),
    ("tf_keras.legacy", "Adadelta", {}, 2),
    ("tf_keras.legacy", "Adagrad", {}, 1),
    ("tf_keras.legacy", "Adam", {"amsgrad": True}, 3),
    ("tf_keras.legacy", "Adamax", {}, 2),
    ("tf_keras.legacy", "Ftrl", {}, 2),
    ("tf_keras.legacy", "Nadam", {}, 2),
    ("tf_keras.legacy", "RMSprop", {"centered": True, "momentum": 0.9}, 3),
    ("tf_keras.legacy", "SGD", _NESTEROV, 1),
    ("v1", "AdadeltaOptimizer", {}, 2),
    ("v1", "AdagradOptimizer", {}, 1),
    ("v1", "AdamOptimizer", {}, 2),
    ("v1", "FtrlOptimizer", {"l1_regularization_strength": 0.001}, 2),
    ("v1", "GradientDescentOptimizer", {}, 0),
    ("v1", "MomentumOptimizer", {"momentum": 0.9}, 1),
    ("v1", "ProximalAdagradOptimizer", {}, 1),
    ("v1", "ProximalGradientDescentOptimizer", {}, 0),
    ("v1", "RMSPropOptimizer", {}, 2),
]
_INEXACT = [
    ("keras", "Adafactor", {}, 1),
    ("keras", "Lamb", {}, 2),
    ("tf_keras", "Adafactor", {}, 1),
    ("tf_keras", "Adam", {"global_clipnorm": 0.5}, 2),
    ("tf_keras", "SGD", {"clipnorm": 0.1, "momentum": 0.9}, 1),
]
# Those that are not slow: some of each library, with the names of their options.
_FAST = {
    ("keras", "Adam"),
    ("keras", "Ftrl"),
    ("keras", "Lamb"),
    ("keras", "SGD"),
    ("tf_keras", "RMSprop", "centered"),
    ("tf_keras.legacy", "RMSprop", "centered", "momentum"),
    ("v1", "FtrlOptimizer", "l1_regularization_strength"),
    ("v1", "GradientDescentOptimizer"),
}
_LIMIT = 1e-5  # by which any weight or slot of them may differ after all steps
# Of each program, how many gradients are cut, and how many slots.
_PROGRAMS = {
    "accumulation": (6, 12),
    "embedding": (2, 4),
    "frozen": (4, 8),
    "half": (6, 12),
    "half_scaled": (6, 12),
    "loop": (6, 12),
    "nested": (6, 12),
    "scaled": (6, 12),
    "scaled_2": (6, 12),
    "several_packs": (6, 6),
    "tied": (3, 6),
    "tiny": (5, 10),
    "two_optimizers": (6, 12),
}
# Later, gradients of one replica overflow while those of others are finite. There stock Keras
# hangs: each replica decides by its own gradients whether it takes part in the all-reduce.
_MOST_STEPS = {"half_scaled": min(_STEPS, 12)}
# Those that are tried in the short form, too.
_SHORT_PROGRAMS = [
    "embedding",
    slow("loop"),
    "scaled_2",
    slow("several_packs"),
    slow("tied"),
    "tiny",
]


def _has(library):
    return _HAS_TF_KERAS or not library.startswith("tf_keras")


def _of_installed(cases):
    skip = pytest.mark.skipif(not _HAS_TF_KERAS, reason="tf_keras (Keras 2) is not installed")
    return [
        pytest.param(
            *case,
            marks=[
                *([] if (*case[:2], *case[2]) in _FAST else [pytest.mark.slow]),
                *([] if _has(case[0]) else [skip]),
            ],
        )
        for case in cases
    ]


def _sizes(short):
    return pytest.mark.parametrize("groups", [2, 3] if _LONG else [short], indirect=True,
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
@pytest.mark.parametrize(("library", "name", "options", "slots"), _of_installed(_EXACT))
def test_same_bits(groups, library, name, options, slots):
    args = {"library": library, "name": name, "options": options, "steps": _STEPS}
    stock, here = _both(groups, "optimizer", **args)
    _check_same(stock, here)
    _check_decided(here, reason="", reasons=[], cut=_WEIGHTS, inexact=0, slots=_WEIGHTS * slots)
    if slots:
        # Of what it has whole, each has a part.
        assert all(0 < one["decided"][0]["here"] < one["decided"][0]["whole"] for one in here)


@_sizes(2)
@pytest.mark.parametrize(("library", "name", "options", "slots"), _of_installed(_INEXACT))
def test_sums_are_added_in_another_order(groups, library, name, options, slots):
    args = {"library": library, "name": name, "options": options, "steps": _STEPS}
    stock, here = _both(groups, "optimizer", **args)
    assert _largest_difference(stock, here) <= _LIMIT
    _check_decided(
        here, reason="", reasons=[], cut=_WEIGHTS, inexact=_WEIGHTS, slots=_WEIGHTS * slots
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
    ("SGD", _NESTEROV, {"end": [0, 0], "first_use": [3, 1]}),
]


@_sizes(2)
@pytest.mark.parametrize("gather", ["end", "first_use"])
@pytest.mark.parametrize(
    ("name", "options", "counts"), slow_but(_FUSED, lambda case: case[0] in ("Adam", "SGD"))
)
def test_updates_in_one_operation(groups, name, options, counts, gather):
    switches = {"shard_weight_update_gather": gather}
    args = {"library": "keras", "name": name, "options": options}
    stock, here = _both(groups, "optimizer", **args, **switches)
    _check_same(stock, here)
    _check_decided(here, reason="", reasons=[], cut=_WEIGHTS, inexact=0)
    if len(here) == 2:
        assert [one["fused"] for one in here] == counts[gather]


@pytest.mark.slow
@_sizes(2)
def test_matrices_of_muon_are_left_alone(groups):
    stock, here = _both(groups, "optimizer", library="keras", name="Muon", options={})
    _check_same(stock, here)
    # (Of vectors it makes what AdamW does.)
    _check_decided(here, reason="", reasons=["not_elementwise"], cut=2, slots=2 * len(_SMALL))


@_sizes(3)
@pytest.mark.parametrize("name", sorted(_PROGRAMS) if _LONG else _SHORT_PROGRAMS)
def test_programs(groups, name):
    if name == "scaled_2" and not _HAS_TF_KERAS:
        pytest.skip("tf_keras (Keras 2) is not installed")
    stock, here = _both(groups, "step_of_program", name=name, steps=_MOST_STEPS.get(name, _STEPS))
    _check_same(stock, here)
    cut, slots = _PROGRAMS[name]
    _check_decided(here, reason="", reasons=[], cut=cut, inexact=0, slots=slots)


@pytest.mark.slow
@_sizes(3)
def test_a_constraint_behind_the_update(groups):
    stock, here = _both(groups, "step_of_program", name="constrained", steps=_STEPS)
    assert _largest_difference(stock, here) <= _LIMIT
    _check_decided(here, reason="", reasons=[], cut=6, inexact=1, slots=12)


@_sizes(3)
def test_layers_have_rates_of_their_own(groups):
    stock, here = _both(groups, "step_of_program", name="lars", steps=_STEPS)
    assert _largest_difference(stock, here) <= _LIMIT
    _check_decided(here, reason="", reasons=[], cut=6, inexact=6, slots=6)


# Of `fit`: library, optimizer, type of the layers, steps of a call, and how many slots.
_FITS = [
    ("tf_keras", "Adam", "mixed_float16", 3, 8),
    ("tf_keras.legacy", "RMSprop", "mixed_float16", 1, 4),
    ("tf_keras.legacy", "Adam", "float32", 3, 8),
    ("tf_keras", "Nadam", "float32", 1, 8),
]


@_sizes(2)
@pytest.mark.skipif(not _HAS_TF_KERAS, reason="tf_keras (Keras 2) is not installed")
@pytest.mark.parametrize(
    ("library", "name", "policy", "execution", "slots"),
    _FITS if _LONG else [_FITS[0], slow(*_FITS[1])],
)
def test_fit(groups, library, name, policy, execution, slots):
    args = {"library": library, "name": name, "policy": policy, "execution": execution}
    stock, here = _both(groups, "fitted", **args)
    _check_same(stock, here)
    # (The sums that the metrics are made of are all-reduces, too.)
    metrics = ["no_update"]
    _check_decided(here, reason="", reasons=metrics, cut=_WEIGHTS, inexact=0, slots=slots)


@_sizes(2)
def test_stock_cannot_fit_keras_3_with_workers(groups):
    for group in groups:
        group.start("fitted", library="keras", name="Adam")
    for error in (one for group in groups for one in group.wait()):
        assert error.kind == "ValueError", error
        assert error.text.startswith("Attempt to convert a value (PerReplica:"), error


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 8] if _LONG else [4])
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


def test_one_worker_has_nothing_to_cut():
    with Ranks(["grpc"], server=False) as stock, Ranks(["grpc+fuse"], server=False) as here:
        args = {"library": "keras", "name": "Adam", "options": {}}
        results = _both((stock, here), "optimizer", **args)
        _check_same(*results)
        _check_decided(results[1], reason="no_group", detail="there is one replica", slots=0)
        (line,) = [line for line in here.log(0).splitlines() if line.startswith("tf_fuse:")]
        assert line.endswith(
            " is not cut: it is not known which replicas train together: there is one replica."
        )


# Each optimizer of Keras 3, with three replicas; of others, what only they have.
_OPTIMIZERS = sorted({name for library, name, *_ in [*_EXACT, *_INEXACT] if library == "keras"})
# By number of replicas in a process: optimizers, programs, and what is fitted.
_IN_A_PROCESS = {
    2: [
        "nested",
        "scaled",
        {"library": "keras", "name": "Adam", "policy": "mixed_float16"},
    ],
    3: [
        *(["keras", name, {}] for name in [*_OPTIMIZERS, "Muon"]),
        ["keras", "SGD", _NESTEROV],
        ["v1", "AdamOptimizer", {}],
        "tiny",
        "two_optimizers",
    ],
}
if _HAS_TF_KERAS:
    _IN_A_PROCESS[2] += [["tf_keras.legacy", "Adam", {"amsgrad": True}], "scaled_2"]
if _LONG:
    # (With tf_keras's Nadam, the second of two such replicas of stock TensorFlow has NaNs.)
    _exact = [[*c[:3]] for c in _EXACT if _has(c[0]) and c[:2] != ("tf_keras", "Nadam")]
    _IN_A_PROCESS[2] += [
        # Forty steps. Each size of a bias from 1 to 4097, or each fourth, is with one optimizer.
        *([*case, "dlrm"] for case in _exact),
        *([*case, "biases", [*range(1 + i, 4098, len(_exact))]] for i, case in enumerate(_exact)),
        ["keras", "Lamb", {}],
        {"library": "keras", "name": "Adam"},
        *_exact,
    ]
    _IN_A_PROCESS[3] += ["embedding", "frozen", "half", "half_scaled", "several_packs", "tied"]
    _IN_A_PROCESS[8] = [["keras", "Lamb", {}], ["v1", "RMSPropOptimizer", {}], "nested"]
# Of these, those that are not slow.
_FAST_IN_A_PROCESS = [
    "scaled",
    "scaled_2",
    {"library": "keras", "name": "Adam", "policy": "mixed_float16"},
    *(["keras", name, {}] for name in ("Adafactor", "Muon")),
    ["v1", "AdamOptimizer", {}],
]
# Those that are not cut as all others are, and why.
_LEFT = {
    # One branch has the updates of all replicas.
    "scaled_2": ("nothing_to_cut", ["in_branch"]),
    "Muon": ("", ["not_elementwise"]),
}


@pytest.fixture(scope="module")
def process(request):
    """A process with as many replicas."""
    with Ranks(["grpc+fuse"], devices=request.param, server=False) as ranks:
        yield ranks


def _title(case):
    if isinstance(case, dict):
        return f"fit-{case['name']}"
    return "-".join(map(str, case[:4])) if isinstance(case, list) else None


@pytest.mark.parametrize(
    ("process", "case"),
    slow_but(
        [(replicas, case) for replicas, cases in _IN_A_PROCESS.items() for case in cases],
        lambda one: one[1] in _FAST_IN_A_PROCESS,
    ),
    indirect=["process"],
    ids=_title,
    scope="module",
)
def test_mirrored(process, case):
    is_long = isinstance(case, list) and len(case) > 3
    process.start("both_on_devices", of=case, steps=40 if is_long else 4)
    (result,) = process.wait(seconds=(8 if is_long else 3) * DEADLINE_S)
    assert isinstance(result, dict), f"{result}\n{process.log(0)}"
    assert result["losses"] > 1
    (decided,) = result["decided"]
    name = case[1] if isinstance(case, list) else str(case)
    assert (decided["reason"], decided["reasons"]) == _LEFT.get(name, ("", [])), result
    if decided["inexact"]:
        assert name in {"Adafactor", "Lamb"}
        assert result["largest"] <= _LIMIT
    else:
        assert (result["same_losses"], result["same_values"]) == (True, True), result


# --- The tables of the documentation --------------------------------------------------------------


def _rows(name):
    text = (_ROOT / "docs" / "weight_update.md").read_text(encoding="utf-8")
    (table,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_all_optimizers_of_the_documentation():
    titles = {"Keras 3": "keras", "tf_keras": "tf_keras", "tf_keras.legacy": "tf_keras.legacy",
              "tf.compat.v1.train": "v1"}  # fmt: skip
    told = {True: set(), False: set()}
    for first, _, same in _rows("optimizers"):
        title, _, names = first.partition(": ")
        for name in re.findall(r"\b[A-Z]\w+\b", names):
            told[same.startswith("yes")].add((titles[title], name))
    tried = {(library, name.removesuffix("Optimizer")) for library, name, *_ in _EXACT}
    assert told[True] == tried | {("keras", "Muon")}
    assert told[False] == {(library, name) for library, name, options, _ in _INEXACT if not options}


def test_all_programs_of_the_documentation():
    named = {name for row in _rows("programs") for name in re.findall(r"`(\w+)`", row[-1])}
    assert named == {*_PROGRAMS, "constrained", "lars"}
