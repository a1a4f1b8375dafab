# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans that split height and width of images, held against the same function on one device."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import scripted
from tests.slow_cases import slow

HERE = Path(__file__).resolve().parent


@pytest.fixture
def execute(isolated_env):
    def run(what: str):
        path = {"PYTHONPATH": str(HERE.parents[4])}
        command = [sys.executable, str(HERE / "halo_runs.py"), what]
        return scripted.result_of(command, isolated_env | path, 280)

    return run


# Every kind with one geometry; of each other sort of geometry (see `halo_runs`) some kinds.
SOME = "3 5/Conv2D+MaxPool 7/Conv2DBackpropInput+AvgPool 9/Conv2DBackpropFilter+MaxPoolGrad"
STILL = "8 rows, 1 by 2, SAME"


@pytest.mark.parametrize(
    ("geometries", "count", "on_both", "unmoved"),
    [
        (SOME, 10, 14, {STILL}),
        slow("0 1 2", 10, 30, set()),
        slow("3 4 5", 10, 30, {STILL}),
        slow("6 7 8", 10, 14, set()),
        slow("9 10", 8, 16, set()),
    ],
    ids=["some", "0 1 2", "3 4 5", "6 7 8", "9 10"],
)
def test_windows_over_split_rows_have_the_values_of_one_device(
    execute, geometries, count, on_both, unmoved
):
    """Of each kind, geometry and way to split; the graph sends exactly the plan's bytes."""
    found = execute(f"operations {geometries}")
    kinds = {name.partition(":")[0] for name in found}
    assert len(kinds) == count
    assert max(worst for _, worst, _ in found.values()) < 2e-5
    exact = [worst for name, (_, worst, _) in found.items() if name.startswith("MaxPool:")]
    assert max(exact) == 0
    # Windows of one row need no neighbours.
    still = {name for name, (_, _, moved) in found.items() if not moved}
    assert {name.partition(": ")[2] for name in still} == unmoved
    assert [ways for ways, _, _ in found.values()].count(2) == on_both


def test_the_search_splits_rows_where_the_batch_is_one_image(execute):
    found = execute("search")
    for one in found.values():
        assert one["different"] < 2e-5
        assert one["planned"]
    assert found["large"]["chosen"] == ["split height"]
    assert "split height" not in found["many"]["chosen"]


def test_a_residual_network_of_one_image_trains_in_rows(execute):
    found = execute("residual")
    assert found["falls"] > 0.01
    for mode in ("constraints", "auto"):
        assert found[mode]["losses"] < 2e-5
        assert found[mode]["weights"] < 2e-5
        assert found[mode]["planned"]
    convolutions = [f"{kind}{end}" for kind in ("Conv2D", "DepthwiseConv2dNative")
                    for end in ("", "BackpropFilter", "BackpropInput")]  # fmt: skip
    pools = ["AvgPool", "AvgPoolGrad", "MaxPool", "MaxPoolGrad"]
    assert found["constraints"]["in rows"] == sorted([*convolutions, *pools])
