# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of `tf_fuse.parameter_server`: errors have the name, the value, the range."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import fractions
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_fuse import parameter_server
from tf_fuse.parameter_server import CostPartitioner, Costs, PsStrategy

_INF, _NAN = math.inf, math.nan
_SERVERS = [
    ("x", TypeError, "servers is 'x' (str), must be how many parameter servers there are"),
    (None, TypeError, "servers is None (NoneType), must be how many parameter servers there are"),
    (2.0, TypeError, "servers is 2.0 (float), must be how many parameter servers there are"),
    (_NAN, TypeError, "servers is nan (float), must be how many parameter servers there are"),
    (True, TypeError, "servers is True (bool), must be how many parameter servers there are"),
    ([], TypeError, "servers is [] (list), must be how many parameter servers there are"),
    (0, ValueError, "there are 0 parameter servers, at least 1 is needed"),
    (-3, ValueError, "there are -3 parameter servers, at least 1 is needed"),
    (10**9, ValueError, "there are 1000000000 parameter servers, at most 65536 may be"),
]
_COUNT = "must be a whole number from"
_REAL = "must be 0 or more"


def _raises(kind, text, action):
    with pytest.raises(kind) as caught:
        action()
    assert type(caught.value) is kind and str(caught.value) == text


@pytest.mark.parametrize("value, kind, text", _SERVERS)
def test_number_of_servers(value, kind, text):
    _raises(kind, text, lambda: CostPartitioner(servers=value))
    _raises(kind, text, lambda: PsStrategy(servers=value))
    _raises(kind, text, lambda: parameter_server.plan(lambda: None, servers=value))


@pytest.mark.parametrize("number", [2, np.int64(2), np.uint8(2)])
def test_whole_numbers_of_all_kinds(number):
    assert CostPartitioner(number).servers == 2
    assert PsStrategy(number).placement.servers == 2
    assert Costs(workers=number, slots=number) == Costs(workers=2, slots=2)
    assert Costs(update_s=number, rows_per_step={"x": number}).update_s == 2


@pytest.mark.parametrize(
    "value, kind, text",
    [
        ("0", TypeError, "axis is '0' (str), must be 0 or more, or None for any"),
        (0.0, TypeError, "axis is 0.0 (float), must be 0 or more, or None for any"),
        (False, TypeError, "axis is False (bool), must be 0 or more, or None for any"),
        (-1, ValueError, "axis is -1, must be 0 or more, or None for any"),
    ],
)
def test_axis(value, kind, text):
    _raises(kind, text, lambda: CostPartitioner(2, axis=value))
    _raises(kind, text, lambda: CostPartitioner(2)([4, 4], tf.float32, axis=value))


@pytest.mark.parametrize(
    "figures, kind, text",
    [
        ({"workers": "2"}, TypeError, f"Costs.workers is '2' (str), {_COUNT} 1 to 1000000"),
        ({"workers": 2.0}, TypeError, f"Costs.workers is 2.0 (float), {_COUNT} 1 to 1000000"),
        ({"workers": True}, TypeError, f"Costs.workers is True (bool), {_COUNT} 1 to 1000000"),
        ({"workers": None}, TypeError, f"Costs.workers is None (NoneType), {_COUNT} 1 to 1000000"),
        ({"workers": 0}, ValueError, f"Costs.workers is 0, {_COUNT} 1 to 1000000"),
        ({"workers": 10**7}, ValueError, f"Costs.workers is 10000000, {_COUNT} 1 to 1000000"),
        ({"slots": _NAN}, TypeError, f"Costs.slots is nan (float), {_COUNT} 0 to 1000000"),
        ({"slots": -1}, ValueError, f"Costs.slots is -1, {_COUNT} 0 to 1000000"),
        ({"update_s": "1"}, TypeError, f"Costs.update_s is '1' (str), {_REAL}"),
        ({"piece_s": None}, TypeError, f"Costs.piece_s is None (NoneType), {_REAL}"),
        ({"update_s": True}, TypeError, f"Costs.update_s is True (bool), {_REAL}"),
        ({"update_s": []}, TypeError, f"Costs.update_s is [] (list), {_REAL}"),
        ({"update_s": _NAN}, ValueError, f"Costs.update_s is nan, {_REAL}"),
        ({"update_s_per_byte": -1e-9}, ValueError, f"Costs.update_s_per_byte is -1e-09, {_REAL}"),
        ({"piece_s": _INF}, ValueError, f"Costs.piece_s is inf, {_REAL}"),
        (
            {"link_bytes_per_s": 0}, ValueError,
            "Costs.link_bytes_per_s is 0, must be a positive number",
        ),
        (
            {"link_bytes_per_s": "fast"}, TypeError,
            "Costs.link_bytes_per_s is 'fast' (str), must be a positive number",
        ),
        (
            {"memory_bytes_per_s": _NAN}, ValueError,
            "Costs.memory_bytes_per_s is nan, must be a positive number",
        ),
        (
            {"rows_per_step": [("a", 1)]}, TypeError,
            "Costs.rows_per_step is [('a', 1)] (list), must be a dict of a pattern of names to a "
            "number of rows",
        ),
        (
            {"rows_per_step": None}, TypeError,
            "Costs.rows_per_step is None (NoneType), must be a dict of a pattern of names to a "
            "number of rows",
        ),
        (
            {"rows_per_step": {3: 1}}, TypeError,
            "Costs.rows_per_step has the key 3 (int), must be a pattern of names",
        ),
        (
            {"rows_per_step": {"a": "1"}}, TypeError,
            f"Costs.rows_per_step['a'] is '1' (str), {_REAL}",
        ),
        ({"rows_per_step": {"a": -1}}, ValueError, f"Costs.rows_per_step['a'] is -1, {_REAL}"),
        ({"rows_per_step": {"a": _NAN}}, ValueError, f"Costs.rows_per_step['a'] is nan, {_REAL}"),
    ],
)  # fmt: skip
def test_costs(figures, kind, text):
    _raises(kind, text, lambda: Costs(**figures))


def test_a_number_too_large_for_a_float():
    _raises(ValueError, f"Costs.update_s is {10**400}, {_REAL}", lambda: Costs(update_s=10**400))
    assert Costs(update_s=fractions.Fraction(1, 2)).update_s == 0.5


@pytest.mark.parametrize(
    "costs, text",
    [(3, "3 (int)"), ({}, "{} (dict)"), (Costs, f"{Costs} (type)")],
)
def test_costs_of_another_type(costs, text):
    text = f"costs is {text}, must be a tf_fuse.parameter_server.Costs"
    _raises(TypeError, f"{text}, or None", lambda: CostPartitioner(2, costs))
    _raises(TypeError, f"{text}, or None", lambda: PsStrategy(2, costs))
    _raises(TypeError, f"{text}, or None", lambda: parameter_server.plan(lambda: 0, 2, costs))
    _raises(TypeError, text, lambda: parameter_server.set_costs(None, costs))


def test_a_plan_of_another_type():
    text = "plan is 'plan' (str), must be a tf_fuse.parameter_server.PlacementPlan, or None"
    _raises(TypeError, text, lambda: PsStrategy(2, plan="plan"))
    plan = parameter_server.plan(lambda: None, servers=3)
    text = "the plan is for 3 parameter servers, and there are 2: make it again"
    _raises(ValueError, text, lambda: PsStrategy(2, plan=plan))


@pytest.mark.parametrize("value, text", [(None, "None (NoneType)"), ("build", "'build' (str)")])
def test_no_function(value, text):
    text = f"function is {text}, must be a function that builds a"
    _raises(TypeError, f"{text} model", lambda: parameter_server.build(value))
    _raises(TypeError, f"{text} graph", lambda: parameter_server.plan(value, 2))


def test_shapes_and_types_of_variables():
    partitioner = CostPartitioner(2)
    with pytest.raises(TypeError):
        partitioner("shape", tf.float32)
    with pytest.raises(TypeError):
        partitioner([4, 4], "no type")
    text = (
        "a variable of shape <unknown> cannot be split: give it a shape that is fully defined, or "
        "no partitioner"
    )
    _raises(ValueError, text, lambda: partitioner(None, tf.float32))
    text = "a variable of shape (4, 4) has no axis 2 to be split along"
    _raises(ValueError, text, lambda: partitioner([4, 4], tf.float32, axis=2))


def test_pieces_of_what_are_no_variables():
    one = tf.Variable([[1.0], [2.0]], name="one")
    of_keras = keras.Variable([1.0])
    assert parameter_server.pieces([]) == []
    found = parameter_server.pieces(iter([one, of_keras]))
    assert found[0] is one and found[1] is of_keras.value
    for wrong in (None, 3, "ab", one, of_keras):
        with pytest.raises(TypeError, match=r"^variables is .*, must be a list of variables$") as e:
            parameter_server.pieces(wrong)
        assert f"({type(wrong).__name__})" in str(e.value)
    text = "variables[1] is 3 (int), must be a variable of TensorFlow or Keras"
    _raises(TypeError, text, lambda: parameter_server.pieces([one, 3]))
    text = "variables[0] is None (NoneType), must be a variable of TensorFlow or Keras"
    _raises(TypeError, text, lambda: parameter_server.pieces([None]))


def test_reports_of_what_is_none():
    text = (
        "strategy must be a tf.distribute.ParameterServerStrategy (of TensorFlow 2), got NoneType"
    )
    for use in (
        parameter_server.placement_report,
        parameter_server.print_placement_report,
        lambda strategy: parameter_server.set_costs(strategy, Costs()),
    ):
        _raises(TypeError, text, lambda use=use: use(None))
    text = (
        "the report has no imbalance, partitions, plans, reason, servers: pass what "
        "tf_fuse.parameter_server.placement_report returned, or a strategy"
    )
    _raises(ValueError, text, lambda: parameter_server.print_placement_report({"variables": []}))


def test_long_values_are_cut():
    long = "servers is '" + 56 * "x" + "... (str), must be how many parameter servers there are"
    _raises(TypeError, long, lambda: CostPartitioner(100 * "x"))


@pytest.mark.parametrize("n", [0, -3])
def test_steps_are_repeated_once_or_more(n):
    text = f"repeat runs a step 1 or more times, got n={n}"
    _raises(ValueError, text, lambda: parameter_server.repeat(lambda: None, n))
