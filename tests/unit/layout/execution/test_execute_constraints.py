# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layouts that users write as in JAX, PyTorch and Keras, run on four logical devices."""

from __future__ import annotations

from tests.unit.layout.execution.test_execute import run

SUMS = 5e-6


def test_functions_that_ask_for_layouts_have_the_values_of_one_device(isolated_env):
    """Losses, results, gradients, weights, and what a checkpoint has of them."""
    found = run("constraints.py", "functions", isolated_env)
    assert set(found) == {"both", "rows twice", "placements", "partial"}
    for one in found.values():
        assert one["results"] < SUMS
        assert one["weights"] < SUMS
        assert one["checkpoint"] == 0.0
        assert one["exact"]


def test_keras_by_a_layout_map(isolated_env):
    found = run("constraints.py", "layout map", isolated_env)
    assert max(found["different"]) < SUMS
    assert found["layouts"] == [["[8, 16/y] on x:2;y:2", "[16/y, 3] on x:2;y:2"]] * 2
    assert found["slot"] == "[8/x, 16] on x:2;y:2"
    assert found["input"] == "[8/x, 8] on x:2;y:2"
    assert found["misspelt"] == (
        "layouts: no tensor or variable is named '.*hiden/kernel', nor matches it"
    )
