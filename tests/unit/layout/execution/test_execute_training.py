# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models that are trained by plans: losses, weights and checkpoints are those of one device."""

from __future__ import annotations

import pytest

from tests.unit.layout.execution.test_execute import run

SUMS = 2e-6


@pytest.fixture
def train(isolated_env):
    return lambda what: run("training_runs.py", what, isolated_env)


def test_a_transformer_trains_to_the_losses_of_one_device(train):
    """Vocabulary, d_ff and heads on one axis, and the batch on the other; and the batch on both."""
    found = train("transformer")
    assert found.pop("falls") > 0.1
    for one in found.values():
        assert one["losses"] < SUMS
        assert one["weights"] < SUMS
        assert one["exact"] and one["moved"]
    assert set(found["data"]["layouts"].values()) == {"('B', 'B')"}
    columns = dict.fromkeys(["query", "key", "value", "up", "out"], "('B', 'S(1)')")
    rows = dict.fromkeys(["table", "merge", "down"], "('B', 'S(0)')")
    assert found["rules"]["layouts"] == columns | rows


def test_keras_with_adam(train):
    """Weights are saved and loaded by Keras while they lie in slices."""
    found = train("keras")
    assert found.pop("losses") < SUMS
    assert found.pop("next") < SUMS
    assert found == {
        "weights": True,
        "saved": 0.0,
        "layout": "[8, 16/x] on x:2",
        "slot": "[8, 16/x] on x:2",
        "steps": 5,
        "exact": True,
    }


def test_checkpoints_are_whole(train):
    """Written under one mesh and layout, and read under another one and on one device."""
    found = train("checkpoints")
    assert found.pop("losses") < SUMS
    assert found == {
        "one device": True,
        "another mesh": True,
        "and back": True,
        "layouts": ["[8, 16/x] on x:4", "[8/x, 16] on x:2"],
        "released": True,
    }


def test_fused_updates_have_the_bits_of_others(train):
    """Each device updates its part of each weight, whose layouts differ, in one operation.

    Those of the count of steps and of the seed stay on each.
    """
    assert train("fused updates") == {"losses": True, "bits": True, "fused": 6 * 2, "left": 2 * 2}
