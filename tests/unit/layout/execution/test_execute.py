# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans that run on logical devices, held against the same function on one device."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import scripted
from tests.slow_cases import slow
from tf_fuse.layout.operators import ENTRIES

HERE = Path(__file__).resolve().parent
# What operators are tested by others of the same rule, which are the same operation on slices.
B, IO, H = 8, 16, 64


def run(program: str, what: str, env: dict[str, str], timeout: int = 280):
    """What a program gives."""
    path = {"PYTHONPATH": str(HERE.parents[3])}
    command = [sys.executable, str(HERE / program), what]
    return scripted.result_of(command, env | path, timeout)


@pytest.fixture
def execute(isolated_env):
    return lambda what: run("executions.py", what, isolated_env)


@pytest.mark.parametrize(("which", "strategies"), [("operators", 288), slow("more operators", 107)])
def test_each_strategy_of_each_operation_has_the_values_of_one_device(execute, which, strategies):
    """Also: the graph sends exactly the bytes of the plan, for each of them."""
    found = execute(which)
    sums = {name: worst for name, (_, worst) in found.items() if worst}
    # (The order of sums is the processor's: 5e-6 with AVX-512; with AVX2 a convolution's gradient
    # differs by 1.03e-5 of the largest element.)
    assert max(sums.values()) < 2e-5
    moved = {"Split", "SplitV", "Pack", "Slice", "StridedSlice", "Transpose", "Reshape", "OneHot",
             "GatherV2", "UnsortedSegmentSum", "MaxPool", "MaxPoolGrad", "TopKV2", "Max", "AddN",
             "AddV2", "Cast", "Tile", "Roll", "ReverseV2", "Cumsum", "SelectV2"}  # fmt: skip
    assert not moved & set(sums)
    assert not [name for name in sums if name.startswith("Stateless")]
    assert min(count for count, _ in found.values()) >= 2
    assert sum(count for count, _ in found.values()) == strategies
    if which == "operators":
        kinds = {name.split("/")[0] for name in found}
        assert all(kinds & set(entry.rules) for entry in ENTRIES if not _is_left_out(entry))


def _is_left_out(entry) -> bool:
    """Those that traces cannot plan, or that others test."""
    elsewhere = {"Variable", "Abs", "Equal", "AssignVariableOp", "EmptyTensorList",
                 "ResourceScatterAdd"}  # fmt: skip
    return bool(elsewhere & set(entry.rules))


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


@pytest.mark.slow
def test_strategies_by_chance_have_the_values_of_one_device(execute):
    """Whole numbers, so that sums in any order are equal."""
    found = execute("chance")
    assert found == {"good": 12, "different": 12}


def test_what_cannot_run_says_why(execute):
    random = (
        "{} has a state of its own ({}), which each device would have too: their values would "
        "differ; take {} with a seed that is fed or in a variable, or call it outside and feed "
        "what it makes"
    )
    assert execute("errors") == {
        "devices": "mesh 'x:2' has 2 devices, got 1; name each once",
        "unknown": "there is no device 'CPU:9' in this process; there are: "
        + ", ".join(f"CPU:{i}" for i in range(8))
        + "; make logical devices before TensorFlow uses any, by "
        "tf.config.set_logical_device_configuration",
        "twice": "a device is named twice in ['CPU:0', 'CPU:0']; name each once",
        "random": random.format(
            "RandomShuffle 'RandomShuffle'",
            "RandomShuffle",
            "tf.random.experimental.stateless_shuffle",
        ),
        "inner": random.format(
            "While 'map/while'", "RandomShuffle", "tf.random.experimental.stateless_shuffle"
        ),
        "python": "EagerPyFunc 'EagerPyFunc' has a state of its own (EagerPyFunc), which each "
        "device would have too: their values would differ; call it outside and feed what it makes",
        "made": "'_in_own_variable' uses variables that it does not capture: VarHandleOp; capture "
        "tf.Variables, do not make them in it or pass them as arguments",
        "handle": "'rows_of_handle' uses variables by their handles alone: "
        "ResourceGather/resource; read each by a method in it, too, as by variable.read_value()",
        "read": [[1.0, 1.0]],
        "untouched": "ResourceVariable",
        "taken": "LaidOutResourceVariable",
        "otherwise": "variable 'weight' lies as [6/x, 2] on x:2 already, and this plan has it as "
        "[6, 2] on x:2; plan with keep_layouts=True, or release the variable first",
        "unplanned": "variable 'weight' lies in slices, [6/x, 2] on x:2, and is read in a function "
        "that has no plan; plan and execute that function on the same mesh too, or release the "
        "variable first",
        # A function that was traced before finds no value.
        "stale": True,
        "shape": "variable 'weight' has shape (6, 2), got (2, 6); assign a value of its shape",
        "row": True,
        "label": [True, True],
        "arguments": [
            f"input 'x' of 'product' is {given}, and the plan is for float32[4, 6]; feed one of "
            "that shape and type, or plan for this one"
            for given in ("float32[4, 5]", "int32[4, 6]")
        ],
        "assigned": [18.0, 9.0],
        "released": ["ResourceVariable", 9.0],
    }


@pytest.mark.parametrize("onednn", [slow("0"), "1"])
def test_rows_that_are_not_finite_over_split_classes(onednn, isolated_env):
    """With oneDNN one device's softmax has NaN in its place only, and without it in the row."""
    found = run("not_finite.py", "", isolated_env | {"TF_ENABLE_ONEDNN_OPTS": onednn})
    names = ["dense", "log", "shares", "softmax", "softmax of doubles", "sparse"]
    assert found == {name: [0, 120] for name in names}


def test_updates_of_rows_of_a_split_table(execute):
    """Each device takes those of its rows; a number that is not a row is an error, as elsewhere."""
    assert execute("sparse") == {
        "[8/x, 4] on x:2 int32": 0.0,
        "[8/x, 4] on x:2 int32 wrong": True,
        "[8/x, 4] on x:2 int64": 0.0,
        "[8/x, 4] on x:2 int64 wrong": True,
        "[8, 4/x] on x:2 int32": 0.0,
        "[8, 4/x] on x:2 int32 wrong": True,
        "unknown": {},
    }


def test_a_function_runs_by_a_plan_for_each_size(execute):
    """What is not a multiple of the devices is done whole by all, and variables stay laid out."""
    found = execute("sizes")
    assert list(found) == ["data", "auto"]
    assert found["data"]["plans"] == [
        "[8/x, 4] on x:2", "[4/x, 4] on x:2", "[3, 4] on x:2", "[1, 4] on x:2"
    ]  # fmt: skip
    for one in found.values():
        assert one["worst"] < 1e-6
        assert len(one["plans"]) == 4
        assert (one["variables"], one["empty"]) == (1, True)
        assert one["released"] == ["ResourceVariable", True]


def test_threads_that_call_one_execution_do_not_disturb_each_other(execute):
    """What a call keeps while it runs is its own, and no update of a variable is lost."""
    assert execute("threads") == {"wrong": [], "lost": 0.0, "temporaries": [True, True]}


def test_checks_prints_summaries_and_tables_have_their_effect(isolated_env, tmp_path):
    """Once, of whole values; and a check that fails is the error that it is on one device."""
    found = run("effects.py", str(tmp_path), isolated_env)
    failed = "InvalidArgumentError"
    texts = {
        name: f"{failed} too small assertion failed"
        for name in ("positive", "of the output", "looped", "written")
    }
    texts |= dict.fromkeys(["Assert", "of a variable"], f"{failed} assertion failed")
    texts |= dict.fromkeys(["unread", "inside", "overflow"], f"{failed} is not finite")
    # Variables keep what they had before the check failed: of two calls one has updated them.
    after = {name: [32.0, 1] if name == "written" else [16.0, 0] for name in texts}
    assert found["guards"] == {
        name: [["nothing", text], ["nothing", text], *after[name]] for name, text in texts.items()
    }
    assert found["printed"] == [
        "total 528", "big [31 32]", "row 0", "row 1",
        "PrintV2 'PrintV2'", "PrintV2 'PrintV2_1'", "While 'while'",
    ]  # fmt: skip
    assert found["summaries"] == [[2, "mean", 17.5], [4, "mean", 19.5]]
    assert found["tables"] == [36.0, 228.0, -1.0, 4.0]
    assert found["left_out"] == [
        "'body' has effects that its plan leaves out, since they call Python or use what the "
        "function makes itself: EagerPyFunc 'EagerPyFunc'; do them outside of it",
        "left out, these do not run: EagerPyFunc 'EagerPyFunc'",
        "[]",
    ]
