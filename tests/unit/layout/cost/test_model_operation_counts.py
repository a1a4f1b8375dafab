# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Operations that plans charge, against those of the graphs that run; and what costs nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import scripted
from tf_fuse.layout import Link, Mesh, TensorLayout, plan_relayout
from tf_fuse.layout.cost.model import Rates, operation_cost
from tf_fuse.layout.strategies.strategy import InnerAllReduce, strategies
from tf_fuse.layout.types.operation import Operation, Tensor

HERE = Path(__file__).resolve().parent
MESH = Mesh({"x": 4})
X = Tensor("x", (8, 4))


def test_rules_charge_the_operations_of_graphs(isolated_env):
    """Of kernels that do more where they are split; and slices of slices are one operation."""
    command = [sys.executable, str(HERE / "operation_counts.py")]
    found = scripted.result_of(command, isolated_env | {"PYTHONPATH": str(HERE.parents[3])})
    # With oneDNN; without it rows that are not finite take no operations of their own.
    assert found["rules"].pop("Softmax") in ([8, 8], [8, 4])
    assert found == {
        "rules": {
            "LogSoftmax": [5, 5],
            "SoftmaxCrossEntropyWithLogits": [18, 18],
            "SparseSoftmaxCrossEntropyWithLogits": [30, 30],
            "GatherV2": [11, 12],  # and the sum, of a relayout
            "UnsortedSegmentSum": [7, 7],
            "OneHot": [5, 5],
        },
        "slices": 1,
    }


def test_other_names_cost_nothing():
    """An identity is not run, and a reshape moves no byte."""
    rates = Rates(MESH, {"x": Link(0.0, 0.0)}, 1.0, 10.0, 1000.0)
    one = strategies(Operation("i", "Identity", [X], [Tensor("i", (8, 4))]), MESH)[0]
    assert operation_cost(one, rates).seconds == 0.0
    one = strategies(Operation("r", "Reshape", [X], [Tensor("r", (32,))]), MESH)[0]
    assert operation_cost(one, rates).seconds == 2 * 1000.0
    one = strategies(Operation("a", "Relu", [X], [Tensor("a", (8, 4))]), MESH)[0]
    assert operation_cost(one, rates, training=False).seconds == 1000.0 + 32 + 2 * 128 * 10.0


@pytest.mark.parametrize(
    ("source", "target", "operations", "touched"),
    [
        # Bytes on a device before are V = 128 where it has the whole tensor, and 32 of a slice.
        (([], ()), ([["x"], []], ()), 1, 2 * 128 / 4),
        (([], ()), ([], ("x",)), 1, 128),
        (([["x"], []], ()), ([], ("x",)), 2, (2 * 4 + 1) * 32),
        (([["x"], []], ()), ([], ()), 1, 2 * 4 * 32),
        (([["x"], []], ()), ([[], ["x"]], ()), 5, 4 * 32),
        (([], ("x",)), ([["x"], []], ()), 1 + 5, 2 * 128 + 3 * 3 * 128 / 4),
        (([], ("x",)), ([], ()), 5, 3 * 3 * 128 / 4),
    ],
)
def test_what_steps_run_beside_sending(source, target, operations, touched):
    """The table of `tf_fuse.layout.relayout.steps`, in seconds too."""
    ends = [TensorLayout(MESH, (8, 4), splits or None, partial) for splits, partial in
            (source, target)]  # fmt: skip
    plan = plan_relayout(*ends, links={"x": Link(0.0, 1e3, 10.0, 1.0)})
    assert len(plan.steps) == 1
    assert (plan.operations, plan.touched_bytes_per_device) == (operations, touched)
    received = plan.received_bytes_per_device * 1e3
    assert plan.seconds == pytest.approx(10.0 * operations + touched + received)


@pytest.mark.parametrize(("reduction", "operations"), [("sum", 5), ("max", 3), ("prod", 3)])
def test_what_reductions_within_operations_run_beside_sending(reduction, operations):
    """Of three sums, two pass on what is added up; maxima follow each other at once."""
    one = InnerAllReduce(reduction, ("x",), 32, 4 * 2 * 3 * 32 // 4, 6)
    seconds = Rates(MESH, {"x": Link(0.0, 0.0, 10.0, 1.0)}, 1.0).collective(one)
    assert seconds == 10.0 * operations + 3 * 3 * 32 / 4
