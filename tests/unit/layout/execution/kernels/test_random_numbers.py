# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Random numbers with a state in plans: the same on all meshes, and others in each call."""

from __future__ import annotations

import pytest

from tests.slow_cases import slow
from tests.unit.layout.execution.test_execute import run

SUMS = 5e-6


@pytest.fixture
def drawn(isolated_env):
    return lambda what: run("kernels/random_draws.py", ",".join(what), isolated_env)


# The meshes, with a mode, on which the numbers are those of one device.
CASES = ["x:4 data", "x:2;y:2 auto"]
MORE = ["x:4 auto", "x:2;y:2 data"]


@pytest.mark.parametrize("cases", [CASES, slow(MORE)])
def test_devices_draw_parts_of_the_same_numbers(drawn, cases):
    """A gradient has the mask of its dropout."""
    assert drawn(["numbers", *cases]) == {
        "different": [], "repeated": [], "same draws": False, "masked": True
    }  # fmt: skip


@pytest.mark.parametrize("cases", [CASES[:1], slow([*CASES[1:], *MORE])])
def test_draws_in_bodies_differ_by_trip_and_are_the_same_on_all_meshes(drawn, cases):
    """The gradient's loop has the masks of the first one."""
    assert drawn(["bodies", *cases]) == {"different": [], "equal": 0, "masked": True}


def test_mode_data_splits_numbers_for_the_batch(drawn):
    assert drawn(["split"]) == {
        "RandomUniform": "[8/x, 6] on x:4",
        "RandomStandardNormal": "[8/x, 3] on x:4",
        "RandomUniformInt": "[8/x] on x:4",
        "TruncatedNormal": "[8/x, 5] on x:4",
    }


def test_draws_without_a_seed_differ(drawn):
    """By operation and by execution; the share that is kept is the one asked for."""
    assert drawn(["without seed"]) == {"equal": [False] * 6, "kept": [True] * 4}


def test_dropout_of_tf_keras(drawn):
    found = drawn(["keras"])
    assert found["worst"] < SUMS
    assert found["predicted"] < SUMS


def test_other_draws_name_what_replaces_them(drawn):
    assert drawn(["errors"]) == [
        "tf.random.experimental.stateless_shuffle",
        "tf.random.stateless_categorical",
        "tf.random.stateless_gamma",
        "tf.random.stateless_poisson",
        "tf.random.experimental.stateless_shuffle",
    ]
