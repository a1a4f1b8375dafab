# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans that run on logical devices, held against the same function on one device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tf_fuse.layout.operators import ENTRIES

HERE = Path(__file__).resolve().parent
# What operators are tested by others of the same rule, which are the same operation on slices.
B, IO, H = 8, 16, 64


def run(program: str, what: str, env: dict[str, str], timeout: int = 200):
    """The JSON that a program prints."""
    done = subprocess.run(
        [sys.executable, str(HERE / program), what],
        capture_output=True,
        text=True,
        env={**env, "PYTHONPATH": f"{HERE.parents[1]}:{HERE}"},
        check=False,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def execute(isolated_env):
    return lambda what: run("layout_executions.py", what, isolated_env)


def test_each_strategy_of_each_operation_has_the_values_of_one_device(execute):
    """Also: the graph sends exactly the bytes of the plan, for each of them."""
    found = execute("operators")
    sums = {name: worst for name, (_, worst) in found.items() if worst}
    assert max(sums.values()) < 5e-6
    moved = {"Split", "SplitV", "Pack", "Slice", "StridedSlice", "Transpose", "Reshape", "OneHot",
             "GatherV2", "UnsortedSegmentSum", "MaxPool", "MaxPoolGrad", "TopKV2", "Max", "AddN",
             "AddV2", "Cast", "Tile", "Roll", "ReverseV2", "Cumsum", "SelectV2"}  # fmt: skip
    assert not moved & set(sums)
    assert min(count for count, _ in found.values()) >= 2
    assert sum(count for count, _ in found.values()) == 259
    kinds = {name.split("/")[0] for name in found}
    assert all(kinds & set(entry.rules) for entry in ENTRIES if not _is_left_out(entry))


def _is_left_out(entry) -> bool:
    """Those that stand for several operations, that traces cannot plan, or that others test."""
    return bool({"LayerNorm", "Attention", "FusedBatchNormV3", "Variable", "Abs", "AssignVariableOp",
                 "Equal"} & set(entry.rules))  # fmt: skip


def test_layouts_of_two_layers_are_the_same_and_cost_what_is_published(execute):
    """Mesh-TensorFlow's table, of what each device all-reduces, forward and backward.

    There are two products of each kind here, and the loss is one number more.
    """
    found = execute("layers")
    assert all(one["same"] for one in found.values())
    assert all(one["received"] == one["planned"] for one in found.values())
    assert all(one["operations"] == [] for one in found.values())
    loss = 4

    def reduced(elements: int, group: int, groups: int) -> int:
        return 2 * (group - 1) * elements * 4 * groups

    assert {name: one["planned"] for name, one in found.items()} == {
        "": 0,
        "batch:x": 2 * reduced(IO * H, 2, 1) + 2 * loss,
        "hidden:x": 2 * reduced(B * IO, 2, 1),
        "batch:x;hidden:y": 2 * (reduced(IO * H // 2, 2, 2) + reduced(B // 2 * IO, 2, 2))
        + 4 * loss,
    }


def test_strategies_by_chance_have_the_values_of_one_device(execute):
    """Whole numbers, so that sums in any order are equal."""
    found = execute("chance")
    assert found == {"good": 12, "different": 12}
