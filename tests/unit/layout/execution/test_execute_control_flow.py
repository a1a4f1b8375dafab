# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans with the bodies of loops and conditionals, held against the same on one device."""

from __future__ import annotations

import pytest

from tests.slow_cases import slow
from tests.unit.layout.execution.test_execute import run

SUMS = 1e-5
MODES = ("data", "auto")


@pytest.fixture
def execute(isolated_env):
    return lambda what: run("control_flow_runs.py", what, isolated_env, 400)


FUNCTIONS = "loop swap conditional nested never gradient halves arrays"


@pytest.mark.parametrize(
    ("mesh", "mode", "functions"),
    [
        ("x:2", "data", FUNCTIONS),
        ("x:2", "auto", "nested gradient"),
        slow("x:2", "auto", "loop swap conditional never halves arrays"),
        slow("x:2;y:2", "data", FUNCTIONS),
        slow("x:2;y:2", "auto", FUNCTIONS),
    ],
    ids=["data", "auto", "auto, others", "2-D data", "2-D auto"],
)
def test_functions_with_loops_and_conditionals(execute, mesh, mode, functions):
    """Mode "data" splits the batch; what is summed up within a loop is reduced after it."""
    found = execute(f"functions {mesh} {mode} {functions}")
    assert set(found) == set(functions.split())
    for name, (distance, exact, unknown, inputs) in found.items():
        assert distance < SUMS and exact and unknown == [], name
        if mode == "data":
            assert inputs == ("[8/x+y, 4] on x:2;y:2" if "y:2" in mesh else "[8/x, 4] on x:2"), name


@pytest.mark.parametrize(
    ("kind", "mode"), [("LSTM", "data"), slow("LSTM", "auto"), *(slow("GRU", m) for m in MODES)]
)
def test_training_steps_of_recurrent_layers(execute, kind, mode):
    """Their gradients of weights are partial in the loop; one device goes on with a checkpoint."""
    found = execute(f"recurrent {kind} {mode}")
    assert found.pop("worst") < SUMS
    assert found == {
        "restored": 0.0, "unknown": [], "split": True, "partial": True, "exact": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "mode", "regions"),
    [
        ("accumulation", "data", 1), slow("accumulation", "auto", 1),
        slow("average", "data", 1), ("average", "auto", 1),
        ("loss_scale", "data", 2), slow("loss_scale", "auto", 2),
    ],
)  # fmt: skip
def test_optimizers_with_conditionals(execute, name, mode, regions):
    """In modes "data" and "auto": accumulated gradients, averages of weights, loss scales."""
    distance, *others = execute(f"optimizers {name} {mode}")
    assert others == [[], [regions]]
    assert distance < SUMS


def test_loops_in_which_names_meet_run_whole(execute):
    assert execute("whole") == {
        "unknown": ["While"], "layout": "[4, 4/x] on x:2", "loaded": "[4, 4/x] on x:2"
    }  # fmt: skip
