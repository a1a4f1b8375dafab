# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The models of `models.py` in PyTorch, with the variables of those in Keras."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as nn

from benchmarks.shard_update import models

_EPSILON = 1e-3  # of Keras's normalizations
_MOMENTUM = 0.01  # of its moving averages, as PyTorch counts it

Sizes = Mapping[str, int]
Take = Callable[[], torch.Tensor]


class Net(torch.nn.Module):
    """A model whose parameters are those of Keras, in the same order."""

    def __init__(self, name: str, sizes: Sizes, values: Sequence[np.ndarray]):
        """Make it.

        Args:
          name: of the model.
          sizes: of it.
          values: what its variables are at first, in Keras's order and shapes.
        """
        super().__init__()
        self._name, self._sizes = name, sizes
        self.weights = torch.nn.ParameterList(_native(value) for value in values)
        # Where a batch is normalized, the averages that Keras keeps beside it.
        scales = [v for v in values if v.ndim == 1][::2] if name == "resnet" else []
        for at, scale in enumerate(scales):
            self.register_buffer(f"mean_{at}", torch.zeros(len(scale)))
            self.register_buffer(f"variance_{at}", torch.ones(len(scale)))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the model's output, in training."""
        take = iter(self.weights).__next__
        if self._name == "resnet":
            return _resnet(self._sizes, take, iter(self.buffers()).__next__, *inputs)
        forward = {"mlp": _mlp, "transformer": _transformer, "ncf": _ncf}[self._name]
        return forward(self._sizes, take, *inputs)


def loss_of(name: str, net: torch.nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mean loss of a batch."""
    *inputs, target = batch
    output = net(*inputs)
    if name == "mlp":
        return nn.mse_loss(output, target)
    if name == "ncf":
        return nn.binary_cross_entropy_with_logits(output[:, 0], target)
    return nn.cross_entropy(output.flatten(0, -2), target.flatten().long())


def _native(value: np.ndarray) -> torch.nn.Parameter:
    tensor = torch.from_numpy(value)
    # A convolution has its kernel's sides last.
    return torch.nn.Parameter(
        tensor.permute(3, 2, 0, 1).contiguous() if value.ndim == 4 else tensor
    )


def _dense(take: Take, x: torch.Tensor) -> torch.Tensor:
    kernel, bias = take(), take()
    return torch.matmul(x, kernel) + bias if x.dim() > 2 else torch.addmm(bias, x, kernel)


def _mlp(sizes: Sizes, take: Take, x: torch.Tensor) -> torch.Tensor:
    for _ in range(sizes["layers"] - 1):
        x = nn.relu(_dense(take, x))
    return _dense(take, x)


def _layer_norm(take: Take, x: torch.Tensor) -> torch.Tensor:
    return nn.layer_norm(x, x.shape[-1:], take(), take(), _EPSILON)


def _attention(take: Take, x: torch.Tensor) -> torch.Tensor:
    def project() -> torch.Tensor:
        kernel, bias = take(), take()
        flat = torch.matmul(x, kernel.flatten(1)) + bias.flatten()
        return flat.unflatten(-1, bias.shape).transpose(1, 2)

    query, key, value = project(), project(), project()
    mixed = nn.scaled_dot_product_attention(query, key, value, is_causal=True)
    kernel, bias = take(), take()
    return torch.matmul(mixed.transpose(1, 2).flatten(2), kernel.flatten(0, 1)) + bias


def _transformer(sizes: Sizes, take: Take, tokens: torch.Tensor) -> torch.Tensor:
    x = nn.embedding(tokens, take())
    for _ in range(sizes["blocks"]):
        x = x + _attention(take, _layer_norm(take, x))
        y = nn.relu(_dense(take, _layer_norm(take, x)))
        x = x + _dense(take, y)
    return _dense(take, _layer_norm(take, x))


def _ncf(sizes: Sizes, take: Take, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
    product = nn.embedding(user, take()) * nn.embedding(item, take())
    x = torch.cat([nn.embedding(user, take()), nn.embedding(item, take())], -1)
    for _ in models.ncf_units(sizes["width"]):
        x = nn.relu(_dense(take, x))
    return _dense(take, torch.cat([product, x], -1))


def _resnet(sizes: Sizes, take: Take, average: Take, images: torch.Tensor) -> torch.Tensor:
    def conv(x: torch.Tensor, stride: int = 1) -> torch.Tensor:
        kernel = take()
        x = nn.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        mean, variance = average(), average()
        return nn.batch_norm(x, mean, variance, take(), take(), True, _MOMENTUM, _EPSILON)

    x = nn.relu(conv(images.permute(0, 3, 1, 2)))
    for _ in range(models.STAGES):
        shortcut = conv(x, 2)
        y = nn.relu(conv(x, 2))
        y = nn.relu(conv(y))
        x = nn.relu(shortcut + conv(y))
    return _dense(take, x.mean((2, 3)))
