# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training steps drawn at random: lookups and updates of rows of several tables."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

STEPS = 2
TYPES = ("float16", "bfloat16", "float32", "float64")
LOOKUPS = ("gather", "matrix", "embedding", "sparse_read", "read", "after")
UPDATES = ("add", "update", "optimizer", "gradient", "sub", "none")
# Optimizers change rows by scatters, by one operation for rows, and by operations on all rows.
OPTIMIZERS = (
    "keras Adagrad", "keras Adam", "keras SGD", "tf_keras SGD momentum", "tf_keras Adagrad",
    "legacy Adagrad", "legacy Adam", "legacy Ftrl", "legacy SGD momentum", "v1 Adagrad", "v1 Adam",
    "v1 Ftrl", "v1 RMSProp",
)  # fmt: skip
# What TensorFlow has no kernel for.
_WITHOUT_KERNEL = ("bfloat16", "optimizer", "v1 RMSProp")


@dataclass(frozen=True)
class Table:
    """A table, and what a step does with it."""

    dtype: str
    rows: int
    width: int
    parts: int
    id_type: str
    lookups: tuple[str, ...]
    update: str


@dataclass(frozen=True)
class Program:
    """What is drawn.

    Attributes:
      tables: by function; the functions are scheduled together.
      optimizer: a name of `OPTIMIZERS`.
      sizes_are_known: whether a trace knows how many ids there are.
      seed: of ids.
    """

    tables: tuple[tuple[Table, ...], ...]
    optimizer: str
    sizes_are_known: bool
    seed: int


def draw(rng: random.Random, often: str) -> Program:
    """Draws a program.

    Args:
      rng: of random numbers.
      often: an update that most tables have, so that groups of it form.
    """
    optimizer = rng.choice(OPTIMIZERS)
    updates = [*UPDATES, *[often] * 24]
    count = rng.choice([4, 8, 10, 12, 12])
    tables = [_draw_table(rng, optimizer, updates) for _ in range(count)]
    cut = rng.randint(4, len(tables)) if rng.random() < 0.4 else len(tables)
    functions = [tuple(part) for part in (tables[:cut], tables[cut:]) if part]
    return Program(tuple(functions), optimizer, rng.random() < 0.5, rng.randrange(2**30))


def _draw_table(rng: random.Random, optimizer: str, updates: list[str]) -> Table:
    update = rng.choice(updates)
    types = [one for one in TYPES if (one, update, optimizer) != _WITHOUT_KERNEL]
    return Table(
        dtype=rng.choice(types),
        rows=rng.randint(2, 50),
        width=rng.choice([1, 2, 3, 7, 16, 64, 1000]),
        # (The optimizers of tf_keras.legacy do not take pieces.)
        parts=1 if update == "optimizer" else rng.choice([1, 1, 2]),
        id_type=rng.choice(["int32", "int64"]),
        lookups=tuple(rng.choices(LOOKUPS, k=rng.randint(1, 2))),
        update=update,
    )


class Training:
    """The variables of a program, and its functions.

    Attributes:
      functions: each of the arguments that `arguments` yields for it.
    """

    def __init__(self, strategy: Any, program: Program):
        """Makes everything anew, with the same numbers each time.

        Args:
          strategy: whose partitioner cuts by `Pieces`.
          program: what to make.
        """
        self._program = program
        self._rng = np.random.default_rng(program.seed)
        self.functions: list[Any] = []
        self._state: list[Any] = []
        for tables in program.tables:
            self._add_function(strategy, tables)

    def _add_function(self, strategy: Any, tables: tuple[Table, ...]) -> None:
        with strategy.scope():
            variables = [self._variable(strategy, table) for table in tables]
            trained = [
                part
                for variable, table in zip(variables, tables, strict=True)
                for part in parts_of(variable)
                if table.update == "optimizer"
            ]
            optimizer = _optimizer(self._program.optimizer) if trained else None
            if hasattr(optimizer, "build"):
                optimizer.build(trained)
        self._state.append((variables, optimizer))

        def replica(*arguments: Any) -> Any:
            return _step(tables, variables, optimizer, arguments)

        signature = None if self._program.sizes_are_known else _signature(tables)

        @tf.function(autograph=False, input_signature=signature)
        def function(*arguments: Any) -> Any:
            return strategy.run(replica, args=arguments)

        self.functions.append(function)

    def _variable(self, strategy: Any, table: Table) -> Any:
        value = self._rng.normal(size=[table.rows, table.width])
        strategy.pieces = table.parts
        variable = tf.Variable(tf.cast(value, table.dtype))
        strategy.pieces = 1
        return variable

    def arguments(self) -> Iterator[list[tuple[Any, ...]]]:
        """For each step, those of each function."""
        counts: dict[tuple[int, int], int] = {}
        for _ in range(STEPS):
            found = []
            for number, tables in enumerate(self._program.tables):
                made = []
                for place, table in enumerate(tables):
                    count = int(self._rng.choice([0, 2, 20, 20]))
                    if self._program.sizes_are_known:
                        count = counts.setdefault((number, place), count)
                    made.append(self._rng.integers(table.rows, size=count).astype(table.id_type))
                found.append(tuple(made))
            yield found

    def values(self) -> list[Any]:
        """Of all variables."""
        found = []
        for variables, optimizer in self._state:
            found += [part for variable in variables for part in parts_of(variable)]
            if optimizer is not None:
                state = optimizer.variables
                found += list(state() if callable(state) else state)
        return [tf.convert_to_tensor(one).numpy() for one in found]


def parts_of(variable: Any) -> list[Any]:
    """The pieces of a variable, or the variable."""
    return list(getattr(variable, "variables", [variable]))


def _signature(tables: tuple[Table, ...]) -> list[Any]:
    return [tf.TensorSpec([None], table.id_type) for table in tables]


def _optimizer(name: str) -> Any:
    import tf_keras

    library, cls, *momentum = name.split()
    options = {"momentum": 0.9} if momentum else {}
    if library == "v1":
        return getattr(tf.compat.v1.train, f"{cls}Optimizer")(0.05)
    modules = {
        "keras": tf.keras.optimizers,
        "tf_keras": tf_keras.optimizers,
        "legacy": tf_keras.optimizers.legacy,
    }
    return getattr(modules[library], cls)(0.05, **options)


def _step(
    tables: tuple[Table, ...], variables: list[Any], optimizer: Any, ids: tuple[Any, ...]
) -> Any:
    """The rows, a loss of them, and the updates."""
    with tf.GradientTape() as tape:
        found = []
        for table, variable, of_table in zip(tables, variables, ids, strict=True):
            found += [_rows(kind, variable, of_table) for kind in table.lookups if kind != "after"]
        terms = [tf.reduce_sum(tf.tanh(tf.cast(rows, tf.float64)) ** 2) for rows in found]
        # (In this order; AddN begins with an input whose memory it can take.)
        loss = tf.reduce_sum(tf.stack([tf.constant(1.0, tf.float64), *terms]))
    pieces = [parts_of(variable) for variable in variables]
    gradients = iter(tape.gradient(loss, [part for parts in pieces for part in parts]))
    for_optimizer = []
    for table, parts, of_table in zip(tables, pieces, ids, strict=True):
        for part in parts:
            gradient = next(gradients)
            if table.update == "optimizer":
                if gradient is not None:
                    for_optimizer.append((gradient, part))
            else:
                _update(table.update, part, gradient, of_table, loss)
    if for_optimizer:
        optimizer.apply_gradients(for_optimizer)
    for table, variable, of_table in zip(tables, variables, ids, strict=True):
        found += [_rows(kind, variable, of_table) for kind in table.lookups if kind == "after"]
    return loss, found


def _rows(kind: str, variable: Any, ids: Any) -> Any:
    """What a lookup finds."""
    parts = parts_of(variable)
    if kind == "matrix":
        return tf.nn.embedding_lookup(parts, tf.stack([ids, ids[::-1]]))
    if len(parts) > 1 or kind == "embedding":
        return tf.nn.embedding_lookup(parts, ids)
    if kind == "sparse_read":
        return variable.sparse_read(ids)
    if kind == "read":
        return tf.gather(variable.read_value(), ids)
    return tf.gather(variable, ids)


def _update(kind: str, part: Any, gradient: Any, ids: Any, loss: Any) -> None:
    """Changes a variable, or a piece of one."""
    rows, width = part.shape
    ids = ids % tf.cast(rows, ids.dtype)
    if kind == "update":  # (Of rows with equal ids, any may be the last one.)
        ids = tf.unique(ids).y
    rate = tf.cast(tf.tanh(loss) * 0.125, part.dtype)
    change = tf.cast(ids, part.dtype)[:, tf.newaxis] * 0.25 + tf.ones([width], part.dtype) * rate
    if kind == "add":
        part.scatter_add(tf.IndexedSlices(change, ids))
    elif kind == "sub":
        part.scatter_sub(tf.IndexedSlices(change, ids))
    elif kind == "update":
        part.scatter_update(tf.IndexedSlices(change, ids))
    elif kind == "gradient" and isinstance(gradient, tf.IndexedSlices):
        part.scatter_sub(tf.IndexedSlices(gradient.values * rate, gradient.indices))
    elif kind == "gradient" and gradient is not None:
        part.assign_sub(gradient * rate)
