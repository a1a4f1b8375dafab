# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The models of benchmarks/layout/search.py, as operations or as training steps.

MLPs and Transformers are written as operations; a wide and deep model (Cheng et al., 2016) and
ResNet-50 (He et al., 2016) are Keras models that are traced. All are forward passes up to a loss or
to logits: a search for training counts the gradient of each operation. A Transformer is a
training step, too, whose gradients and updates are traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_fuse.layout.types.operation import Operation, Tensor


def mlp(layers: int, batch: int = 1024, width: int = 2048) -> list[Operation]:
    """Dense layers with a bias and a ReLU, and the mean of squares as the loss."""
    found = _Graph()
    x = found.fed("x", (batch, width))
    for i in range(layers):
        with_bias = found.dense(f"l{i}", x, width)
        x = found.make(f"l{i}.relu", "Relu", [with_bias], (batch, width))
    found.loss(x)
    return found.operations


def transformer(
    layers: int, batch: int = 32, length: int = 128, width: int = 512, heads: int = 8
) -> list[Operation]:
    """Blocks of attention and of two dense layers, each with layer norm and a residual."""
    found = _Graph()
    x = found.fed("x", (batch, length, width))
    size = width // heads
    for i in range(layers):
        name = f"b{i}"
        normed = found.norm(f"{name}.norm1", x)
        projections = [
            found.einsum(f"{name}.{part}", "blm,mhd->bhld", normed, (width, heads, size),
                         (batch, heads, length, size))
            for part in "qkv"
        ]  # fmt: skip
        scores = found.make(
            f"{name}.scores", "BatchMatMulV2", projections[:2], (batch, heads, length, length),
            adj_y=True,
        )  # fmt: skip
        weights = found.make(f"{name}.softmax", "Softmax", [scores], scores.shape)
        mixed = found.make(
            f"{name}.mix", "BatchMatMulV2", [weights, projections[2]], projections[2].shape
        )
        joined = found.einsum(f"{name}.out", "bhld,hdm->blm", mixed, (heads, size, width), x.shape)
        x = found.make(f"{name}.add1", "AddV2", [x, joined], x.shape)
        normed = found.norm(f"{name}.norm2", x)
        wide = (batch, length, 4 * width)
        up = found.einsum(f"{name}.up", "blm,mf->blf", normed, (width, 4 * width), wide)
        relu = found.make(f"{name}.relu", "Relu", [up], wide)
        down = found.einsum(f"{name}.down", "blf,fm->blm", relu, (4 * width, width), x.shape)
        x = found.make(f"{name}.add2", "AddV2", [x, down], x.shape)
    found.loss(x)
    return found.operations


class _Graph:
    """Operations that are added one by one."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def fed(self, name: str, shape: Sequence[int]) -> Tensor:
        return Tensor(name, tuple(shape))

    def make(
        self,
        name: str,
        kind: str,
        inputs: Sequence[Tensor],
        shape: Sequence[int],
        **attributes: Any,
    ) -> Tensor:
        made = Tensor(name, tuple(shape))
        self.operations.append(Operation(name, kind, inputs, [made], attributes))
        return made

    def dense(self, name: str, x: Tensor, width: int) -> Tensor:
        weight = Tensor(f"{name}.w", (x.shape[-1], width), parameter=True)
        bias = Tensor(f"{name}.bias", (width,), parameter=True)
        shape = (*x.shape[:-1], width)
        product = self.make(f"{name}.matmul", "MatMul", [x, weight], shape)
        return self.make(f"{name}.add", "BiasAdd", [product, bias], shape)

    def einsum(
        self, name: str, equation: str, x: Tensor, weight: Sequence[int], shape: Sequence[int]
    ) -> Tensor:
        parameter = Tensor(f"{name}.w", tuple(weight), parameter=True)
        return self.make(name, "Einsum", [x, parameter], shape, equation=equation)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Layer norm: mean and variance of the last dimension, a scale and a bias."""
        rows = (*x.shape[:-1], 1)
        last = len(x.shape) - 1
        mean = self.make(f"{name}.mean", "Mean", [x], rows, axes=(last,), keep_dims=True)
        centred = self.make(f"{name}.centred", "Sub", [x, mean], x.shape)
        square = self.make(f"{name}.square", "Square", [centred], x.shape)
        variance = self.make(f"{name}.var", "Mean", [square], rows, axes=(last,), keep_dims=True)
        rsqrt = self.make(f"{name}.rsqrt", "Rsqrt", [variance], rows)
        scaled = self.make(f"{name}.scaled", "Mul", [centred, rsqrt], x.shape)
        gamma = Tensor(f"{name}.gamma", (x.shape[-1],), parameter=True)
        return self.make(f"{name}.gain", "Mul", [scaled, gamma], x.shape)

    def loss(self, x: Tensor) -> Tensor:
        square = self.make("square", "Square", [x], x.shape)
        axes = tuple(range(len(x.shape)))
        return self.make("loss", "Mean", [square], (), axes=axes, keep_dims=False)


def wide_and_deep(layers: int, batch: int = 1024, fields: int = 8) -> list[Operation]:
    """Embeddings of row numbers into dense layers, beside a linear model of the same rows.

    Args:
      layers: dense ones of the deep part.
      batch: examples.
      fields: of row numbers, each with a vocabulary of 65,536.
    """
    import tensorflow as tf

    from tf_fuse.layout.trace.function import trace

    keras = tf.keras
    vocabulary = 65536
    ids = [keras.Input((), batch, name=f"field{i}", dtype="int32") for i in range(fields)]
    numbers = keras.Input((64,), batch, name="numbers")
    deep = [keras.layers.Embedding(vocabulary, 64, name=f"deep{i}")(x) for i, x in enumerate(ids)]
    wide = [keras.layers.Embedding(vocabulary, 1, name=f"wide{i}")(x) for i, x in enumerate(ids)]
    x = keras.layers.Concatenate()([*deep, numbers])
    for _ in range(layers):
        x = keras.layers.Dense(1024, activation="relu")(x)
    logits = keras.layers.Add()([keras.layers.Dense(1)(x), *wide])
    model = keras.Model([*ids, numbers], logits)
    specs = [tf.TensorSpec(one.shape, one.dtype, one.name) for one in model.inputs]
    return list(trace(model, [specs]).operations)


def resnet50(layers: int, batch: int = 64) -> list[Operation]:
    """Keras's ResNet-50, of images of 224 x 224; it has its number of layers."""
    import tensorflow as tf

    from tf_fuse.layout.trace.function import trace

    model = tf.keras.applications.ResNet50(weights=None)
    return list(trace(model, [tf.TensorSpec([batch, 224, 224, 3])]).operations)


def transformer_step(
    layers: int, batch: int = 8, length: int = 64, width: int = 256, heads: int = 4
) -> tuple[Any, list[Any]]:
    """Return a training step of a Transformer with layer norm, from row numbers to the updates.

    Returns:
      A function, and what it takes.
    """
    import tensorflow as tf

    wide, split = 4 * width, (width, heads, width // heads)
    shapes = {
        **dict.fromkeys("qkv", split), "o": (*split[1:], width), "up": (width, wide),
        "up bias": (wide,), "down": (wide, width), "down bias": (width,),
        **dict.fromkeys(("scale 1", "shift 1", "scale 2", "shift 2"), (width,)),
    }  # fmt: skip
    table, out = tf.Variable(tf.zeros([wide, width])), tf.Variable(tf.zeros([width, wide]))
    blocks = [{one: tf.Variable(tf.zeros(shapes[one])) for one in shapes} for _ in range(layers)]
    weights = [table, out, *(one for block in blocks for one in block.values())]

    def norm(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
        return centred * tf.math.rsqrt(variance + 1e-6) * scale + shift

    def forward(ids: Any) -> Any:
        x = tf.gather(table, ids)
        for one in blocks:
            y = norm(x, one["scale 1"], one["shift 1"])
            q, k, v = (tf.einsum("bsd,dhk->bhsk", y, one[name]) for name in "qkv")
            scores = tf.nn.softmax(tf.einsum("bhsk,bhtk->bhst", q, k) / 8.0)
            x += tf.einsum("bhsk,hkd->bsd", tf.einsum("bhst,bhtk->bhsk", scores, v), one["o"])
            y = norm(x, one["scale 2"], one["shift 2"])
            y = tf.nn.relu(tf.einsum("bsd,df->bsf", y, one["up"]) + one["up bias"])
            x += tf.einsum("bsf,fd->bsd", y, one["down"]) + one["down bias"]
        return tf.einsum("bsd,dv->bsv", x, out)

    def step(ids: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, forward(ids))
            loss = tf.reduce_mean(losses)
        for one, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            one.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return loss

    return step, [tf.TensorSpec([batch, length], tf.int32)] * 2
