# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The verifier finds the handles of variables in a function, and in those that it calls."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf

from tf_fuse.shard_update.verify.function_lookup import Bodies


def _definitions(names):
    """A function that makes handles of variables, and calls another one, which does so, twice."""

    @tf.function(autograph=False)
    def inner():
        for name in names:
            tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=name)

    @tf.function(autograph=False)
    def outer():
        inner()
        inner()
        for name in names[1:]:
            tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=name)

    graph = outer.get_concrete_function().graph.as_graph_def()
    called = {one.signature.name: one for one in graph.library.function}
    return outer.get_concrete_function().function_def, called


def test_handles():
    definition, called = _definitions(["a", "b"])
    bodies = Bodies(called.get)
    view = bodies.view(definition)
    found = {name: bodies.handles(view, name) for name in ("a", "b", "c")}
    assert [len(nodes) for nodes in found.values()] == [2, 3, 0]
    for name, nodes in found.items():
        assert {node.attr["shared_name"].s.decode() for _, node in nodes} <= {name}
        assert all(view.nodes[node.name] is not None for view, node in nodes)


def test_a_function_is_read_once_for_all_variables():
    """A walk for each of some hundred variables took minutes."""
    names = [str(i) for i in range(30)]
    definition, called = _definitions(names)
    asked = []

    def function(name):
        asked.append(name)
        return called.get(name)

    bodies = Bodies(function)
    view = bodies.view(definition)
    assert bodies.handles(view, names[0])
    before = len(asked)
    assert all(bodies.handles(view, name) for name in names)
    assert len(asked) == before > 0
