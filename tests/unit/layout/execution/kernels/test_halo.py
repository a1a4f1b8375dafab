# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans that split height and width of images, held against the same function on one device."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import scripted

HERE = Path(__file__).resolve().parent


@pytest.fixture
def execute(isolated_env):
    def run(what: str):
        path = {"PYTHONPATH": str(HERE.parents[4])}
        command = [sys.executable, str(HERE / "halo_runs.py"), what]
        return scripted.result_of(command, isolated_env | path, 280)

    return run


def test_windows_over_split_rows_have_the_values_of_one_device(execute):
    """Of each kind, geometry and way to split; the graph sends exactly the plan's bytes."""
    found = execute("operations")
    kinds = {name.partition(":")[0] for name in found}
    assert len(kinds) == 10
    assert max(worst for _, worst, _ in found.values()) < 2e-5
    exact = [worst for name, (_, worst, _) in found.items() if name.startswith("MaxPool:")]
    assert max(exact) == 0
    # Windows of one row need no neighbours.
    still = {name for name, (_, _, moved) in found.items() if not moved}
    assert {name.partition(": ")[2] for name in still} == {"8 rows, 1 by 2, SAME"}
    assert [count for count, _, _ in found.values()].count(2) > 80


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
