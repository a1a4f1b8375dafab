# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables that are trained by the distinct rows of their gradients, held against one device."""

from __future__ import annotations

import pytest

from tests.slow_cases import slow, slow_but
from tests.unit.layout.execution.test_execute import run

SUMS = 2e-6
MESHES = ["2", slow("2x2")]


def layouts(mesh):
    """Of the table, by mesh and layout."""
    return {f"{mesh} [8, 4]", f"{mesh} [8/x, 4]"}


@pytest.fixture
def train(isolated_env):
    return lambda what: run("kernels/table_optimizers.py", what, isolated_env)


# (One process for each: planning one optimizer takes seconds.)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(
    "name",
    slow_but(
        ["SGD", "Adam", "Adagrad", "RMSprop", "Adamax", "Nadam", "Adadelta"],
        ["SGD", "RMSprop"].__contains__,
    ),
)
def test_optimizers_of_tf_keras_update_distinct_rows_as_on_one_device(train, name, mesh):
    """They add up the gradients of equal rows before they update."""
    found = train(f"tf_keras {mesh} {name}")
    assert set(found) == layouts(mesh)
    assert max(found.values()) < SUMS


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", ["Adagrad", slow("RMSprop"), slow("Adam")])
def test_optimizers_of_keras_3_divide_rows_as_on_one_device(train, name, mesh):
    """They divide in a conditional; one of its branches has a row for each zero."""
    found = train(f"keras {mesh} {name}")
    assert set(found) == layouts(mesh)
    assert max(found.values()) < SUMS


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
