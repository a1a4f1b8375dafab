# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Random programs of several replicas, with all-reduces, and what each replica gets.

A program is traced, to be analysed, with TensorFlow's operations for all-reduces. Replicas run it
as Python, each in a thread, and put there what they reduce into a `Collective`.
"""

import functools
import threading

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tf_fuse.function_graph.function_lookup import op_defs
from tf_fuse.function_graph.view import GraphView
from tf_fuse.shard_update.analysis.replication import ReplicatedProgram
from tf_fuse.shard_update.replicas import reduces_over

REPLICAS = 3
SHAPE = (3,)
VARIABLES = 2
# All that keeps values small and finite.
_UNARY = {
    "tanh": tf.tanh,
    "neg": lambda x: -x,
    "relu": tf.nn.relu,
    "sorted": tf.sort,
    "cast": lambda x: tf.cast(tf.cast(x, tf.bfloat16), tf.float32),
    "mean": lambda x: tf.broadcast_to(tf.reduce_mean(x), SHAPE),
    "random": lambda x: x + tf.random.uniform(SHAPE),
    "stateless": lambda x: x + tf.random.stateless_uniform(SHAPE, [1, 2]),
}
_BINARY = {
    "add": lambda x, y: 0.5 * (x + y),
    "sub": lambda x, y: 0.5 * (x - y),
    "mul": tf.multiply,
    "maximum": tf.maximum,
    "where": lambda x, y: tf.where(x > 0, x, y),
}
# Of an all-reduce the size of its group and how it merges; only one is a sum over all replicas.
_REDUCES = {"all": (REPLICAS, "Add"), "max": (REPLICAS, "Max"), "alone": (1, "Add")}
_MERGES = {"Add": np.sum, "Max": np.max}

_numbers = st.integers(0, 30)
_variable = st.integers(0, VARIABLES - 1)
_three = (_variable, *[_numbers] * 3)
_reduced = ["call_reduce", "cond_call_reduce", "cond_other_reduce", "cond_reduce", "loop_reduce"]
# What a program does next; numbers choose among the tensors so far.
STEPS = st.one_of(
    st.tuples(st.just("unary"), st.sampled_from(sorted(_UNARY)), _numbers),
    st.tuples(st.just("binary"), st.sampled_from(sorted(_BINARY)), _numbers, _numbers),
    st.tuples(st.just("reduce"), st.sampled_from(sorted(_REDUCES)), _numbers),
    st.tuples(st.just("read"), _variable),
    st.tuples(st.sampled_from(["assign", "assign_add"]), _variable, _numbers),
    st.tuples(st.sampled_from(["cond", "cond_assign"]), *_three),
    st.tuples(st.sampled_from(["loop", "loop_assign", "call"]), *_three),
    st.tuples(st.sampled_from(_reduced), *_three),
)
# What a replica has of its own: a tensor, and how often a loop may go round.
OWN = st.tuples(
    st.lists(st.sampled_from([-1.0, 0.5, 2.0]), min_size=3, max_size=3), st.integers(0, 2)
)


class StuckError(Exception):
    """Replicas would wait for each other for ever."""


class Collective:
    """Where replicas reduce."""

    def __init__(self):
        self._changed = threading.Condition()
        self._here = {}
        self._results = {}
        self._gone = 0

    def reduce(self, replica, site, value, how):
        """What an all-reduce gives a replica.

        Args:
          replica: number of it.
          site: which all-reduce of the program it is.
          value: that the replica brings.
          how: a key of `_REDUCES`.

        Raises:
          StuckError: other replicas are at another one, or have ended.
        """
        with self._changed:
            self._here[replica] = (site, value)
            self._settle(how)
            while replica not in self._results:
                self._changed.wait()
            result = self._results.pop(replica)
        if result is None:
            raise StuckError
        return result

    def leave(self):
        """A replica has ended."""
        with self._changed:
            self._gone += 1
            self._settle("all")

    def _settle(self, how):
        """Once all are here or gone, nobody else can come."""
        if not self._here or len(self._here) + self._gone < REPLICAS:
            return
        size, merge = _REDUCES[how]
        values = {replica: value for replica, (_, value) in self._here.items()}
        if len(values) < REPLICAS or len({site for site, _ in self._here.values()}) > 1:
            self._results = dict.fromkeys(values)
        elif size == 1:
            self._results = values
        else:
            result = _MERGES[merge](list(values.values()), axis=0)
            self._results = dict.fromkeys(values, result)
        self._here = {}
        self._changed.notify_all()


class Program:
    """A random program: its tensors are its results."""

    def __init__(self, steps):
        self.steps = steps

    def __call__(self, variables, reduce, mine, same, limit):
        """Runs it.

        Args:
          variables: of the replica.
          reduce: gets a tensor, a number of the place in the program, and a key of `_REDUCES`.
          mine: a tensor of the replica's own.
          same: one that is equal on all.
          limit: of the replica's loops.
        """
        tensors = [mine, same, tf.constant([1.0, -2.0, 0.5])]
        limits = [tf.constant(2), limit]
        for number, step in enumerate(self.steps):
            here = functools.partial(reduce, number)
            tensors += _run(step, tensors, variables, limits, here)
        return tensors


def _run(step, tensors, variables, limits, reduce):
    kind, *rest = step

    def pick(number):
        return tensors[number % len(tensors)]

    if kind == "unary":
        return [_UNARY[rest[0]](pick(rest[1]))]
    if kind == "binary":
        return [_BINARY[rest[0]](pick(rest[1]), pick(rest[2]))]
    if kind == "reduce":
        return [reduce(pick(rest[1]), rest[0])]
    variable = variables[rest[0]]
    if kind == "read":
        return [variable.read_value()]
    if kind == "assign":
        variable.assign(pick(rest[1]))
        return []
    if kind == "assign_add":
        variable.assign_add(0.1 * pick(rest[1]))
        return []
    x, y, z = map(pick, rest[1:])
    if kind.startswith("loop"):
        return _loop(kind, variable, limits[rest[1] % 2], (x, y, z), reduce)
    if kind.startswith("cond"):
        return _cond(kind, variable, (x, y, z), reduce)
    return [_call(kind, variable, reduce)(x, y)]


def _cond(kind, variable, tensors, reduce):
    x, y, z = tensors

    def assigned(value):
        return variable.assign(tf.tanh(value)).read_value()

    ways = {
        "cond": (lambda: y + 1.0, lambda: z * variable),
        "cond_assign": (lambda: assigned(y), lambda: z),
        "cond_reduce": (lambda: assigned(reduce(y)), lambda: z),
        # The branch without the all-reduce assigns.
        "cond_other_reduce": (lambda: reduce(y), lambda: assigned(z)),
        "cond_call_reduce": (lambda: _call("call_reduce", variable, reduce)(y, z), lambda: z),
    }
    return [tf.cond(x[0] > 0, *ways[kind]), variable.read_value()]


def _loop(kind, variable, limit, tensors, reduce):
    x, y, z = tensors

    def body(i, a, b):
        if kind == "loop_reduce":
            a = reduce(a)
        if kind != "loop":
            variable.assign(tf.tanh(z if kind == "loop_assign" else a))
        return i + 1, tf.tanh(b), tf.tanh(a + z)

    _, a, b = tf.while_loop(lambda i, a, b: i < limit, body, (0, x, y))
    return [a, b]


def _call(kind, variable, reduce):
    def inner(x, y):
        variable.assign(tf.tanh(reduce(x) if kind == "call_reduce" else x))
        return x + y * variable

    return inner if tf.executing_eagerly() else tf.function(inner, autograph=False)


# --- Tracing --------------------------------------------------------------------------------------


def _traced_reduce(site, tensor, how="all"):
    size, merge = _REDUCES[how]
    return tf.raw_ops.CollectiveReduceV2(
        input=tensor, group_size=size, group_key=size, instance_key=site,
        ordering_token=[], merge_op=merge, final_op="Id",
    )  # fmt: skip


class Traced:
    """A program as a function.

    Attributes:
      view: of the function.
      program: of all replicas.
      handles: by variable, the argument that it is; None where it is not used.
    """

    def __init__(self, steps):
        variables = _variables()
        spec = tf.TensorSpec(SHAPE)
        program = functools.partial(Program(steps), variables, _traced_reduce)
        function = tf.function(program, autograph=False).get_concrete_function(
            spec, spec, tf.TensorSpec([], tf.int32)
        )
        graph = function.graph.as_graph_def()
        library = {f.signature.name: f for f in graph.library.function}
        op_def = op_defs(library.get)
        self.view = GraphView(function.function_def, op_def)
        self.program = ReplicatedProgram(REPLICAS, library.get, op_def, reduces_over(REPLICAS))
        captured = [id(t) for t in function.captured_inputs]
        arguments = self.view.arguments[len(self.view.arguments) - len(captured) :]
        by_handle = dict(zip(captured, arguments, strict=True))
        self.handles = [by_handle.get(id(v.handle)) for v in variables]

    @property
    def same(self):
        """The argument that is equal on all replicas."""
        return self.view.arguments[1]


# --- Running --------------------------------------------------------------------------------------


def run(steps, owns):
    """Runs a program on all replicas.

    Args:
      steps: of the program.
      owns: of each replica, what it has of its own.

    Returns:
      Of each replica its tensors and what its variables are then; None if they would wait for each
      other for ever.
    """
    collective, results, wrong = Collective(), {}, []

    def replica(rank):
        try:
            results[rank] = _run_one(collective, rank, steps, owns[rank])
        except StuckError:
            results[rank] = None
        except Exception as error:
            wrong.append(error)
        finally:
            collective.leave()

    threads = [threading.Thread(target=replica, args=(rank,)) for rank in range(REPLICAS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]
    ordered = [results[rank] for rank in range(REPLICAS)]
    return None if any(one is None for one in ordered) else ordered


def _run_one(collective, rank, steps, own):
    def reduce(site, tensor, how="all"):
        return tf.constant(collective.reduce(rank, site, tensor.numpy(), how))

    variables = _variables()
    mine, limit = tf.constant(own[0]), tf.constant(own[1])
    same = tf.constant([0.3, -0.7, 0.9])
    tensors = Program(steps)(variables, reduce, mine, same, limit)
    return [t.numpy() for t in tensors], [variable.numpy() for variable in variables]


def _variables():
    return [tf.Variable(np.full(SHAPE, 0.25 * i, "f")) for i in range(VARIABLES)]
