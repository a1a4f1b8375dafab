# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Former names of arguments and attributes: they still do their work, and warn."""

from __future__ import annotations

import inspect
import warnings

import pytest
from google.protobuf import json_format

from tests.unit.layout.optimize.plan_examples import example
from tests.unit.layout.planning.planned_models import LINE, two_layers
from tf_fuse import layout, parameter_server
from tf_fuse.layout.keras.model import KerasExecution
from tf_fuse.layout.optimize import search, search_meshes
from tf_fuse.v1 import layout_pb2

_GIVEN = {"up": "hidden"}
_WARNING = r"^pins= is deprecated and goes in 0\.4\.0: use constraints=$"


def _strategies(plan):
    return plan.strategies["up"], plan.constrained


def _of_search(**options):
    return _strategies(search(example(), **options))


def _of_meshes(**options):
    return _strategies(search_meshes(2, lambda mesh: example(mesh=mesh), **options).best)


def _allowed(**options):
    return example().allowed(**options)


def _of_plan(**options):
    forward, _, args = two_layers()
    return layout.plan(forward, LINE, args[:1], **options).plan.constrained


def _of_problem(**options):
    forward, _, args = two_layers()
    problem = layout.function_problem(forward, LINE, args[:1])
    return problem.search(**options).plan.constrained


def _of_lay_out(**options):
    return layout.lay_out(two_layers()[0], LINE, **options)._options


def _of_keras(**options):
    with pytest.raises(layout.LayoutError, match=r"^a step is one of train, test, predict, got"):
        KerasExecution.plan(None, "fit", None, **options)


_RESULTS = {
    _of_search: (_GIVEN, ("hidden", ("up",))),
    _of_meshes: (_GIVEN, ("hidden", ("up",))),
    _allowed: (_GIVEN, {0: (1,)}),
    _of_plan: ({"w": "replicate"}, ("w",)),
    _of_problem: ({"w": "replicate"}, ("w",)),
    _of_lay_out: (_GIVEN, {"constraints": _GIVEN}),
    _of_keras: (_GIVEN, None),
}


@pytest.mark.parametrize("function", _RESULTS, ids=lambda one: one.__name__)
def test_pins_are_constraints(function):
    given, result = _RESULTS[function]
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        assert function(constraints=given) == result
    with pytest.warns(DeprecationWarning, match=_WARNING) as warned:
        assert function(pins=given) == result
    assert [one.filename for one in warned if one.category is DeprecationWarning] == [__file__]


@pytest.mark.parametrize("function", _RESULTS, ids=lambda one: one.__name__)
def test_both_names_are_an_error(function):
    with pytest.raises(TypeError, match=r"\(\) got pins= and constraints=, which are one argument"):
        function(pins=_GIVEN, constraints=_GIVEN)


def test_signatures_have_the_new_name_alone():
    for function in (layout.plan, layout.FunctionProblem.search, search, search_meshes):
        names = inspect.signature(function).parameters
        assert "constraints" in names and "pins" not in names


def test_the_former_attribute():
    plan = search(example(), constraints=_GIVEN)
    text = r"^pinned is deprecated and goes in 0\.4\.0: use constrained$"
    with pytest.warns(DeprecationWarning, match=text) as warned:
        assert plan.pinned == ("up",)
        assert {one.name: one.pinned for one in plan.operations} == {"up": True, "down": False}
    assert {one.filename for one in warned} == {__file__}


def test_a_plan_in_json_has_the_former_key():
    for key in ("pinned", "constrained"):
        read = json_format.ParseDict({key: True}, layout_pb2.LayoutOperation())
        assert read.constrained
        assert json_format.MessageToDict(read) == {"pinned": True}


def test_the_former_name_of_a_placement_plan():
    text = r"^tf_fuse\.parameter_server\.Plan is deprecated and goes in 0\.4\.0: use PlacementPlan$"
    with pytest.warns(DeprecationWarning, match=text) as warned:
        assert parameter_server.Plan is parameter_server.PlacementPlan
    assert [one.filename for one in warned] == [__file__]
    with pytest.raises(AttributeError, match=r"^module .* has no attribute .Plans.$"):
        parameter_server.Plans  # noqa: B018
