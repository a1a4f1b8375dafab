# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training steps whose plans `benchmarks/layout` runs, with the hand-made layouts of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Model:
    """A training step.

    Attributes:
      name: with sizes.
      step: a function of the arguments; a loss.
      loss_of: the same without an update.
      args: arrays.
      variables: of the step.
      dimensions: names of dimensions of some tensors.
      rules: the hand-made layouts, for a mesh with axes x and y.
    """

    name: str
    step: Any
    loss_of: Any
    args: tuple[np.ndarray, ...]
    variables: Sequence[Any]
    dimensions: Mapping[str, Sequence[str | None]]
    rules: Sequence[str]

    @property
    def specs(self) -> list[Any]:
        """Of the arguments."""
        return [tf.TensorSpec(one.shape, one.dtype) for one in self.args]


def two_layers(batch: int, io: int, hidden: int, make_variable: Any = tf.Variable) -> Model:
    """Mesh-TensorFlow's example: y = relu(x w) v, and its gradients."""
    w, v = _variables({"w": (io, hidden), "v": (hidden, io)}, make_variable)

    def loss_of(x: Any, target: Any) -> Any:
        return tf.reduce_mean(tf.square(tf.nn.relu(x @ w) @ v - target))

    shape = (batch, io)
    return Model(
        f"two layers {batch}x{io}x{hidden}",
        _step(loss_of, [w, v]),
        loss_of,
        (_values(1, shape), _values(2, shape)),
        (w, v),
        {"x": ["batch", "io"], "w": ["io", "hidden"]},
        ("batch:x", "hidden:x", "batch:x;hidden:y", "batch:y;hidden:x"),
    )


def transformer(
    batch: int, length: int, width: int, heads: int = 4, make_variable: Any = tf.Variable
) -> Model:
    """Return an embedding, a block with self-attention and two layers, and a vocabulary."""
    vocabulary, inner = 4 * width, 4 * width
    names = ("table", "query", "key", "value", "merge", "up", "down", "out")
    split = (width, heads, width // heads)
    shapes = dict.fromkeys(("query", "key", "value"), split) | {
        "table": (vocabulary, width), "merge": (*split[1:], width), "up": (width, inner),
        "down": (inner, width), "out": (width, vocabulary),
    }  # fmt: skip
    made = _variables({name: shapes[name] for name in names}, make_variable)
    weights = dict(zip(names, made, strict=True))

    def loss_of(ids: Any, labels: Any) -> Any:
        x = tf.gather(weights["table"], ids)
        q, k, v = (tf.einsum("bsd,dhk->bhsk", x, weights[one]) for one in names[1:4])
        scores = tf.nn.softmax(tf.einsum("bhsk,bhtk->bhst", q, k))
        mixed = tf.einsum("bhst,bhtk->bhsk", scores, v)
        x += tf.einsum("bhsk,hkd->bsd", mixed, weights["merge"])
        layer = tf.nn.relu(tf.einsum("bsd,df->bsf", x, weights["up"]))
        x += tf.einsum("bsf,fd->bsd", layer, weights["down"])
        logits = tf.reshape(tf.einsum("bsd,dv->bsv", x, weights["out"]), [-1, vocabulary])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_mean(losses)

    rng = np.random.default_rng(3)
    on_one = "vocabulary:{0};d_ff:{0};heads:{0}"
    both = "batch:{1};tokens:{1};" + on_one
    return Model(
        f"transformer block {batch}x{length}x{width}",
        _step(loss_of, list(weights.values())),
        loss_of,
        (
            rng.integers(0, vocabulary, (batch, length)).astype(np.int32),
            rng.integers(0, vocabulary, batch * length).astype(np.int32),
        ),
        tuple(weights.values()),
        {
            "x": ["batch", None], "y": ["tokens"], "table": ["vocabulary", None],
            **dict.fromkeys(names[1:4], (None, "heads", None)),
            "up": [None, "d_ff"], "out": [None, "vocabulary"],
        },
        ("batch:x;tokens:x", on_one.format("x"), both.format("x", "y"), both.format("y", "x")),
    )  # fmt: skip


def _variables(shapes: Mapping[str, Sequence[int]], make_variable: Any) -> list[Any]:
    return [
        make_variable(_values(i, shape) / np.sqrt(shape[0]).astype(np.float32), name=name)
        for i, (name, shape) in enumerate(shapes.items())
    ]


def _values(seed: int, shape: Sequence[int]) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _step(loss_of: Any, variables: Sequence[Any]) -> Any:
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
        for one, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            one.assign_sub(RATE * tf.convert_to_tensor(gradient))
        return loss

    return step
