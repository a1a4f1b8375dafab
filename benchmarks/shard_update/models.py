# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `run.py` trains: shapes, first values and batches. NumPy alone is needed.

The models are those of Xu et al. (2020), table 1, scaled to a machine of a few cores, and a plain
stack of layers. All frameworks begin with the same weights and take the same batches.

* mlp: `layers` dense layers of `width` units.
* transformer: the blocks of a decoder, half as wide as the paper's (512, feed-forward 2048), 2 of
  them, and a vocabulary of 8192.
* ncf: NeuMF, with the layers of MLPerf's; a quarter of MovieLens-20M's users and items.
* resnet: ResNet-50 with one block in each of its four stages, on images of 32x32.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MODELS = ("mlp", "transformer", "ncf", "resnet")
# Batches of a rank; steps take them in turn. With few, all would soon be learned by heart.
BATCHES = 32
# Of each replica, and what makes up a model; `--size NAME=VALUE` changes one.
SIZES: Mapping[str, Mapping[str, int]] = {
    "mlp": {"batch": 16, "layers": 4, "width": 2048},
    "transformer": {
        "batch": 2,
        "blocks": 2,
        "heads": 8,
        "length": 32,
        "vocabulary": 8192,
        "width": 512,
    },
    "ncf": {"batch": 1024, "items": 6686, "users": 34623, "width": 64},
    "resnet": {"batch": 4, "classes": 1000, "image": 32, "width": 64},
}
# By name: the class in keras.optimizers, and what it gets besides the learning rate.
OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "adadelta": ("Adadelta", {}),
    "adafactor": ("Adafactor", {}),
    "adagrad": ("Adagrad", {}),
    "adam": ("Adam", {}),
    "adamax": ("Adamax", {}),
    "adamw": ("AdamW", {}),
    "ftrl": ("Ftrl", {}),
    "lamb": ("Lamb", {}),
    "lion": ("Lion", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "muon": ("Muon", {}),
    "nadam": ("Nadam", {}),
    "rmsprop": ("RMSprop", {}),
    "sgd": ("SGD", {}),
}
# The same in torch.optim, with Keras's numbers; fused where PyTorch has that on CPU.
TORCH_OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "adadelta": ("Adadelta", {"rho": 0.95, "eps": 1e-7}),
    "adagrad": ("Adagrad", {"initial_accumulator_value": 0.1, "eps": 1e-7, "fused": True}),
    "adam": ("Adam", {"eps": 1e-7, "fused": True}),
    "adamax": ("Adamax", {"eps": 1e-7}),
    "adamw": ("AdamW", {"eps": 1e-7, "weight_decay": 0.004, "fused": True}),
    "momentum": ("SGD", {"momentum": 0.9, "fused": True}),
    "nadam": ("NAdam", {"eps": 1e-7}),
    "rmsprop": ("RMSprop", {"alpha": 0.9, "eps": 1e-7}),
    "sgd": ("SGD", {"fused": True}),
}
STAGES = 4
EXPANSION = 4  # of a bottleneck: how much wider its output is
FEED_FORWARD = 4  # how much wider the inner layer of a transformer's block is
_SEED = 20


@dataclasses.dataclass(frozen=True)
class Weight:
    """One variable.

    Attributes:
      shape: of it.
      scale: standard deviation of its first values; 0 for one constant.
      constant: what they are around.
    """

    shape: Sequence[int]
    scale: float = 0.0
    constant: float = 0.0


def weights(model: str, sizes: Mapping[str, int]) -> list[Weight]:
    """Return the trainable variables of a model, in the order of its layers."""
    return {"mlp": _mlp, "transformer": _transformer, "ncf": _ncf, "resnet": _resnet}[model](sizes)


def first_values(model: str, sizes: Mapping[str, int]) -> list[np.ndarray]:
    """Return what the variables of a model are before the first step; the same on all ranks."""
    return [
        np.float32(weight.constant)
        + np.float32(weight.scale)
        * np.random.default_rng([_SEED, at]).standard_normal(weight.shape, np.float32)
        for at, weight in enumerate(weights(model, sizes))
    ]


def batches(model: str, sizes: Mapping[str, int], rank: int) -> list[tuple[np.ndarray, ...]]:
    """Return the batches of one rank: inputs, and last the targets."""
    rng = np.random.default_rng([_SEED, rank])
    return [_batch(model, sizes, rng) for _ in range(BATCHES)]


def parameter_count(model: str, sizes: Mapping[str, int]) -> int:
    """Elements of all trainable variables."""
    return sum(math.prod(weight.shape) for weight in weights(model, sizes))


def _batch(
    model: str, sizes: Mapping[str, int], rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    batch = sizes["batch"]

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal([batch, *shape], np.float32)

    def below(limit: int, *shape: int) -> np.ndarray:
        return rng.integers(0, limit, [batch, *shape], np.int32)

    if model == "mlp":
        return normal(sizes["width"]), normal(sizes["width"])
    if model == "transformer":
        text = below(sizes["vocabulary"], sizes["length"] + 1)
        return np.ascontiguousarray(text[:, :-1]), np.ascontiguousarray(text[:, 1:])
    if model == "ncf":
        return below(sizes["users"]), below(sizes["items"]), below(2).astype(np.float32)
    return normal(sizes["image"], sizes["image"], 3), below(sizes["classes"])


def _kernel(*shape: int, inputs: int | None = None) -> Weight:
    return Weight(shape, (inputs or math.prod(shape[:-1])) ** -0.5)


def _zeros(*shape: int) -> Weight:
    return Weight(shape)


def _dense(inputs: int, units: int) -> list[Weight]:
    return [_kernel(inputs, units), _zeros(units)]


def _norm(units: int) -> list[Weight]:
    return [Weight([units], constant=1.0), _zeros(units)]


def _mlp(sizes: Mapping[str, int]) -> list[Weight]:
    return _dense(sizes["width"], sizes["width"]) * sizes["layers"]


def _transformer(sizes: Mapping[str, int]) -> list[Weight]:
    width, heads, words = sizes["width"], sizes["heads"], sizes["vocabulary"]
    each = width // heads
    projection = [_kernel(width, heads, each, inputs=width), _zeros(heads, each)]
    block = [
        *_norm(width),
        *(projection * 3),
        _kernel(heads, each, width),
        _zeros(width),
        *_norm(width),
        *_dense(width, FEED_FORWARD * width),
        *_dense(FEED_FORWARD * width, width),
    ]
    return [
        Weight([words, width], 1.0),
        *(block * sizes["blocks"]),
        *_norm(width),
        *_dense(width, words),
    ]


def ncf_units(width: int) -> list[int]:
    """Units of the dense layers of NeuMF; tables of the first have as many together."""
    return [4 * width, 2 * width, width]


def _ncf(sizes: Mapping[str, int]) -> list[Weight]:
    width = sizes["width"]
    tables = [
        Weight([sizes[kind], columns], 0.1)
        for columns in (width, 2 * width)
        for kind in ("users", "items")
    ]
    inputs, dense = 4 * width, []
    for units in ncf_units(width):
        dense += _dense(inputs, units)
        inputs = units
    return [*tables, *dense, *_dense(2 * width, 1)]


def _resnet(sizes: Mapping[str, int]) -> list[Weight]:
    def conv(side: int, inputs: int, outputs: int) -> list[Weight]:
        return [_kernel(side, side, inputs, outputs), *_norm(outputs)]

    inputs = sizes["width"]
    made = conv(3, 3, inputs)
    for stage in range(STAGES):
        inner = sizes["width"] << stage
        outer = EXPANSION * inner
        made += conv(1, inputs, outer)  # the shortcut
        made += [*conv(1, inputs, inner), *conv(3, inner, inner), *conv(1, inner, outer)]
        inputs = outer
    return [*made, *_dense(inputs, sizes["classes"])]


def sizes_of(model: str, given: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of a model, with those that a caller gives in place of the usual ones.

    Raises:
      ValueError: the model has no such size, or it cannot be that.
    """
    known = SIZES[model]
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"{model} has no size {name!r}; it has {', '.join(sorted(known))}")
        if value < 1:
            raise ValueError(f"{model}: {name} must be at least 1, got {value}")
    sizes = {**known, **given}
    if model == "transformer" and sizes["width"] % sizes["heads"]:
        raise ValueError(
            f"transformer: width {sizes['width']} is no multiple of heads {sizes['heads']}"
        )
    return sizes
