# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The option fuse_lookups_combine in a job of one worker and two servers: bits, bytes, errors."""

import sys

import pytest

from tests.cluster.parameter_server import combine_cases
from tests.fault import coordinator
from tests.slow_cases import slow_but

pytestmark = pytest.mark.cluster

# By task, what it speaks; a task that speaks grpc does not have the plugin.
_JOBS = {
    "all": "grpc+fuse",
    "plain_servers": {"worker": "grpc+fuse", "ps": "grpc", "chief": "grpc+fuse"},
    "plain_worker": {"worker": "grpc", "ps": "grpc+fuse", "chief": "grpc+fuse"},
}
_MIXED = [name for name in _JOBS if name != "all"]
# What runs, too, where tasks are without the plugin. `make slow` runs all.
_WITHOUT_PLUGIN = [
    "sum, int32", "mean with weights, int32", "safe with weights", "ragged mean",
    "axis mean of three", "bfloat16", "branch", "gradient of a loop", "pieces", "width 1",
]  # fmt: skip
_COMBINED = [
    *combine_cases.SPARSE, "safe", "safe with weights", "empty rows", "no ids", "ragged sum",
    "ragged mean", "segments", "axis sum", "axis mean", "axis mean of three", "mask", "float64",
    "float16", "bfloat16", "float16 with weights", "two tables", "branch",
    "branch that is not taken", "loop",
]  # fmt: skip
# (A conditional keeps the rows for its gradient.)
_LEFT = ["pieces", "rows are used", "width 1", "gradient of a branch"]
# Sums travel, and a whole gradient, which the loop adds up.
_BOTH = ["gradient of a loop"]
# Where all tasks have the plugin: the other type of ids, and optimizers, layers and ids that show
# the same as others.
SLOW = {
    "all": [
        "sum, int64", "sum with weights, int32", "mean, int32", "mean with weights, int64",
        "sqrtn, int64", "sqrtn with weights, int32", "axis mean", "float16", "keras Adagrad",
        "tf_keras SGD", "keras, one input", "wrong negative id", "wrong negative segment",
    ]
}  # fmt: skip


def _slow(names, of="{}"):
    return slow_but(names, lambda name: of.format(name) not in SLOW["all"])


@pytest.fixture(scope="module")
def cases(jobs):
    return jobs("all")


@pytest.mark.parametrize("kind", _slow([*_COMBINED, *_LEFT, *_BOTH]))
def test_values_gradients_and_tables_have_the_same_bits(cases, kind):
    case = cases[kind]
    assert "raised" not in case, case
    assert case["on"] == case["stock"]


@pytest.mark.parametrize("kind", _WITHOUT_PLUGIN)
@pytest.mark.parametrize("job", _MIXED)
def test_tasks_without_the_plugin_have_the_same_bits(jobs, job, kind):
    case = jobs(job)[kind]
    assert "raised" not in case, case
    assert case["on"] == case["stock"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*_COMBINED, *_LEFT, *_BOTH])
@pytest.mark.parametrize("job", _MIXED)
def test_all_kinds_of_lookups_where_tasks_are_without_the_plugin(jobs, job, kind):
    case = jobs(job, "slow")[kind]
    assert "raised" not in case, case
    assert case["on"] == case["stock"]


@pytest.mark.parametrize("kind", _slow(_COMBINED))
def test_sums_travel(cases, kind):
    assert cases[kind]["moved"] == [True, True], cases[kind]["sent"]


@pytest.mark.parametrize("kind", _LEFT)
def test_rows_travel(cases, kind):
    assert cases[kind]["moved"] == [False, False], cases[kind]["sent"]


@pytest.mark.parametrize("name", _slow(combine_cases.OPTIMIZERS))
def test_optimizers_keep_their_bits(cases, name):
    case = cases[name]
    assert "raised" not in case, case
    assert case["on"] == case["stock"]
    assert case["moved"] == [True], case["sent"]


@pytest.mark.parametrize("layers", _slow(["one input", "masked", "two inputs"], "keras, {}"))
def test_embeddings_of_keras(cases, layers):
    case = cases[f"keras, {layers}"]
    assert "raised" not in case, case
    assert case["on"] == case["stock"]
    assert case["moved"] == [True], case["sent"]


def test_bytes(cases):
    stock, on = cases["bytes"]["stock"], cases["bytes"]["on"]
    assert stock["fused_rpcs"] == on["fused_rpcs"]
    row = combine_cases.WIDTH * 4
    rows = 2 * (combine_cases.UNIQUE - combine_cases.BATCH) * row  # and gradients
    numbers = combine_cases.IDS * (4 + 8)  # places of the ids' rows, and segments
    assert on["tensors"] - stock["tensors"] == 2 * combine_cases.TABLES
    described = 2 * 32
    assert stock["bytes"] - on["bytes"] == combine_cases.TABLES * (rows - numbers - described)


def test_bytes_of_sums_along_an_axis(cases):
    stock, on = cases["bytes"]["stock, axis"], cases["bytes"]["on, axis"]
    assert stock["fused_rpcs"] == on["fused_rpcs"]
    rows = 2 * (combine_cases.IDS - combine_cases.BATCH) * combine_cases.WIDTH * 4
    assert stock["bytes"] - on["bytes"] == combine_cases.TABLES * rows


@pytest.mark.parametrize(
    "what", _slow(["id", "negative id", "segments", "negative segment"], "wrong {}")
)
def test_errors_have_the_same_code(cases, what):
    case = cases[f"wrong {what}"]
    for one in (case["stock"], case["on"]):
        assert one["raised"] == "InvalidArgumentError", case
    assert case["stock"]["code"] == case["on"]["code"]
    assert case["stock"]["reason"] == case["on"]["reason"]
    assert case["after"] is True  # The job goes on.


@pytest.mark.parametrize("option", ["unique", "compress"])
def test_with_other_options(cases, option):
    case = cases[option]
    assert case["on"] == case["stock"]
    assert case["moved"] == [True]


def _main(kind, speed=""):
    job = coordinator.Job("on", 1, 2, protocol=_JOBS[kind])
    cases = combine_cases.cases(job, kind)
    if kind == "all":
        coordinator.finish(cases, SLOW[kind])
    coordinator.finish(
        cases if speed == "slow" else {name: cases[name] for name in _WITHOUT_PLUGIN}
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
