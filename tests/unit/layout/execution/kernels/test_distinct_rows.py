# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables that are trained by the distinct rows of their gradients, held against one device."""

from __future__ import annotations

import pytest

from tests.unit.layout.execution.test_execute import run

SUMS = 2e-6
# By mesh and layout of the table.
LAYOUTS = {"2 [8, 4]", "2 [8/x, 4]", "2x2 [8, 4]", "2x2 [8/x, 4]"}


@pytest.fixture
def train(isolated_env):
    return lambda what: run("kernels/table_optimizers.py", what, isolated_env)


def test_optimizers_of_tf_keras_update_distinct_rows_as_on_one_device(train):
    """They add up the gradients of equal rows before they update."""
    names = ["SGD", "Adam", "Adagrad", "RMSprop", "Adamax", "Nadam", "Adadelta"]
    found = train(f"tf_keras {' '.join(names)}")
    assert {name: set(one) for name, one in found.items()} == dict.fromkeys(names, LAYOUTS)
    assert max(worst for one in found.values() for worst in one.values()) < SUMS


def test_optimizers_of_keras_3_divide_rows_as_on_one_device(train):
    """They divide in a conditional; one of its branches has a row for each zero."""
    names = ["Adagrad", "RMSprop", "Adam"]
    found = train(f"keras {' '.join(names)}")
    assert {name: set(one) for name, one in found.items()} == dict.fromkeys(names, LAYOUTS)
    assert max(worst for one in found.values() for worst in one.values()) < SUMS


def test_distinct_rows_are_looked_up_and_updated_as_on_one_device(train):
    """An update with momentum would see a row twice that is there to fill up the others."""
    found = train("by_hand")
    assert max(one["worst"] for one in found.values()) < SUMS
    assert all(one["wrong"] for one in found.values())


def test_a_branch_that_is_not_planned_is_an_error_that_writes_nothing(train):
    found = train("not_finite")
    text = (
        "the conditional 'adagrad/cond' takes the branch whose shapes are not known before the "
        "function runs, and a plan has only the other one; if an optimizer divides a table's "
        "gradient by zeros or NaNs here, give it tf.convert_to_tensor(gradient)"
    )
    assert text in found.pop("text").replace("\\", "")
    assert found == {"same": True, "again": True}
