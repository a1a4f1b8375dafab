# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps with rare operations, held against the same on one device."""

from __future__ import annotations

from tests.unit.layout.execution.test_execute import run

SUMS = 1e-6


def test_steps_with_rare_operations_have_the_values_of_one_device(isolated_env):
    names = ["captured", "ctc", "rows", "slice_assignment"]
    found = run("odd_steps.py", " ".join(names), isolated_env)
    assert list(found) == names
    assert found["slice_assignment"] == {"data": 0.0, "auto": 0.0}
    assert all(worst < SUMS for one in found.values() for worst in one.values())
