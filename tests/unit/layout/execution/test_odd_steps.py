# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps with rare operations, held against the same on one device."""

from __future__ import annotations

from tests.unit.layout.execution.test_execution import run


def test_steps_with_rare_operations_have_the_values_of_one_device(isolated_env):
    names = "slice_assignment"
    found = run("odd_steps.py", names, isolated_env)
    assert found == {name: {"data": 0.0, "auto": 0.0} for name in names.split()}
