# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The models' written-out updates against automatic differentiation and NumPy, in one process."""

import numpy as np
import pytest
import tensorflow as tf

from examples import workload
from examples.features.model import Features
from examples.wide_deep.layers import Adagrad, Ftrl, Table
from examples.wide_deep.model import Column, WideDeep, WideDeepConfig


def test_features_step_is_sgd():
    config = Features(features=3, batch=8, rows=4, dim=2, learning_rate=0.5)
    program = config.build()
    element = next(iter(program.dataset(0, 1)))
    before = {name: tf.Variable(value) for name, value in workload.snapshot(program).items()}
    ids = tf.random.stateless_uniform([3, 8], element, maxval=4, dtype=tf.int32)
    labels = tf.cast(ids[0] < 2, tf.float32)[:, tf.newaxis]
    with tf.GradientTape() as tape:
        rows = [tf.gather(before[f"table_{f:04d}"], ids[f]) for f in range(3)]
        logits = tf.matmul(tf.concat(rows, axis=1), before["weights"])
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
    grads = tape.gradient(loss, before)
    assert float(program.step(element)) == float(loss)
    for name, after in workload.snapshot(program).items():
        expected = before[name].numpy() - 0.5 * tf.convert_to_tensor(grads[name]).numpy()
        np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-7)
        assert not np.array_equal(after, before[name].numpy())


def _shard(table: Table, sizes: list[int]) -> None:
    """Splits a table's only shard as ParameterServerStrategy's partitioner would."""
    for holder, key in [(table._shards, 0), *((table._slots[0], k) for k in table._slots[0])]:
        parts = [tf.Variable(v) for v in tf.split(holder[key].read_value(), sizes)]
        holder[key] = parts
    table._shards = table._shards[0]
    table._slots = [
        {k: parts[i] for k, parts in table._slots[0].items()} for i in range(len(sizes))
    ]


@pytest.mark.parametrize("sizes", [None, [3, 2, 2], [4, 3], [1] * 7])
def test_table_update_is_adagrad_on_summed_duplicates(sizes):
    rule = Adagrad(learning_rate=0.5, initial_accumulator=0.1, epsilon=0.0)
    table = Table("t", (7, 2), 0.5, 1, rule)
    start = table.variables()["t"].variables[0].numpy()
    if sizes:
        _shard(table, sizes)
    ids = tf.constant([6, 0, 6, 3, 2, 0, 6])
    unique, inverse = tf.unique(ids)
    rows, looked_up = table.lookup(unique, inverse)
    np.testing.assert_array_equal(rows, start[ids.numpy()])
    grad = np.arange(14, dtype=np.float32).reshape(7, 2) / 10
    table.apply(looked_up, tf.constant(grad))

    summed = np.zeros((7, 2), np.float32)
    np.add.at(summed, ids.numpy(), grad)
    touched = np.isin(np.arange(7), ids.numpy())[:, np.newaxis]
    accumulator = 0.1 + summed**2
    expected = np.where(touched, start - 0.5 * summed / np.sqrt(accumulator), start)
    found = {
        name: np.concatenate([shard.numpy() for shard in shards.variables])
        for name, shards in table.variables().items()
    }
    assert sorted(found) == ["t", "t/accumulator"]
    np.testing.assert_allclose(found["t"], expected, rtol=1e-6)
    np.testing.assert_allclose(
        found["t/accumulator"], np.where(touched, accumulator, 0.1), rtol=1e-6
    )


def test_wide_deep_gradients_match_automatic_differentiation():
    """Adagrad's accumulators grow by the squared gradient, so they show it for every variable."""
    config = WideDeepConfig(
        columns=(Column("a", 5, 3), Column("b", 4, 2), Column("axb", 6, 0)),
        numeric=2,
        hidden=(4,),
        wide=Adagrad(initial_accumulator=0.0),  # type: ignore[arg-type]
        deep=Adagrad(initial_accumulator=0.0),
    )
    model = WideDeep(config)
    label = tf.constant([0.0, 1.0, 1.0, 0.0])
    numeric = tf.constant([[0.1, -0.2], [0.3, 0.4], [-0.5, 0.6], [0.7, 0.8]])
    ids = tf.constant([[0, 1, 5], [4, 1, 0], [0, 3, 5], [2, 2, 2]])
    weights = {n: v.variables[0] for n, v in model.variables_by_name().items() if "accum" not in n}

    def loss_of(w: dict) -> tf.Tensor:
        columns = [("a", 0), ("b", 1), ("axb", 2)]
        wide = tf.add_n([tf.gather(w[f"wide/{n}"], ids[:, i]) for n, i in columns])
        rows = [tf.gather(w[f"deep/{n}"], ids[:, i]) for n, i in columns[:2]]
        deep = tf.concat([*rows, numeric], axis=1)
        hidden = tf.nn.relu(deep @ w["deep/layer_0/kernel"] + w["deep/layer_0/bias"])
        deep = hidden @ w["deep/layer_1/kernel"] + w["deep/layer_1/bias"]
        logits = deep + wide + w["wide/bias"] + numeric @ w["wide/numeric"]
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label[:, tf.newaxis], logits))

    with tf.GradientTape() as tape:
        expected = loss_of(weights)
    grads = tape.gradient(expected, weights)
    assert float(model.step(label, numeric, ids)) == pytest.approx(float(expected), rel=1e-6)
    for name, grad in grads.items():
        accumulator = model.variables_by_name()[f"{name}/accumulator"].variables[0]
        squared = tf.convert_to_tensor(grad).numpy() ** 2
        assert squared.any(), name
        np.testing.assert_allclose(accumulator, squared, rtol=1e-4, atol=1e-9, err_msg=name)


def test_ftrl_has_two_slots_beside_its_variable():
    table = Table("w", (3, 1), 0.0, 1, Ftrl())
    assert sorted(table.variables()) == ["w", "w/accumulator", "w/linear"]


def test_initial_values_depend_on_name_and_seed_only():
    first = workload.initial_values("a", (3, 2), 0.5, 1)
    np.testing.assert_array_equal(first, workload.initial_values("a", (3, 2), 0.5, 1))
    assert not np.array_equal(first, workload.initial_values("b", (3, 2), 0.5, 1))
    assert not np.array_equal(first, workload.initial_values("a", (3, 2), 0.5, 2))
    assert np.abs(first).max() < 0.5
    assert not workload.initial_values("a", (3,), 0.0, 1).any()
