# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the tables of docs/weight_update.md say, with replicas in one process.

Three replicas train with each optimizer of Keras 3; TF_FUSE_TEST_UPDATES=1 (`make updates`) tries
more. Cases in `_FAST_IN_A_PROCESS` are not slow.
"""

import os

import pytest

from tests.cluster.collectives.ranks import DEADLINE_S, Ranks
from tests.cluster.shard_update.matrix_rows import (
    EXACT,
    HAS_TF_KERAS,
    INEXACT,
    LIMIT,
    LONG,
    NESTEROV,
    has,
)
from tests.slow_cases import slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_EVERY = 1 if os.environ.get("TF_FUSE_TEST_UPDATES") == "all" else 4  # size of a bias
# Each optimizer of Keras 3, with three replicas; of others, what only they have.
_OPTIMIZERS = sorted({name for library, name, *_ in [*EXACT, *INEXACT] if library == "keras"})
# By number of replicas in a process: optimizers, programs, and what is fitted.
_IN_A_PROCESS = {
    2: [
        "nested",
        "scaled",
        {"library": "keras", "name": "Adam", "policy": "mixed_float16"},
    ],
    3: [
        *(["keras", name, {}] for name in [*_OPTIMIZERS, "Muon"]),
        ["keras", "SGD", NESTEROV],
        ["v1", "AdamOptimizer", {}],
        "tiny",
        "two_optimizers",
    ],
}
if HAS_TF_KERAS:
    _IN_A_PROCESS[2] += [["tf_keras.legacy", "Adam", {"amsgrad": True}], "scaled_2"]
if LONG:
    # (With tf_keras's Nadam, the second of two such replicas of stock TensorFlow has NaNs.)
    _exact = [[*c[:3]] for c in EXACT if has(c[0]) and c[:2] != ("tf_keras", "Nadam")]
    _IN_A_PROCESS[2] += [
        # Forty steps. Each size of a bias from 1 to 4097, or each fourth, is with one optimizer.
        *([*case, "dlrm"] for case in _exact),
        *(
            [*case, "biases", [*range(1 + i, 4098, _EVERY * len(_exact))]]
            for i, case in enumerate(_exact)
        ),
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
# Those that are not sharded as all others are, and why.
_LEFT = {
    # One branch has the updates of all replicas.
    "scaled_2": ("nothing_to_shard", ["in_branch"]),
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
        assert result["largest"] <= LIMIT
    else:
        assert (result["same_losses"], result["same_values"]) == (True, True), result
