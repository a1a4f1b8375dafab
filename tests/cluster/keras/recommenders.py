# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recommendation models for the tests of `fit`; only the coordinator of a test imports this."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.cluster.keras.fit_case import ROWS, Case, floats, ids

_VOCABULARY = 50


def _clicks(data: np.ndarray) -> np.ndarray:
    return (data.reshape(ROWS, -1).sum(1) % 2).astype(np.float32)


def wide_and_deep() -> Case:
    """Lookups of texts, an embedding, two inputs by name, a dataset, class weights."""
    words = keras.Input([3], name="words", dtype="string")
    numbers = keras.Input([4], name="numbers")
    lookup = layers.StringLookup(vocabulary=[f"w{i}" for i in range(_VOCABULARY)])
    deep = layers.Flatten()(layers.Embedding(_VOCABULARY + 1, 5)(lookup(words)))
    deep = layers.Dense(8, "relu")(layers.Concatenate()([deep, numbers]))
    both = layers.Concatenate()([deep, layers.Dense(1)(numbers)])
    model = keras.Model([words, numbers], layers.Dense(1, "sigmoid")(both))
    model.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy", metrics=["AUC"])
    found = ids(_VOCABULARY, ROWS, 3)
    texts = tf.constant([[f"w{i}" for i in row] for row in found])
    x = {"words": texts, "numbers": tf.constant(floats(ROWS, 4))}
    return Case(model, x, _clicks(found), class_weight={0: 0.5, 1: 2.0}, feed="dataset")


def _categories(count: int) -> tuple[Any, Any]:
    """Return inputs of categories and of numbers."""
    return keras.Input([count], name="ids", dtype="int64"), keras.Input([4], name="numbers")


def _clicked(model: keras.Model, optimizer: Any, count: int) -> Case:
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    found = ids(_VOCABULARY, ROWS, count)
    return Case(model, {"ids": found, "numbers": floats(ROWS, 4)}, _clicks(found))


def dlrm() -> Case:
    """Tables and a bottom network, dot products of all pairs, a top network."""
    categories, numbers = _categories(3)
    tables = [layers.Embedding(_VOCABULARY, 4) for _ in range(3)]
    vectors = [table(categories[:, i]) for i, table in enumerate(tables)]
    bottom = layers.Dense(4, "relu")(layers.Dense(8, "relu")(numbers))
    every = [*vectors, bottom]
    dots = [layers.Dot(1)([a, b]) for i, a in enumerate(every) for b in every[:i]]
    top = layers.Dense(8, "relu")(layers.Concatenate()([bottom, *dots]))
    model = keras.Model([categories, numbers], layers.Dense(1, "sigmoid")(top))
    return _clicked(model, keras.optimizers.SGD(0.1), 3)


def deepfm() -> Case:
    """Weights of single features, pairs by a factorization, and a network, added."""
    categories, numbers = _categories(4)
    vectors = layers.Embedding(_VOCABULARY, 5, embeddings_regularizer="l2")(categories)
    single = layers.Flatten()(layers.Embedding(_VOCABULARY, 1)(categories))
    sums = keras.ops.square(keras.ops.sum(vectors, axis=1))
    pairs = 0.5 * keras.ops.sum(sums - keras.ops.sum(keras.ops.square(vectors), axis=1), axis=1)
    deep = layers.Concatenate()([layers.Flatten()(vectors), numbers])
    deep = layers.Dense(1)(layers.Dense(8, "relu")(deep))
    wide = keras.ops.sum(single, axis=1, keepdims=True)
    logit = deep + wide + keras.ops.expand_dims(pairs, 1)
    model = keras.Model([categories, numbers], layers.Activation("sigmoid")(logit))
    return _clicked(model, keras.optimizers.Ftrl(0.05), 4)


def din() -> Case:
    """Attention of a candidate to a masked history of items from the same table."""
    history = keras.Input([6], name="history", dtype="int64")
    candidate = keras.Input([], name="candidate", dtype="int64")
    table = layers.Embedding(_VOCABULARY, 4)
    past, wanted = table(history), keras.ops.expand_dims(table(candidate), 1)
    wanted = keras.ops.repeat(wanted, 6, axis=1)
    pairs = layers.Concatenate()([past, wanted, past - wanted, past * wanted])
    scores = layers.Dense(1)(layers.Dense(6, "sigmoid")(pairs))[..., 0]
    scores = keras.ops.where(history > 0, scores, -1e9)
    interest = keras.ops.einsum("bt,btd->bd", keras.ops.softmax(scores), past)
    both = layers.Concatenate()([interest, wanted[:, 0]])
    hidden = layers.PReLU()(layers.Dense(8)(both))
    model = keras.Model([history, candidate], layers.Dense(1, "sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["AUC"])
    found = ids(_VOCABULARY, ROWS, 7)
    found[:, 3:6] *= found[:, 3:6] > _VOCABULARY // 2
    x = {"history": found[:, :6], "candidate": found[:, 6]}
    return Case(model, x, _clicks(found), feed="dataset")


def mmoe() -> Case:
    """Experts shared by two tasks with losses, metrics and sample weights of their own."""
    x = keras.Input([6])
    experts = keras.ops.stack([layers.Dense(5, "relu")(x) for _ in range(3)], axis=1)

    def task(name: str) -> Any:
        gate = layers.Dense(3, "softmax")(x)
        mixed = keras.ops.sum(keras.ops.expand_dims(gate, 2) * experts, axis=1)
        return layers.Dense(1, name=name)(layers.Dense(4, "tanh")(mixed))

    model = keras.Model(x, {name: task(name) for name in ("first", "second")})
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        {"first": "mse", "second": "mae"},
        loss_weights={"first": 0.5, "second": 2.0},
        weighted_metrics={"first": ["mae"], "second": ["mse"]},
    )
    data = floats(ROWS, 6)
    weight = np.linspace(0.0, 2.0, ROWS, dtype=np.float32)
    y = {"first": data.sum(1), "second": data.max(1)}
    return Case(model, data, y, {"first": weight, "second": weight[::-1].copy()})


def two_towers() -> Case:
    """A tower of users and one of items, their dot product, sample weights."""
    inputs = {name: keras.Input([2], name=name, dtype="int64") for name in ("user", "item")}

    def tower(name: str) -> Any:
        vectors = layers.Flatten()(layers.Embedding(_VOCABULARY, 4)(inputs[name]))
        return layers.UnitNormalization()(layers.Dense(5)(layers.Dense(8, "relu")(vectors)))

    out = 3.0 * layers.Dot(1)([tower("user"), tower("item")])
    model = keras.Model(inputs, out)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Nadam(0.01), loss, weighted_metrics=["mse"])
    found = ids(_VOCABULARY, ROWS, 4)
    x = {"user": found[:, :2], "item": found[:, 2:]}
    return Case(model, x, _clicks(found), np.linspace(0.1, 3.0, ROWS, dtype=np.float32))
