# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Keras 3 models in pieces: any other pieces, or none, can be restored from them."""

import itertools
import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute import sharded_variable

from tests.slow_cases import slow_but
from tf_fuse import parameter_server

_ROWS, _WIDTH, _UNITS = 6, 2, 3
_PIECES = [(3, 3), (2, 2, 2), (1, 5), ()]
_MAKERS = {
    "Adam": lambda: keras.optimizers.Adam(0.1, use_ema=True),
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "plain SGD": lambda: keras.optimizers.SGD(0.1),
    "scaled RMSprop": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.RMSprop(0.1, centered=True)
    ),
}


class _Model:
    """A table, in pieces of so many rows or whole, a kernel and a bias; and an optimizer."""

    def __init__(self, rows, make):
        self.table = keras.layers.Embedding(_ROWS, _WIDTH)
        self.table.build((None,))
        self.dense = keras.layers.Dense(_UNITS)
        self.dense.build((None, _WIDTH))
        weights = [self.table.embeddings, self.dense.kernel, self.dense.bias]
        if rows:
            parts = [tf.Variable(tf.zeros([r, _WIDTH]), name=f"part_{r}") for r in rows]
            weights[0]._value = sharded_variable.ShardedVariable(parts, name="table")
            weights = parameter_server.pieces(weights)
        self.weights, self.optimizer = weights, make()
        self.optimizer.build(weights)

    def checkpoint(self):
        return tf.train.Checkpoint(table=self.table, dense=self.dense, optimizer=self.optimizer)

    def train(self, first, steps):
        """Steps with gradients that are the same numbers for each row, whatever the pieces."""
        for step in range(first, first + steps):
            rng = np.random.default_rng(step)
            shapes = ([_ROWS, _WIDTH], [_WIDTH, _UNITS], [_UNITS])
            table, kernel, bias = (rng.normal(size=s).astype("float32") for s in shapes)
            rows = [int(one.shape[0]) for one in self.weights[:-2]]
            parts = np.split(table, np.cumsum(rows)[:-1])
            gradients = [tf.constant(one) for one in (*parts, kernel, bias)]
            self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))

    def values(self):
        """Of the table, the kernel and the bias, and of what the optimizer keeps beside each."""
        inner = getattr(self.optimizer, "inner_optimizer", None) or self.optimizer
        lists = {"weights": self.weights}
        for name, value in vars(inner).items():
            if isinstance(value, list) and len(value) == len(self.weights):
                is_own = all(any(v is one for v in inner.variables) for one in value)
                lists |= {name: value} if is_own and name != "_variables" else {}
        found = {"iterations": int(self.optimizer.iterations)}
        for name, value in lists.items():
            arrays = [np.asarray(tf.convert_to_tensor(one)) for one in value]
            found[name] = [np.concatenate(arrays[:-2]).tolist(), *(a.tolist() for a in arrays[-2:])]
        return found


def _begin(rows, make):
    model = _Model(rows, make)
    for one in model.weights:
        one.assign(tf.ones(one.shape))
    return model


# Each optimizer with other pieces.
@pytest.mark.parametrize(
    ("name", "rows"),
    slow_but(
        itertools.product(sorted(_MAKERS), _PIECES),
        list(zip(sorted(_MAKERS), _PIECES, strict=True)).__contains__,
    ),
)
def test_any_pieces_go_on_from_those_that_were_saved(name, rows, tmp_path):
    model = _begin(rows, _MAKERS[name])
    model.train(0, 2)
    path = model.checkpoint().write(str(tmp_path / "saved"))
    model.train(2, 1)
    after = model.values()
    assert len(after) == 2 + {"Adam": 3, "SGD": 1, "plain SGD": 0, "scaled RMSprop": 2}[name]
    for others in _PIECES:
        other = _begin(others, _MAKERS[name])
        other.checkpoint().read(path).assert_consumed()
        other.train(2, 1)
        assert other.values() == after


def test_checkpoints_are_those_of_whole_variables(tmp_path):
    make = _MAKERS["Adam"]
    names = []
    for rows in ((), (3, 3)):
        model = _begin(rows, make)
        model.train(0, 2)
        path = model.checkpoint().write(str(tmp_path / f"saved{len(rows)}"))
        names.append(sorted(tf.train.list_variables(path)))
    del names[0][0], names[1][0]  # (The graph of objects.)
    assert names[0] == names[1]
    # A program without pieces.
    whole = _begin((), make)
    whole.checkpoint().read(path).assert_existing_objects_matched()
    assert whole.values() == model.values()


def test_without_an_option_pieces_are_saved_where_they_are_listed(tmp_path):
    """A strategy without the option makes the variable; `pieces` gets it."""
    model = _begin((4, 2), _MAKERS["plain SGD"])
    path = tf.train.Checkpoint(table=model.table).write(str(tmp_path / "table"))
    assert tf.train.load_variable(path, "table/_embeddings/.ATTRIBUTES/VARIABLE_VALUE").shape == (
        6,
        2,
    )


def test_variables_beside_pieces_that_are_no_pieces(caplog):
    """As Adafactor's: some are sums over rows."""
    optimizer = keras.optimizers.Adafactor(name="adafactor")
    model = _begin((3, 3), _MAKERS["plain SGD"])
    optimizer.build(model.weights[:2])
    optimizer._trackable_children()
    said = [one.getMessage() for one in caplog.records if one.name == "tf_fuse"]
    assert said == [
        f"the optimizer keeps {slot!r} of shape {shape} beside a piece of 'embeddings': a "
        "checkpoint has such variables piece by piece, and is read with the same pieces only"
        for slot, shape in (
            (optimizer._c[0].value.name, "(2,)"),
            (optimizer._r[0].value.name, "(3,)"),
        )
    ]
