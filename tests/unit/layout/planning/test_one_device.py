# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans beside one device that works alone: what it takes, and the warning if no plan gains."""

from __future__ import annotations

import io
import warnings

import pytest
import tensorflow as tf
from rich.console import Console

from tests.unit.layout.planning.planned_models import FAST, LINE, two_layers, variable
from tf_fuse.layout import function_problem, plan
from tf_fuse.layout.cost.model import Rates

# Both devices share the cores: alone, one is twice as fast.
SHARED = (2e-10, 2e-10, 2e-6)
ALONE = Rates(LINE, {"x": FAST}, 1e-10, 1e-10, 1e-6, seconds_per_call=3e-6)


def _rates(alone):
    return Rates(LINE, {"x": FAST}, *SHARED, alone=alone)


def _shown(found):
    console = Console(file=io.StringIO(), width=200)
    console.print(found.table())
    return console.file.getvalue().splitlines()


def test_seconds_of_one_device():
    """By hand: a product of 8 x 4 and 4 x 2, an absolute value, and no relayout."""
    w = variable("w", 4, 2)
    x = tf.TensorSpec([8, 4])
    problem = function_problem(lambda x: tf.abs(tf.matmul(x, w)), LINE, [x], rates=_rates(ALONE))
    found = problem.search("data")
    # Reads of the variable and of the result run nothing.
    flops, touched = 2 * 8 * 4 * 2 + 16, 4 * ((32 + 8 + 16) + (16 + 16))
    seconds = ALONE.seconds_per_flop * flops + ALONE.seconds_per_byte * touched
    calls = 2 * ALONE.seconds_per_operation + ALONE.seconds_per_call
    assert found.one_device_seconds == pytest.approx(seconds + calls)


def test_a_loop_counts_as_often_as_it_runs():
    def times(count):
        def f(x):
            return tf.while_loop(
                lambda i, _: i < count, lambda i, y: (i + 1, tf.nn.relu(y)), [0, x]
            )[1]

        spec = tf.TensorSpec([1024, 1024])
        return plan(f, LINE, [spec], mode="data", rates=_rates(ALONE)).one_device_seconds

    one, three = times(1), times(3)
    assert 2.5 < three / one < 3.5


def test_a_plan_without_gain_warns():
    _, step, args = two_layers()
    with pytest.warns(UserWarning) as caught:
        found = plan(step, LINE, args, rates=_rates(ALONE))
    own, alone = found.seconds * 1e3, found.one_device_seconds * 1e3
    assert alone < own
    (text,) = [str(one.message) for one in caught]
    assert text == (
        f"no layout of 'step' on mesh 'x:2' is faster than one device alone, by measured rates: "
        f"{own:.3f} ms with the best plan, {alone:.3f} ms without; run the function without a "
        "layout, or on devices that share no cores"
    )
    assert _shown(found)[-1].strip() == (
        f"one device alone: {alone:.3f} ms, {alone / own:.2f} times the plan's; the plan is no "
        "faster"
    )


def test_a_plan_that_gains_does_not_warn():
    _, step, args = two_layers(batch=512, io=512, hidden=512)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = plan(step, LINE, args, rates=_rates(Rates(LINE, {"x": FAST}, *SHARED)))
        # Nobody asked for the best plan.
        data = plan(step, LINE, args, mode="data", rates=_rates(ALONE))
    assert found.seconds < found.one_device_seconds
    assert _shown(found)[-1].strip().endswith("times the plan's; the plan is faster")
    assert data.one_device_seconds > 0


def test_rates_that_nobody_measured_do_not_warn():
    _, step, args = two_layers()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = plan(step, LINE, args, rates=_rates(None))
    assert found.one_device_seconds >= found.seconds
    assert "(by rates that were not measured for it)" in _shown(found)[-1]


def test_what_one_device_cannot_hold_needs_a_plan():
    _, step, args = two_layers()
    problem = function_problem(step, LINE, args, rates=_rates(ALONE), memory_limit_bytes=8000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = problem.search()
    assert found.memory_bytes <= 8000
    assert _shown(found)[-1].strip() == "one device alone cannot hold it"
