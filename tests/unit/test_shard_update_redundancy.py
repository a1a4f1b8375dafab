# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is said to be equal on all replicas is, whatever the function does.

Replicas are two runs of one function with copies of the variables: what an all-reduce gives is an
argument that is the same in both.
"""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tf_fuse.shard_update.graph_view import GraphView
from tf_fuse.shard_update.redundancy import World, analyse

_SHAPE = (3,)
_VARIABLES = 2
# All that keeps values small and finite.
_UNARY = {
    "tanh": tf.tanh,
    "neg": lambda x: -x,
    "relu": tf.nn.relu,
    "sorted": tf.sort,
    "cast": lambda x: tf.cast(tf.cast(x, tf.bfloat16), tf.float32),
    "mean": lambda x: tf.broadcast_to(tf.reduce_mean(x), _SHAPE),
    "random": lambda x: x + tf.random.uniform(_SHAPE),
    "stateless": lambda x: x + tf.random.stateless_uniform(_SHAPE, [1, 2]),
}
_BINARY = {
    "add": lambda x, y: 0.5 * (x + y),
    "sub": lambda x, y: 0.5 * (x - y),
    "mul": tf.multiply,
    "maximum": tf.maximum,
    "where": lambda x, y: tf.where(x > 0, x, y),
}
_numbers = st.integers(0, 30)
# What a program does next; numbers choose among the tensors that there are.
_steps = st.one_of(
    st.tuples(st.just("unary"), st.sampled_from(sorted(_UNARY)), _numbers),
    st.tuples(st.just("binary"), st.sampled_from(sorted(_BINARY)), _numbers, _numbers),
    st.tuples(st.just("read"), st.integers(0, _VARIABLES - 1)),
    st.tuples(st.sampled_from(["assign", "assign_add"]), st.integers(0, _VARIABLES - 1), _numbers),
    st.tuples(
        st.sampled_from(["cond", "cond_assign"]),
        st.integers(0, _VARIABLES - 1),
        *[_numbers] * 3,
    ),
    st.tuples(
        st.sampled_from(["loop", "loop_assign", "call"]),
        st.integers(0, _VARIABLES - 1),
        *[_numbers] * 3,
    ),
)


class _Program:
    """A random program: its tensors are its results."""

    def __init__(self, steps):
        self.steps = steps
        self.variables = []

    def __call__(self, mine, reduced, limit):
        tensors = [mine, reduced, tf.constant([1.0, -2.0, 0.5])]
        self._limits = [tf.constant(2), limit]
        for step in self.steps:
            tensors += self._run(step, tensors)
        return tensors

    def _run(self, step, tensors):
        kind, *rest = step

        def pick(number):
            return tensors[number % len(tensors)]

        if kind == "unary":
            return [_UNARY[rest[0]](pick(rest[1]))]
        if kind == "binary":
            return [_BINARY[rest[0]](pick(rest[1]), pick(rest[2]))]
        variable = self.variables[rest[0]]
        if kind == "read":
            return [variable.read_value()]
        if kind == "assign":
            variable.assign(pick(rest[1]))
            return []
        if kind == "assign_add":
            variable.assign_add(0.1 * pick(rest[1]))
            return []
        x, y, z = map(pick, rest[1:])
        if kind == "cond":
            return [tf.cond(x[0] > 0, lambda: y + 1.0, lambda: z * variable)]
        if kind == "cond_assign":
            tf.cond(x[0] > 0, lambda: variable.assign(y).read_value(), lambda: z)
            return [variable.read_value()]
        if kind == "call":
            return [self._call(variable)(x, y)]
        limit = self._limits[rest[1] % 2]

        def body(i, a, b):
            if kind == "loop_assign":
                variable.assign(tf.tanh(z))
            return i + 1, tf.tanh(b), tf.tanh(a + z)

        _, a, b = tf.while_loop(lambda i, a, b: i < limit, body, (0, x, y))
        return [a, b]

    def _call(self, variable):
        @tf.function(autograph=False)
        def inner(x, y):
            variable.assign(tf.tanh(x))
            return x + y * variable

        return inner


def _views(steps):
    """The program, its function, and the view of that."""
    program = _Program(steps)
    program.variables = [tf.Variable(np.full(_SHAPE, 0.25 * i, "f")) for i in range(_VARIABLES)]
    spec = tf.TensorSpec(_SHAPE)
    function = tf.function(program, autograph=False).get_concrete_function(
        spec, spec, tf.TensorSpec([], tf.int32)
    )
    definition = function.function_def
    graph = function.graph.as_graph_def()
    library = {f.signature.name: f for f in graph.library.function}
    from tensorflow.python.framework import op_def_registry

    def op_def(name):
        if name in library:
            return library[name].signature
        found = op_def_registry.get(name)
        if found is None:
            raise KeyError(name)
        return found

    view = GraphView(definition, op_def)
    world = World(2, library.get, op_def, lambda view, node: False)
    return program, function, view, world


def _arguments_of_variables(program, function, view):
    """By variable, the argument that is its handle."""
    captured = [id(t) for t in function.captured_inputs]
    arguments = view.arguments[len(view.arguments) - len(captured) :]
    by_handle = dict(zip(captured, arguments, strict=True))
    return [by_handle.get(id(v.handle)) for v in program.variables]


@settings(
    max_examples=150,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(_steps, min_size=1, max_size=12))
def test_what_is_redundant_is_equal_on_all_replicas(steps):
    program, function, view, world = _views(steps)
    handles = _arguments_of_variables(program, function, view)
    reduced = view.arguments[1]
    found = analyse(view, world, [reduced], [handle for handle in handles if handle])
    results, left = [], []
    for replica in range(2):
        for i, variable in enumerate(program.variables):
            variable.assign(np.full(_SHAPE, 0.25 * i, "f"))
        mine = tf.constant(np.random.default_rng(replica).standard_normal(_SHAPE), tf.float32)
        same = tf.constant([0.3, -0.7, 0.9])
        results.append([r.numpy() for r in function(mine, same, tf.constant(1 + replica))])
        left.append([variable.numpy() for variable in program.variables])
    for index, tensor in enumerate(view.results):
        if tensor in found.tensors:
            np.testing.assert_array_equal(results[0][index], results[1][index], err_msg=tensor)
    for index, handle in enumerate(handles):
        if handle in found.variables:
            np.testing.assert_array_equal(left[0][index], left[1][index])


def _found(steps):
    """Whether each result is redundant, and each variable (None: not used)."""
    program, function, view, world = _views(steps)
    handles = _arguments_of_variables(program, function, view)
    found = analyse(view, world, [view.arguments[1]], [h for h in handles if h])
    # The first three results are what every program begins with.
    return (
        [tensor in found.tensors for tensor in view.results[3:]],
        [None if h is None else h in found.variables for h in handles],
    )


_MINE, _REDUCED, _CONSTANT = 0, 1, 2


@pytest.mark.parametrize(
    ("steps", "results", "variables"),
    [
        ([("unary", "tanh", _REDUCED)], [True], [None, None]),
        ([("unary", "tanh", _MINE)], [False], [None, None]),
        ([("binary", "add", _REDUCED, _CONSTANT)], [True], [None, None]),
        ([("binary", "add", _REDUCED, _MINE)], [False], [None, None]),
        ([("unary", "random", _REDUCED)], [False], [None, None]),
        ([("unary", "stateless", _REDUCED)], [True], [None, None]),
        ([("read", 0)], [True], [True, None]),
        ([("assign", 0, _REDUCED), ("read", 0)], [True], [True, None]),
        # Not even what was read before: the function may run again.
        ([("read", 0), ("assign_add", 0, _MINE)], [False], [False, None]),
        ([("cond", 0, _REDUCED, _REDUCED, _CONSTANT)], [True], [True, None]),
        ([("cond", 0, _MINE, _REDUCED, _REDUCED)], [False], [True, None]),
        ([("cond", 0, _REDUCED, _MINE, _REDUCED)], [False], [True, None]),
        ([("cond_assign", 0, _REDUCED, _REDUCED, _REDUCED)], [True], [True, None]),
        ([("cond_assign", 0, _MINE, _REDUCED, _REDUCED)], [False], [False, None]),
        # Two rounds on all replicas; the values change places in each round.
        ([("loop", 0, 2, _REDUCED, _CONSTANT)], [True, True], [None, None]),
        ([("loop", 0, 2, _MINE, _REDUCED)], [False, False], [None, None]),
        # As many rounds as the replica wants.
        ([("loop", 0, 1, _REDUCED, _CONSTANT)], [False, False], [None, None]),
        ([("loop_assign", 0, 2, _REDUCED, _CONSTANT)], [True, True], [True, None]),
        ([("call", 0, _REDUCED, _CONSTANT, 0)], [True], [True, None]),
        ([("call", 0, _MINE, _CONSTANT, 0)], [False], [False, None]),
    ],
)
def test_rules(steps, results, variables):
    assert _found(steps) == (results, variables)
