# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models as training steps and forward passes, with small meshes to plan them for."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tf_fuse.layout import Link, Mesh, to_sbp

LINE = Mesh({"x": 2})
GRID = Mesh({"rows": 2, "cols": 2})
# Fast enough that something is split.
FAST = Link(1e-9, 1e-11)


def variable(name: str, *shape: int) -> tf.Variable:
    values = np.random.default_rng(len(name)).normal(size=shape)
    return tf.Variable(values.astype(np.float32), name=name)


def two_layers(batch=8, io=16, hidden=32):
    """Mesh-TensorFlow's example, as a training step of plain descent."""
    w, v = variable("w", io, hidden), variable("v", hidden, io)

    def forward(x):
        return tf.matmul(tf.nn.relu(tf.matmul(x, w)), v)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(forward(x) - y))
        for one, gradient in zip((w, v), tape.gradient(loss, [w, v]), strict=True):
            one.assign_sub(0.1 * gradient)
        return loss

    x = tf.TensorSpec([batch, io])
    return forward, step, [x, x]


def wide_and_deep():
    """An embedding and two layers, beside a wide one."""
    table, wide = variable("table", 64, 8), variable("wide", 16, 4)
    w, v = variable("w", 24, 32), variable("v", 32, 4)
    everything = [table, wide, w, v]

    def step(ids, x, labels):
        with tf.GradientTape() as tape:
            rows = tf.reshape(tf.nn.embedding_lookup(table, ids), [8, 24])
            logits = tf.matmul(tf.nn.relu(tf.matmul(rows, w)), v) + tf.matmul(x, wide)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        for one, gradient in zip(everything, tape.gradient(loss, everything), strict=True):
            one.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return loss

    return step, [
        tf.TensorSpec([8, 3], tf.int32), tf.TensorSpec([8, 16]), tf.TensorSpec([8], tf.int32),
    ]  # fmt: skip


def transformer():
    """A block: attention and two layers, from row numbers to the loss."""
    vocab, model, heads, depth, ff, batch, seq = 32, 16, 2, 8, 32, 4, 6
    shapes = {
        "table": (vocab, model), "wo": (heads, depth, model), "w1": (model, ff),
        "w2": (ff, model), "out": (model, vocab),
        **dict.fromkeys(["wq", "wk", "wv"], (model, heads, depth)),
    }  # fmt: skip
    p = {name: variable(name, *shape) for name, shape in shapes.items()}

    def forward(ids):
        x = tf.gather(p["table"], ids)
        q, k, v = (tf.einsum("bsd,dhk->bhsk", x, p[name]) for name in ("wq", "wk", "wv"))
        scores = tf.nn.softmax(tf.einsum("bhsk,bhtk->bhst", q, k) / depth**0.5)
        mixed = tf.einsum("bhst,bhtk->bhsk", scores, v)
        x += tf.einsum("bhsk,hkd->bsd", mixed, p["wo"])
        x += tf.matmul(tf.nn.relu(tf.matmul(x, p["w1"])), p["w2"])
        return tf.matmul(x, p["out"])

    def step(ids, labels):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, forward(ids))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, list(p.values()))
        for one, gradient in zip(p.values(), gradients, strict=True):
            one.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return loss

    ids = tf.TensorSpec([batch, seq], tf.int32)
    return forward, step, [ids, ids]


def sbp(layouts) -> dict[str, str]:
    return {name: " ".join(to_sbp(one)) for name, one in layouts.items()}
