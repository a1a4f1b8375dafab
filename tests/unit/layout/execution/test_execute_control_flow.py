# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans with the bodies of loops and conditionals, held against the same on one device."""

from __future__ import annotations

import pytest

from tests.unit.layout.execution.test_execute import run

SUMS = 1e-5


@pytest.fixture
def execute(isolated_env):
    return lambda what: run("control_flow_runs.py", what, isolated_env, 400)


def test_functions_with_loops_and_conditionals(execute):
    """Mode "data" splits the batch; what is summed up within a loop is reduced after it."""
    found = execute("functions")
    assert len(found) == 8 * 2 * 2
    for name, (distance, exact, unknown, inputs) in found.items():
        assert distance < SUMS and exact and unknown == [], name
        if " data " in name:
            assert inputs == ("[8/x+y, 4] on x:2;y:2" if "y:2" in name else "[8/x, 4] on x:2"), name


def test_training_steps_of_recurrent_layers(execute):
    """Their gradients of weights are partial in the loop; one device goes on with a checkpoint."""
    found = execute("recurrent")
    assert set(found) == {"LSTM data", "LSTM auto", "GRU data", "GRU auto"}
    for name, one in found.items():
        assert one.pop("worst") < SUMS, name
        assert one == {
            "restored": 0.0, "unknown": [], "split": True, "partial": True, "exact": True
        }, name  # fmt: skip


def test_optimizers_with_conditionals(execute):
    """In modes "data" and "auto": accumulated gradients, averages of weights, loss scales."""
    found = execute("optimizers")
    assert {name: one[1:] for name, one in found.items()} == {
        "accumulation": [[], [1]], "average": [[], [1]], "loss scale": [[], [2]]
    }  # fmt: skip
    assert all(one[0] < SUMS for one in found.values())


def test_loops_in_which_names_meet_run_whole(execute):
    assert execute("whole") == {
        "unknown": ["While"], "layout": "[4, 4/x] on x:2", "loaded": "[4, 4/x] on x:2"
    }  # fmt: skip
