# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models whose updates have to have the bits of stock ones over many steps.

Biases begin as zeros, as Keras has them: in a large weight, the last bit of what is subtracted
would not be seen. What one weight's update changes, the gradients of all others follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

STEPS = 40
WIDTH, BATCH = 10, 16  # of the inputs
_TABLES, _ROWS, _DIM = 3, 40, 16
# Around what fills registers and blocks; and one of several of a vector's threads.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 257, 511, 512, 513, 1025, 4096, 4097)
_Loss = Callable[[Any, Any], Any]


def numbers(seed: int) -> tuple[Any, Any]:
    """Inputs, and what is wanted of them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal([BATCH, WIDTH]).astype("float32")
    return tf.constant(x), tf.constant(x.sum(axis=1, keepdims=True))


class Training:
    """A model, its optimizer, and a step of both.

    Attributes:
      weights: of the model.
      optimizer: with its state made, if it can make it before.
      step: a `tf.function` of inputs and targets that returns the loss.
    """

    def __init__(
        self, strategy: Any, model: str, make: Callable[[], Any], sizes: Sequence[int] = SIZES
    ):
        """Makes everything anew, with the same numbers each time.

        Args:
          strategy: has the variables.
          model: "dlrm", embeddings multiplied by each other (Naumov et al., 2019), or one of
            perceptrons: "biases", or "pieces", which has only biases and few operations for each.
          make: makes the optimizer.
          sizes: of the biases, but those of "dlrm".
        """
        with strategy.scope():
            if model == "dlrm":
                self.weights, loss_of = _dlrm()
            else:
                self.weights, loss_of = {"biases": _biases, "pieces": _pieces}[model](sizes)
            self.optimizer = make()
            if hasattr(self.optimizer, "build"):
                self.optimizer.build(self.weights)

        def replica(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(x, y)
            gradients = tape.gradient(loss, self.weights)
            self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))
            return loss

        self.step = tf.function(lambda x, y: strategy.run(replica, args=(x, y)), autograph=False)


def _layers(widths: Sequence[tuple[int, int]], rng: Any) -> list[tuple[Any, Any]]:
    """A kernel and a bias of each layer."""
    return [
        (
            tf.Variable((rng.standard_normal([a, b]) / a**0.5).astype("float32")),
            tf.Variable(tf.zeros([b])),
        )
        for a, b in widths
    ]


def _of(layer: tuple[Any, Any], x: Any) -> Any:
    return tf.nn.bias_add(tf.matmul(x, layer[0]), layer[1])


def _dlrm() -> tuple[list[Any], _Loss]:
    rng = np.random.default_rng(7)
    pairs = (_TABLES + 1) ** 2
    layers = _layers([(WIDTH, 32), (32, _DIM), (_DIM + pairs, 32), (32, 16), (16, 1)], rng)
    tables = [
        tf.Variable((rng.standard_normal([_ROWS, _DIM]) * 0.05).astype("float32"))
        for _ in range(_TABLES)
    ]

    def loss(x: Any, y: Any) -> Any:
        # (Some rows more than once.)
        rows = tf.cast(tf.abs(x[:, :_TABLES]) * 997.0, tf.int32) % _ROWS
        bottom = tf.nn.relu(_of(layers[1], tf.nn.relu(_of(layers[0], x))))
        found = [tf.gather(table, rows[:, i]) for i, table in enumerate(tables)]
        vectors = tf.stack([bottom, *found], axis=1)
        products = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), [BATCH, pairs])
        top = tf.concat([bottom, products], axis=1)
        for layer in layers[2:4]:
            top = tf.nn.relu(_of(layer, top))
        labels = tf.cast(y > 0.0, tf.float32)
        logits = _of(layers[4], top)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))

    return [*(weight for layer in layers for weight in layer), *tables], loss


def _biases(sizes: Sequence[int]) -> tuple[list[Any], _Loss]:
    rng = np.random.default_rng(7)
    layers = _layers([(WIDTH, size) for size in sizes], rng)
    (last,) = _layers([(len(sizes), 1)], rng)

    def loss(x: Any, y: Any) -> Any:
        means = [tf.reduce_mean(tf.tanh(_of(one, x)), axis=1, keepdims=True) for one in layers]
        return tf.reduce_mean((_of(last, tf.concat(means, axis=1)) - y) ** 2)

    return [weight for layer in [*layers, last] for weight in layer], loss


def _pieces(sizes: Sequence[int]) -> tuple[list[Any], _Loss]:
    """A layer whose bias is in pieces; each element has an input, a weight and a target."""
    rng = np.random.default_rng(7)
    total = sum(sizes)
    kernel, wanted = (tf.constant(rng.standard_normal(total).astype("float32")) for _ in "kw")
    biases = [tf.Variable(tf.zeros([size])) for size in sizes]

    def loss(x: Any, y: Any) -> Any:
        numbers = tf.concat([tf.reshape(x, [-1]), tf.reshape(y, [-1])], axis=0)
        inputs = tf.tile(numbers, [-(-total // numbers.shape[0])])[:total]
        outputs = tf.tanh(inputs * kernel + tf.concat(biases, axis=0))
        return tf.reduce_sum((outputs - wanted) ** 2)

    return biases, loss
