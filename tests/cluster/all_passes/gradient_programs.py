# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Programs that read, gather, slice, branch and differentiate, drawn at random, and what runs them.

A program is a list of statements: a kind and two numbers, which choose among former values. Each
statement adds values to a pool; a gradient is asked of everything in the pool and of all variables.
Numbers are whole ones, or halves, and small: no sum is rounded, whatever its order.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from hypothesis import strategies as st
from tensorflow.python.distribute.sharded_variable import ShardedVariable

Program = list[tuple[str, int, int]]
_IDS = ([0, 2, 2], [[3, 1], [0, 3]], [1])
_TYPES = (tf.float32, tf.float64, tf.float16)
_LIMIT = 9.0
# Each option: what it is when it is off, and the ways in which it is on. Left out are the one for
# GPUs, and numbers about the network, which change no value.
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "compile_weight_update": (False, True),
    "do_fuse_recv": (False, True),
    "do_pack_handles": (False, True),
    "fuse_grouping": ("cost", "level", "consumer", "cost", "dynamic"),
    "fuse_lookups_combine": (False, True),
    "fuse_lookups_unique": (False, True),
    "fuse_weight_update": (False, True),
    "shard_weight_update": (False, True),
    "shard_weight_update_always": (False, True),
    "shard_weight_update_exact": (False, True),
    "shard_weight_update_gather": ("end", "first_use"),
    "shard_weight_update_gather_bfloat16": (False, True),
    "shard_weight_update_group_size": (0, 2, 4),
    "split_matmuls": (False, True),
}
OFF = {key: values[0] for key, values in _OPTIONS.items()}


class Run:
    """Runs one program, while a function is traced.

    Attributes:
      results: what is compared: tensors, `IndexedSlices`, None.
    """

    def __init__(self, variables: Sequence[Any], flag: Any):
        """Starts with an empty pool.

        Args:
          variables: matrices of four columns and four rows or more, the second one square;
            whole ones, or in pieces.
          flag: a boolean tensor that conditionals ask.
        """
        self.results: list[Any] = []
        self._variables, self._flag = list(variables), flag
        self._pool: list[Any] = []
        self._tapes: list[Any] = []

    def run(self, program: Program) -> list[Any]:
        """Runs all statements, ends all tapes, and asks a last time for gradients."""
        self._read(0, 0)  # (Before any tape.)
        self._open(0, 1)
        for kind, a, b in program:
            _STATEMENTS[kind](self, a, b)
        while self._tapes:
            self._close(0, 0)
        return self.results + self._pool

    def _value(self, a: int) -> Any:
        return self._pool[-1 - a % len(self._pool)]

    def _variable(self, a: int) -> Any:
        return self._variables[a % len(self._variables)]

    def _parts(self) -> list[Any]:
        return [part for one in self._variables for part in getattr(one, "variables", [one])]

    def _add(self, value: Any) -> None:
        self._pool.append(value)

    def _read(self, a: int, b: int) -> None:
        variable = self._variable(a)
        read = tf.convert_to_tensor(variable)
        self._add(tf.identity(read) if b % 2 else read)

    def _identity(self, a: int, b: int) -> None:
        self._add(tf.identity(self._value(a)))

    def _cast(self, a: int, b: int) -> None:
        self._add(tf.cast(self._value(a), _TYPES[b % 3]))

    def _gather(self, a: int, b: int) -> None:
        self._add(_rows(self._value(a), b))

    def _lookup(self, a: int, b: int) -> None:
        rows = tf.nn.embedding_lookup(self._variable(a), tf.constant(_IDS[b % 3]))
        self._add(tf.reshape(rows, [-1, 4]))

    def _gather_read(self, a: int, b: int) -> None:
        self._add(_rows(tf.convert_to_tensor(self._variable(a)), b))

    def _slice(self, a: int, b: int) -> None:
        value = self._value(a)
        self._add(tf.concat([value[b % value.shape[0] :], value], 0)[:4])

    def _sum(self, a: int, b: int) -> None:
        # (Grappler makes one operation of a chain of additions.)
        terms = [tf.cast(one, tf.float32)[:1] for one in self._pool[-3 - b :]]
        self._add(sum(terms[1:], terms[0]) + tf.cast(self._value(a), tf.float32)[:1])

    def _multiply(self, a: int, b: int) -> None:
        value = self._value(a)
        self._add(tf.clip_by_value(value * value[:1], -_LIMIT, _LIMIT))

    def _product(self, a: int, b: int) -> None:
        kernel = tf.convert_to_tensor(self._variables[1])
        kernel = tf.identity(kernel) if b & 1 else kernel
        self._add(kernel)
        product = tf.matmul(tf.cast(self._value(a + 1), tf.float32), kernel, transpose_b=b & 2 > 0)
        self._add(tf.clip_by_value(product, -_LIMIT, _LIMIT))

    def _stop(self, a: int, b: int) -> None:
        self._add(tf.stop_gradient(self._value(a)))

    def _custom(self, a: int, b: int) -> None:
        @tf.custom_gradient
        def own(value: Any) -> Any:
            def gradient(upstream: Any) -> Any:
                dense = tf.convert_to_tensor(upstream)  # (It may be of rows.)
                return 2 * tf.ones_like(value) * tf.reduce_mean(0 * dense + 1)

            return (_rows(tf.identity(value), b) if b % 2 else tf.identity(value)), gradient

        self._add(own(self._value(a)))

    def _check(self, a: int, b: int) -> None:
        value = self._value(a)
        with tf.control_dependencies([tf.debugging.check_numerics(self._value(b), "")]):
            self._add(tf.identity(value))

    def _cond(self, a: int, b: int) -> None:
        value, variable = self._value(a), self._variable(b)

        def asks() -> Any:
            table = tf.identity(tf.convert_to_tensor(variable))
            with tf.GradientTape() as tape:
                tape.watch(table)
                rows = _rows(table, b)
                loss = tf.reduce_sum(rows * rows)
            gradient = tf.convert_to_tensor(tape.gradient(loss, table))
            return tf.cast(tf.clip_by_value(rows + gradient[:1], -_LIMIT, _LIMIT), value.dtype)

        self._add(tf.cond(self._flag, lambda: _rows(value, b), asks))

    def _loop(self, a: int, b: int) -> None:
        value, variable = tf.cast(self._value(a)[:1], tf.float32), self._variable(b)

        def body(i: Any, total: Any) -> Any:
            rows = _rows(tf.identity(tf.convert_to_tensor(variable)), 2)
            return i + 1, tf.clip_by_value(total + rows, -_LIMIT, _LIMIT)

        self._add(tf.while_loop(lambda i, _: i < 2, body, [0, value])[1])

    def _call(self, a: int, b: int) -> None:
        variable = self._variable(b)

        @tf.function(autograph=False)
        def inner(value: Any) -> Any:
            rows = _rows(tf.identity(tf.convert_to_tensor(variable)), b)
            return rows + tf.cast(value[:1], tf.float32), rows

        for one in inner(self._value(a)):
            self._add(one)

    def _update(self, a: int, b: int) -> None:
        for part in getattr(self._variable(a), "variables", [self._variable(a)]):
            if b % 2:
                part.assign_add(tf.ones_like(part))
            else:
                part.assign(tf.clip_by_value(-part * 0.5 + 1.0, -_LIMIT, _LIMIT))

    def _watch(self, a: int, b: int) -> None:
        if self._tapes:
            self._tapes[a % len(self._tapes)].watch(self._value(b))

    def _open(self, a: int, b: int) -> None:
        tape = tf.GradientTape(persistent=a % 2 == 0, watch_accessed_variables=b % 4 > 0)
        self._tapes.append(tape)
        tape.__enter__()

    def _unrecorded(self, a: int, b: int) -> None:
        if self._tapes:
            with self._tapes[-1].stop_recording():
                self._read(a, b)

    def _close(self, a: int, b: int) -> None:
        if not self._tapes:
            return
        target = self._target(b)
        tape = self._tapes.pop()
        tape.__exit__(None, None, None)
        self._note(tape.gradient(target, self._pool + self._parts()))

    def _follow(self, a: int, b: int) -> None:
        """Asks for gradients along the graph."""
        stopped = [self._value(a)] if b % 2 else None
        sources = [*self._pool, *(part.handle for part in self._handles())]
        self._note(tf.gradients(self._target(b), sources, stop_gradients=stopped))

    def _handles(self) -> list[Any]:
        return [part for part in self._parts() if hasattr(part, "handle")]

    def _target(self, b: int) -> Any:
        chosen = [self._value(i) for i in range(1 + b % 3)]
        sums = [tf.reduce_sum(tf.cast(one, tf.float32) * (i + 1)) for i, one in enumerate(chosen)]
        return tf.add_n(sums)

    def _note(self, gradients: Sequence[Any]) -> None:
        self.results += gradients
        dense = [g for g in gradients if isinstance(g, tf.Tensor) and g.dtype == tf.float32]
        for one in dense[:1]:  # (Which a tape around this one may be asked about.)
            self._add(tf.clip_by_value(one, -_LIMIT, _LIMIT))


def _rows(value: Any, b: int) -> Any:
    rows = min(4, value.shape[0])
    ids = tf.constant(_IDS[b % 3], tf.int64 if b & 4 else tf.int32) % rows
    return tf.reshape(tf.gather(value, ids), [-1, 4])


_STATEMENTS: dict[str, Callable[[Run, int, int], None]] = {
    "call": Run._call,
    "cast": Run._cast,
    "check": Run._check,
    "close": Run._close,
    "cond": Run._cond,
    "custom": Run._custom,
    "follow": Run._follow,
    "gather": Run._gather,
    "gather_read": Run._gather_read,
    "identity": Run._identity,
    "lookup": Run._lookup,
    "loop": Run._loop,
    "multiply": Run._multiply,
    "open": Run._open,
    "product": Run._product,
    "read": Run._read,
    "slice": Run._slice,
    "stop": Run._stop,
    "sum": Run._sum,
    "unrecorded": Run._unrecorded,
    "update": Run._update,
    "watch": Run._watch,
}

KINDS = sorted(_STATEMENTS)


def option_sets(count: int, seed: int) -> list[dict[str, Any]]:
    """Draws sets of options: over them, each option is on with each other, in all of its ways.

    Args:
      count: how many sets, 8 or more.
      seed: others draw others.
    """
    draw = random.Random(seed)
    ways = [(key, way) for key, values in _OPTIONS.items() for way in values[1:]]
    wanted = {(a, b) for a, b in itertools.combinations(ways, 2) if a[0] != b[0]}
    while True:
        sets = []
        for number in range(count):
            one = {
                key: draw.choice(values[1:]) if draw.random() < 0.8 else values[0]
                for key, values in _OPTIONS.items()
            }
            groupings = _OPTIONS["fuse_grouping"][1:]
            sets.append(one | {"fuse_grouping": groupings[number % len(groupings)]})
        if wanted <= {pair for one in sets for pair in itertools.combinations(one.items(), 2)}:
            return sets


def programs() -> st.SearchStrategy[Program]:
    """Draws programs."""
    # What is cheap to trace, and what a rewrite can go wrong with, is drawn more often.
    often = ["gather", "gather_read", "identity", "open", "product", "read", "watch"]
    kinds = KINDS + often
    statement = st.tuples(st.sampled_from(kinds), st.integers(0, 7), st.integers(0, 7))
    return st.lists(statement, min_size=3, max_size=8)


def flat(results: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """What kind each result is, and the tensors that they are of."""
    kinds, tensors = [], []
    for one in results:
        kinds.append("none" if one is None else type(one).__name__)
        if isinstance(one, tf.IndexedSlices):
            tensors += [one.indices, one.values]
        elif one is not None:
            tensors.append(one)
    return kinds, tensors


def values_of(variables: Sequence[Any]) -> list[Any]:
    """The values of variables, in NumPy."""
    return [tf.convert_to_tensor(one).numpy() for one in variables]


def reset(variables: Sequence[Any]) -> None:
    """Sets variables to their first values."""
    for number, one in enumerate(variables):
        value = (tf.reshape(tf.range(float(one.shape.num_elements())), one.shape) * 7) % 5 - 2
        value = tf.roll(value, number, 0)
        start = 0
        for part in one.variables if isinstance(one, ShardedVariable) else [one]:
            part.assign(value[start : start + part.shape[0]])
            start += part.shape[0]
