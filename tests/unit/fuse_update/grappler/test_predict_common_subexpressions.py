# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Nodes that compute the same, and who reads them."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from collections import Counter

import pytest
import tensorflow as tf

import tf_fuse  # noqa: F401
from tf_fuse.function_graph.function_lookup import op_defs
from tf_fuse.function_graph.view import GraphView
from tf_fuse.fuse_update.grappler.predict_common_subexpressions import CommonSubexpressions


def _view(count):
    """A function that computes one rate for each of its weights."""
    weights = [tf.Variable(tf.ones([4])) for _ in range(count)]

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([])])
    def step(rate):
        for i, weight in enumerate(weights):
            scaled = tf.multiply(rate, 0.5, name=f"rate_{i}")
            (bundled,) = tf.identity_n([scaled], name=f"bundle_{i}")
            weight.assign_sub(tf.multiply(weight, bundled, name=f"change_{i}"))
        return rate

    return GraphView(step.get_concrete_function().function_def, op_defs(lambda name: None))


def test_readers_are_those_of_all_equal_nodes():
    found = CommonSubexpressions(_view(3), is_inner=False)
    assert sorted(found.equal_to("rate_1")) == ["rate_0", "rate_1", "rate_2"]
    assert found.users("rate_1", through=False) == {"bundle_0", "bundle_1", "bundle_2"}
    assert found.users("rate_1", through=True) == {"change_0", "change_1", "change_2"}
    assert found.users("change_1", through=True) == {"AssignSubVariableOp_1"}


@pytest.mark.parametrize(("result", "is_one"), [("rate_2:z:0", True), ("change_2:z:0", False)])
def test_an_equal_node_is_a_result_if_one_of_them_is(result, is_one):
    view = _view(3)
    view.results = [result]
    found = CommonSubexpressions(view, is_inner=False)
    assert [found.is_result(f"rate_{i}") for i in range(3)] == [is_one] * 3
    assert found.is_result("change_2") is not is_one


def test_readers_of_equal_nodes_are_found_once_for_all_of_them():
    view = _view(20)
    found, asked = CommonSubexpressions(view, is_inner=False), Counter()
    uses = view.uses

    def counted(tensor):
        asked[tensor] += 1
        return uses(tensor)

    view.uses = counted
    for number in range(20):
        assert len(found.users(f"rate_{number}", through=False)) == 20
    assert asked == {f"rate_{number}:z:0": 1 for number in range(20)}


def test_outputs_of_a_node_are_a_list_of_the_callers_own():
    view = _view(1)
    node = view.nodes["rate_0"]
    view.outputs(node).clear()
    assert view.outputs(node) == ["rate_0:z:0"]
    with pytest.raises(ValueError, match="neither an argument nor an output"):
        view.dtype("nothing")
