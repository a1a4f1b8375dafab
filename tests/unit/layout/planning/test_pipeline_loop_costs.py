# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What communication in loops and conditionals costs, and that their devices decide alike."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.unit.layout.planning.planned_models import GRID, LINE, variable
from tf_fuse.layout import Link, function_problem
from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.execution.device_program import program_of
from tf_fuse.layout.strategies.strategy import strategies
from tf_fuse.layout.types.control_flow import ASSUMED_TRIPS
from tf_fuse.layout.types.operation import Operation, Tensor

# Nothing but messages takes time.
RATES = Rates(LINE, {"x": Link(1.0, 0.0)}, 0.0)
NAMES = {"w": [None, "hidden"], "v": ["hidden", None]}


def _planned(function, names=NAMES):
    problem = function_problem(function, LINE, [tf.TensorSpec([2, 16])], rates=RATES)
    return problem.search("propagate", "hidden:x", names)


def _layers():
    w, v = variable("w", 16, 64), variable("v", 64, 16)
    return lambda x: tf.tanh(tf.nn.relu(x @ w) @ v)


def _looped(count):
    layers = _layers()

    @tf.function
    def loop(x):
        for _ in tf.range(count):
            x = layers(x)
        return x

    return loop


def test_communication_in_a_loop_costs_as_often_as_it_runs():
    one, four = _planned(_looped(1)), _planned(_looped(4))
    # An all-reduce over two devices has two messages.
    assert one.seconds == pytest.approx(2.0)
    assert four.seconds == pytest.approx(8.0)
    bytes_of = [program_of(each).received_bytes for each in (one, four)]
    assert bytes_of == [2 * 128, 4 * 2 * 128]


def test_a_loop_whose_count_is_not_known_counts_as_if_it_ran_ten_times():
    layers = _layers()

    @tf.function
    def loop(x):
        while tf.reduce_max(x) < 5.0:
            x = layers(x)
        return x

    found = _planned(loop)
    assert found.seconds == pytest.approx(2.0 * ASSUMED_TRIPS)
    assert program_of(found).received_bytes == ASSUMED_TRIPS * 2 * 128


def test_what_decides_about_a_loop_runs_once_more():
    w = variable("w", 16, 64)

    @tf.function
    def loop(x):
        i = 0
        while i < 4 and tf.reduce_sum(tf.tanh(x @ w)) < 1e9:
            x = x * 0.5
            i += 1
        return x

    found = _planned(loop, {"w": [None, "hidden"]})
    # Five sums of one number that is split over two devices.
    assert program_of(found).received_bytes == 5 * 2 * 4


def test_both_branches_of_a_conditional_count():
    layers = _layers()

    @tf.function
    def conditional(x):
        return layers(x) if tf.reduce_sum(x) > 0 else tf.tanh(layers(x) * 2)

    found = _planned(conditional)
    # A reduce-scatter in each of them.
    assert found.seconds == pytest.approx(2.0)
    assert program_of(found).received_bytes == 2 * 128


@pytest.mark.parametrize("mesh", [LINE, GRID])
def test_all_devices_decide_alike(mesh):
    """Else some would wait in a trip that others do not make."""
    given, made = (Tensor(name, (), "bool") for name in ("given", "made"))
    (only,) = strategies(Operation("predicate", "LoopCond", [given], [made]), mesh)
    for one in (*only.inputs, *only.outputs):
        assert not one.partial and not any(one.splits)
