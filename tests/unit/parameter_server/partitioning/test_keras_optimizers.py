# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras 3 programs that do not know that their variables are in pieces: as with whole ones."""

import itertools
import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute import sharded_variable

from tests.slow_cases import slow, slow_but
from tf_fuse.parameter_server.partitioning import gradient_tape, keras_optimizers

_ROWS = {6: (3, 1, 2), 8: (3, 1, 4)}
_IDS = [0, 5, 3, 3, 1]
keras_optimizers.install()


def _put_in_pieces(variable):
    """What the strategy makes of a variable that its partitioner splits."""
    values = np.split(np.asarray(variable.value), np.cumsum(_ROWS[variable.shape[0]])[:-1])
    name = variable.value.name.removesuffix(":0")
    parts = [tf.Variable(v, name=f"{name}/part_{i}") for i, v in enumerate(values)]
    sharded = sharded_variable.ShardedVariable(parts, name=name)
    gradient_tape.mark(sharded)
    variable._value = sharded


class _Model:
    def __init__(self, make, is_split, constraint=None):
        keras.utils.set_random_seed(3)
        # (A row is what the CPU computes at once: the rest of one has other bits.)
        self.table = keras.layers.Embedding(6, 8, embeddings_constraint=constraint)
        self.table.build((None,))
        self.dense = keras.layers.Dense(16, kernel_constraint=constraint)
        self.dense.build((None, 8))
        self.weights = [self.table.embeddings, self.dense.kernel, self.dense.bias]
        if is_split:
            _put_in_pieces(self.table.embeddings)
            _put_in_pieces(self.dense.kernel)
        self.optimizer = make(self.weights)

    def step(self, change=lambda gradients: gradients):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.dense(self.table(tf.constant(_IDS))) ** 2)
        gradients = change(tape.gradient(loss, self.weights))
        self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))

    def values(self):
        return [tf.convert_to_tensor(one).numpy().tolist() for one in self.weights]


def _trained(make, is_split, in_graph, constraint=None, change=lambda gradients: gradients):
    model = _Model(make, is_split, constraint)
    before = model.values()
    if in_graph:
        model.optimizer.build(model.weights)

    def step():
        model.step(change)

    run = tf.function(step) if in_graph else step
    for _ in range(3):
        run()
    assert all(one != other for one, other in zip(model.values(), before, strict=True))
    return model


def _excluding(weights):
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[weights[1]], var_names=["bias"])
    return optimizer


def _excluding_names(weights):
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["kernel:"])
    return optimizer


_of = keras.optimizers
_MAKERS = {
    "Adam": lambda _: _of.Adam(0.1, amsgrad=True),
    "AdamW": lambda _: _of.AdamW(0.1, weight_decay=0.1),
    "Adadelta": lambda _: _of.Adadelta(0.1),
    "Adagrad": lambda _: _of.Adagrad(0.1),
    "Adamax": lambda _: _of.Adamax(0.1),
    "Ftrl": lambda _: _of.Ftrl(0.1),
    "Lion": lambda _: _of.Lion(0.1),
    "Nadam": lambda _: _of.Nadam(0.1),
    "RMSprop": lambda _: _of.RMSprop(0.1, centered=True),
    "SGD": lambda _: _of.SGD(0.1, momentum=0.9, nesterov=True),
    "accumulated": lambda _: _of.Adam(0.1, gradient_accumulation_steps=2),
    "averaged": lambda _: _of.SGD(0.1, use_ema=True, ema_overwrite_frequency=2),
    "clipped by value": lambda _: _of.SGD(0.1, clipvalue=0.01),
    "some not decayed": _excluding,
    "some not decayed, by name": _excluding_names,
}


# Those whose slots differ only in how many there are show the same; in a graph and not.
_ALIKE = ("Adadelta", "Adagrad", "Adamax", "Ftrl", "Lion")


@pytest.mark.parametrize(
    ("name", "in_graph"),
    slow_but(
        itertools.product(sorted(_MAKERS), [False, True]),
        lambda case: case[0] not in _ALIKE if case[1] else case[0] in ("Adam", "accumulated"),
    ),
)
def test_weights_have_the_bits_of_whole_ones(name, in_graph):
    whole = _trained(_MAKERS[name], False, in_graph)
    split = _trained(_MAKERS[name], True, in_graph)
    assert split.values() == whole.values()
    # Slots are of pieces, none is of a whole variable that is in pieces.
    shapes = {tuple(one.shape) for one in split.optimizer.variables}
    assert not shapes & {(6, 8), (8, 16)}


def _by_norm(**how):
    return lambda _: keras.optimizers.SGD(0.1, **how)


_DENSE = [{"clipnorm": 0.01}, {"global_clipnorm": 0.01}, {"loss_scale_factor": 4.0}]


@pytest.mark.parametrize("how", _DENSE)
def test_norms_are_of_whole_gradients(how):
    # (Dense ones: of rows, those of one piece come together, so a norm adds up in another order;
    # and Keras does not scale them.)
    def dense(gradients):
        return [tf.convert_to_tensor(one) for one in gradients]

    whole = _trained(_by_norm(**how), False, True, change=dense)
    split = _trained(_by_norm(**how), True, True, change=dense)
    assert split.values() == whole.values()


def test_norms_of_gradients_of_rows_are_of_the_whole():
    values = [_trained(_by_norm(clipnorm=0.01), s, True).values() for s in (False, True)]
    for one, other in zip(*values, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_constraints_are_of_whole_variables():
    constraint = keras.constraints.MaxNorm(0.01, axis=0)
    whole = _trained(_MAKERS["SGD"], False, True, constraint)
    split = _trained(_MAKERS["SGD"], True, True, constraint)
    assert split.values() == whole.values()
    assert np.linalg.norm(split.values()[0], axis=0).max() < 0.011


def test_gradients_may_be_changed_before_they_are_applied():
    def change(gradients):
        table = gradients[0]
        if isinstance(table, tf.IndexedSlices):
            table = tf.IndexedSlices(table.values * 0.5, table.indices, table.dense_shape)
        return [table, *(one * 0.5 for one in gradients[1:])]

    whole = _trained(_MAKERS["Adam"], False, True, change=change)
    split = _trained(_MAKERS["Adam"], True, True, change=change)
    assert split.values() == whole.values()


def test_a_gradient_has_the_shape_of_its_variable():
    model = _Model(_MAKERS["SGD"], True)
    x = tf.ones([1, 8])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model.dense(x)) * 2.0
    found = tape.gradient(loss, {"kernel": model.dense.kernel, "table": model.table.embeddings})
    assert found["table"] is None
    assert found["kernel"].numpy().tolist() == [[2.0] * 16] * 8
    with tf.GradientTape() as tape:
        loss = 3.0 * tf.reduce_sum(model.dense.kernel.value.variables[1])
    # (Of a part of it: other rows are zeros.)
    assert tape.gradient(loss, model.dense.kernel).numpy().tolist() == (
        [[0.0] * 16] * 3 + [[3.0] * 16] + [[0.0] * 16] * 4
    )


def test_nothing_puts_gradients_together_where_only_the_optimizer_takes_them():
    model = _trained(_MAKERS["Adam"], True, True)

    def step():
        x = tf.ones([1, 8])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model.dense(x))
        (gradient,) = tape.gradient(loss, [model.dense.kernel])
        assert gradient_tape.cut(model.dense.kernel.value, gradient)[0] is not None
        parts = gradient_tape.cut(model.dense.kernel.value, gradient)
        assert not any(part.op.type == "SplitV" for part in parts)

    tf.function(step).get_concrete_function()


@pytest.mark.parametrize("row", [6, 100_000])
def test_a_row_that_there_is_not_changes_no_piece(row):
    """Nor does it change a whole table."""
    for is_split in (False, True):
        model = _Model(_MAKERS["SGD"], is_split)
        model.optimizer.build(model.weights)
        before = model.values()
        gradient = tf.IndexedSlices(tf.ones([2, 8]), [0, row], [6, 8])
        with pytest.raises(tf.errors.InvalidArgumentError):
            model.optimizer.apply([gradient, None, None], model.weights)
        assert model.values() == before


def test_rows_given_by_a_program_go_to_their_pieces():
    models = [_Model(_MAKERS["SGD"], is_split) for is_split in (False, True)]
    for model in models:
        model.optimizer.build(model.weights)
        values = tf.reshape(tf.range(40.0), [5, 8])
        gradient = tf.IndexedSlices(values, [5, 0, -1, 2, 5], [6, 8])  # (-1: none)
        model.optimizer.apply([gradient, None, None], model.weights)
    assert models[0].values() == models[1].values()


def test_gradients_without_variables_are_of_those_it_was_built_with():
    models = [_Model(_MAKERS["Adam"], is_split) for is_split in (False, True)]
    for model in models:
        model.optimizer.build(model.weights)
        model.optimizer.apply([tf.ones(one.shape) for one in model.weights])
        with pytest.raises(ValueError, match="one-to-on"):
            model.optimizer.apply([tf.ones([])])
    assert models[0].values() == models[1].values()


def test_averages_become_weights_in_the_end():
    models = [
        _trained(lambda _: keras.optimizers.SGD(0.1, use_ema=True), is_split, True)
        for is_split in (False, True)
    ]
    before = models[0].values()
    for model in models:
        model.optimizer.finalize_variable_values(model.weights)
    assert models[0].values() == models[1].values() != before


class _Own(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        variable.assign_sub(gradient / tf.norm(gradient))


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Lamb(0.1),
        lambda: keras.optimizers.Adafactor(0.1),
        lambda: keras.optimizers.Muon(0.1),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
        lambda: _Own(0.1),
    ],
)
def test_an_optimizer_that_may_need_whole_variables_is_refused(make):
    model = _Model(lambda _: make(), True)
    with pytest.raises(ValueError, match=r"cannot update .* of shape \(6, 8\), .* in 3 pieces"):
        model.optimizer.build(model.weights)
    whole = _Model(lambda _: make(), False)
    whole.optimizer.build(whole.weights)


def test_a_tape_cannot_watch_pieces():
    model = _Model(_MAKERS["SGD"], True)
    with tf.GradientTape() as tape, pytest.raises(ValueError, match=r"not tf\.Tensor"):
        tape.watch(model.dense.kernel)


def test_jacobians_are_of_whole_variables():
    found = []
    for is_split in (False, True):
        model = _Model(_MAKERS["SGD"], is_split)
        with tf.GradientTape() as tape:
            result = model.dense(tf.ones([1, 8]))
        found.append(tape.jacobian(result, model.dense.kernel).numpy())
    assert found[0].shape == (1, 16, 8, 16)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("name", [slow("SGD"), "Adam", slow("Ftrl")])
def test_files_of_an_optimizer_have_whole_variables(name):
    """In the order of an optimizer without pieces, which reads them, and the other way round."""
    models = [_trained(_MAKERS[name], is_split, True) for is_split in (False, True)]
    whole, split = (model.optimizer for model in models)
    expected, found = {}, {}
    whole.save_own_variables(expected)
    split.save_own_variables(found)
    assert list(found) == list(expected)
    for i in expected:
        np.testing.assert_array_equal(found[i], expected[i])
    changed = {i: np.asarray(one) * 2 for i, one in found.items()}
    again = {}
    split.load_own_variables(changed)
    split.save_own_variables(again)
    for i in expected:
        np.testing.assert_array_equal(again[i], changed[i])


def test_a_file_of_another_optimizer_is_not_loaded():
    model = _trained(_MAKERS["Adam"], True, True)
    with pytest.warns(UserWarning, match="Skipping variable loading for optimizer"):
        model.optimizer.load_own_variables({"0": np.int64(1)})


def test_pieces_without_the_option_are_as_in_stock():
    """Such a variable has no mark: TensorFlow's and Keras's own code sees it."""
    layer = keras.layers.Dense(2)
    layer.build((None, 8))
    parts = [tf.Variable(tf.ones([4, 2]), name=f"part_{i}") for i in range(2)]
    layer.kernel._value = sharded_variable.ShardedVariable(parts, name="kernel")
    assert gradient_tape.in_pieces(layer.kernel) is None
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.ones([1, 8])))
    with pytest.raises(AttributeError):
        tape.gradient(loss, layer.kernel)


def test_arrays_and_files_of_weights_are_of_whole_variables(tmp_path):
    """NumPy and Keras's own files ask a variable for its array; that of pieces is the whole."""
    model = _Model(_MAKERS["SGD"], True)
    whole = _Model(_MAKERS["SGD"], False)
    for one, other in zip(model.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(np.array(one), np.array(other))
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), np.array(other))
    assert np.asarray(model.dense.kernel, "float64").dtype == np.float64
    network = keras.Sequential([model.table, model.dense])
    network.build((None, 5))
    path = str(tmp_path / "model.weights.h5")
    network.save_weights(path)
    model.dense.kernel.assign(tf.zeros([8, 16]))
    network.load_weights(path)
    assert model.values() == whole.values()
