# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans in whose loops and conditionals devices communicate, held against one device."""

from __future__ import annotations

import pytest

from tests.slow_cases import slow
from tests.unit.layout.execution.test_execute import run

SUMS = 1e-5
# Bytes of what each trip reduces or gathers, a float32[2, 16], that each of two devices lacks.
V = 4 * 2 * 16


@pytest.fixture
def execute(isolated_env):
    return lambda what: run("communicating_bodies.py", what, isolated_env, 400)


@pytest.mark.parametrize("mesh", ["x:2", slow("x:2;y:2")])
def test_devices_communicate_in_loops_and_conditionals(execute, mesh):
    """The graph sends exactly the bytes of the plan, which counts each trip."""
    found = execute(f"functions {mesh}")
    assert len(found) == 10
    for name, one in found.items():
        assert one["worst"] < SUMS and one["exact"] and one["unknown"] == [], name
        assert one["regions"][0] > 0, name
    if mesh != "x:2":
        return
    # Of three trips: a gather, and a sum that each device needs whole; once in a branch.
    assert found["layer"]["planned"] == 3 * V
    assert found["layers"]["planned"] == 3 * 2 * V
    assert found["draws"]["planned"] == 3 * 2 * V
    # The result of a branch leaves it in slices.
    assert found["branches"]["planned"] == V
    # Three trips of two within a branch within a loop.
    assert found["nested"]["planned"] == 3 * 2 * 2 * V
    assert found["nested"]["regions"] == [3, 3]


def test_data_parallelism_communicates_in_loops_where_it_must(execute):
    """Gradients of each step, and what decides; but nothing in a loop without sums over rows."""
    found = execute("data")
    for name, one in found.items():
        assert one["worst"] < SUMS and one["unknown"] == [], name
        assert one["inputs"] == "[8/x, 16] on x:2", name
        planned, received = one["bytes"]
        assert planned == received, name
    assert found["layer"]["bytes"] == [0, 0]
    assert found["until"]["bytes"][0] > 0
    # Three times two gradients of 16 x 16, and the loss.
    assert found["steps"]["bytes"][0] >= 3 * 2 * 2 * 4 * 16 * 16


@pytest.mark.parametrize(
    ("kind", "layouts"),
    [
        slow("LSTM", ["[4, 16/x] on x:2", "[6, 24/x] on x:2"]),
        ("GRU", ["[4, 12/x] on x:2", "[6, 18/x] on x:2"]),
    ],
)
def test_training_steps_of_recurrent_layers_whose_gates_are_split(execute, kind, layouts):
    found = execute(f"recurrent {kind}")
    assert found.pop("worst") < SUMS
    # Forward and backward, of two layers.
    assert found.pop("regions") == 4
    assert found.pop("exact") and found.pop("unknown") == []
    assert found == {"layouts": layouts}


def test_the_search_lets_devices_communicate_in_loops_where_it_pays(execute):
    """An LSTM with large weights and a batch of one row, by fast links, or for want of memory."""
    found = execute("chosen")
    for name, one in found.items():
        assert one["worst"] < SUMS and one["exact"], name
    assert found["faster"]["layout"] == "[32, 128/x] on x:2"
    assert found["faster"]["communicating"] == [2, True]
    assert found["faster"]["gains"]
    assert found["slower"]["communicating"] == [0, False]
    assert "/x" in found["smaller"]["layout"]
    assert found["smaller"]["communicating"][1]
    assert found["smaller"]["memory"] < found["slower"]["memory"]
