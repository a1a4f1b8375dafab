# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows are updated where they lie, on two logical devices."""

from __future__ import annotations

from tests.unit.layout.execution.test_execute import run


def test_rows_are_updated_in_place_with_the_values_of_one_device(isolated_env):
    """Where only gathers read a table, before its update; else each device copies its shard."""
    found = run("table_runs.py", "ways", isolated_env)
    assert list(found) == ["rows", "slots", "read after", "read whole"]
    for one in found.values():
        assert one["losses"] < 5e-6
        assert one["values"] < 5e-6
        assert one["layout"] == "[12/x, 4] on x:2"
    assert {name: one["copies"] for name, one in found.items()} == {
        "rows": 0, "slots": 0, "read after": 2, "read whole": 2,
    }  # fmt: skip


def test_a_failed_check_leaves_the_table(isolated_env):
    found = run("table_runs.py", "failed check", isolated_env)
    assert found == {"failed": True, "kept": True, "fine": True}


def test_each_device_makes_its_part_of_a_table(isolated_env):
    found = run("table_runs.py", "in parts", isolated_env)
    assert found["before"] is False
    assert found["made"] == [[[0, 0], [6, 4]], [[6, 0], [6, 4]]]
    assert found["losses"] < 5e-6
    assert found["values"] < 5e-6
    assert found["said"] == (
        "variable 'table:0': part_of([0, 0], [6, 4]) has shape (6,); return a part of the shape "
        "that it is given"
    )


def test_each_slice_of_a_variable_in_parts_is_made_once(isolated_env):
    """Devices that hold the same slice have the same random numbers, and others have other ones."""
    assert run("table_runs.py", "random parts", isolated_env) == {
        "calls": [[0, 0], [6, 0]],
        "equal": [True, True, False, False],
        "later": [False, False, True, True],
    }


def test_a_failed_execution_leaves_a_variable_in_parts_without_a_value(isolated_env):
    """It is not put together; others have their values, and the plan can be executed again."""
    assert run("table_runs.py", "failed execution", isolated_env) == {
        "said": "no kernel", "initialized": False, "bytes": 0, "kernel": True,
        "made": [[[0, 0], [6, 4]], [[6, 0], [6, 4]]], "values": True,
    }  # fmt: skip
