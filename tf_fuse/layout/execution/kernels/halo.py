# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compute convolutions, pooling and their gradients on slices whose height or width is split.

A device gets the rows of its neighbours that it needs, and runs TensorFlow's operation on its own
rows with these. The operation's padding is explicit then: at the image's border as without a plan,
and none where a neighbour is. Gradients of an input are computed from the gradients of all windows
over the device's own rows, so that each is a sum in one place, as on one device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_fuse.layout.execution.kernels.local_operation import LocalOperation
from tf_fuse.layout.operators import rule_of
from tf_fuse.layout.operators.halo import ROWS, WINDOWS, Part, Windows, parts_of


class Neighbours(NamedTuple):
    """What a kernel yields to get rows of its neighbours.

    It gets those of the device before it and those of the one after it, or None for no rows.

    Attributes:
      factor: of the rows.
      dimension: of the tensor.
      tensor: that all devices of the group have a part of.
    """

    factor: str
    dimension: int
    tensor: Any


@dataclasses.dataclass(frozen=True)
class _Side:
    """Height or width, on one device.

    Attributes:
      factor: its name.
      dimension: of images.
      windows: over the image before.
      place: of the device among the parts.
      count: of the parts.
    """

    factor: str
    dimension: int
    windows: Windows
    place: int
    count: int

    def parts(self, need: str) -> tuple[Part, ...]:
        """Return what all devices need."""
        found = parts_of(self.windows, need, self.count)
        assert found is not None, (self, need)
        return found

    def part(self, need: str) -> Part:
        """Return what this device needs."""
        return self.parts(need)[self.place]

    @property
    def rows(self) -> tuple[int, int]:
        """Where the device's own rows of the image before begin and end."""
        length = self.windows.rows // self.count
        return self.place * length, (self.place + 1) * length

    def numbers(self, need: str) -> tuple[int, int]:
        """Return where its own windows, or those over its own rows, begin and end."""
        if need == ROWS:
            length = self.windows.count // self.count
            return self.place * length, (self.place + 1) * length
        part = self.part(WINDOWS)
        return part.begin, part.end

    def covered(self, need: str) -> tuple[int, int]:
        """Return where the rows of these windows begin and end.

        Rows before 0, and after the last one, are padding.
        """
        return self.windows.covered(*self.numbers(need))

    def padding(self, need: str) -> tuple[int, int]:
        """Return how many rows of padding these windows cover, before the image and after it."""
        begin, end = self.covered(need)
        return max(0, -begin), max(0, end - self.windows.rows)

    def shares(self, need: str) -> np.ndarray:
        """Return, for each of these windows, how much of it is within the image."""
        spans = [self.windows.covered(i, i + 1) for i in range(*self.numbers(need))]
        inside = [min(end, self.windows.rows) - max(begin, 0) for begin, end in spans]
        return np.array(inside) / self.windows.length


def _first(device: LocalOperation) -> bool:
    return str(device.attribute("data_format", "NHWC")).startswith("NC")


def _sides(device: LocalOperation) -> list[_Side]:
    halo = rule_of(device.operation).halos[0]
    at = 2 if _first(device) else 1
    return [
        _Side(factor, at + i, windows, device.first(factor, 1), device.parts(factor))
        for i, (factor, windows) in enumerate(zip(halo.factors, halo.windows, strict=True))
    ]


def _extended(device: LocalOperation, number: int, tensor: Any) -> Generator[Neighbours, Any, Any]:
    """Return an image with the rows of neighbours that a device needs, and no others.

    Args:
      device: that needs them.
      number: of the image among those that neighbours exchange.
      tensor: the device's part of it.
    """
    need = rule_of(device.operation).halos[number].need
    for side in _sides(device):
        part = side.part(need)
        begin = part.own_begin
        if any(one.before or one.after for one in side.parts(need)):
            before, after = yield Neighbours(side.factor, side.dimension, tensor)
            rows = [one for one in (before, tensor, after) if one is not None]
            tensor = tf.concat(rows, side.dimension) if len(rows) > 1 else tensor
            begin -= part.before
        tensor = _cut(tensor, side.dimension, part.begin - begin, part.end - part.begin)
    return tensor


def _cut(tensor: Any, dimension: int, begin: int, length: int) -> Any:
    shape = tensor.shape.as_list()
    if begin == 0 and shape[dimension] == length:
        return tensor
    first = [0] * len(shape)
    first[dimension], shape[dimension] = begin, length
    return tf.slice(tensor, first, shape)


def _placed(tensor: Any, sides: Sequence[_Side], begins: Sequence[int]) -> Any:
    """Return a device's own rows of an image that begins elsewhere; rows not there are zeros."""
    paddings = [[0, 0] for _ in tensor.shape]
    for side, first in zip(sides, begins, strict=True):
        begin, end = side.rows
        last = first + tensor.shape[side.dimension]
        paddings[side.dimension] = [max(0, first - begin), max(0, end - last)]
        kept = max(begin, first), min(end, last)
        tensor = _cut(tensor, side.dimension, kept[0] - first, kept[1] - kept[0])
    return _bordered(tensor, paddings, 0)


def _bordered(tensor: Any, paddings: Sequence[Sequence[int]], value: Any) -> Any:
    """Return a tensor in a border of a value."""
    # No Pad: TensorFlow 2.21 makes one operation of it and a convolution after it on CPU, also
    # where it pads the filter, and then aborts the process.
    for dimension, counts in enumerate(paddings):
        shape = tensor.shape.as_list()
        rows = []
        for count in counts:
            shape[dimension] = count
            rows += [tf.fill(shape, tf.constant(value, tensor.dtype))] * (count > 0)
        if rows:
            at = int(counts[0] > 0)
            tensor = tf.concat([*rows[:at], tensor, *rows[at:]], dimension)
    return tensor


def _explicit(device: LocalOperation, paddings: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the attributes of a convolution with other padding."""
    numbers: list[int] = []
    if any(map(any, paddings)):
        space = [number for one in paddings for number in one]
        numbers = [0, 0, 0, 0, *space] if _first(device) else [0, 0, *space, 0, 0]
    attribute = tf.compat.v1.AttrValue
    return {
        "padding": attribute(s=b"EXPLICIT" if numbers else b"VALID"),
        "explicit_paddings": attribute(list=attribute.ListValue(i=numbers)),
    }


def _valid(device: LocalOperation) -> dict[str, Any]:
    """Return the attributes of a pooling without padding."""
    found = _explicit(device, [(0, 0)])
    if device.operation.kind.startswith("Avg"):
        del found["explicit_paddings"]
    return found


def or_whole(kernel: Callable[..., Any], whole: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that is another one where no axis splits height or width."""

    def run(device: LocalOperation, *inputs: Any) -> Any:
        split = device.axes("height") or device.axes("width")
        return (kernel if split else whole)(device, *inputs)

    return run


def convolution(device: LocalOperation, x: Any, kernel: Any) -> Any:
    """Run `Conv2D` and `DepthwiseConv2dNative`."""
    x = yield from _extended(device, 0, x)
    paddings = [side.padding(ROWS) for side in _sides(device)]
    return device.again([x, kernel], attributes=_explicit(device, paddings))


def filter_gradient(device: LocalOperation, x: Any, dy: Any) -> Any:
    """Run `Conv2DBackpropFilter` and `DepthwiseConv2dNativeBackpropFilter`: a term of it."""
    x = yield from _extended(device, 0, x)
    paddings = [side.padding(ROWS) for side in _sides(device)]
    shape = np.array(device.shape(), np.int32)
    return device.again([x, dy], {1: shape}, _explicit(device, paddings))


def input_gradient(device: LocalOperation, kernel: Any, dy: Any) -> Any:
    """Run `Conv2DBackpropInput` and `DepthwiseConv2dNativeBackpropInput`."""
    dy = yield from _extended(device, 0, dy)
    shape, paddings, begins = np.array(device.shape(), np.int32), [], []
    sides = _sides(device)
    for side in sides:
        # Rows of the windows that others have are cut off as padding is.
        begin, end = side.rows
        first, last = side.covered(WINDOWS)
        begins.append(max(begin, first))
        paddings.append((max(0, begin - first), max(0, last - end)))
        shape[side.dimension] = min(end, last) - begins[-1]
    (made,) = device.again([kernel, dy], {0: shape}, _explicit(device, paddings))
    return [_placed(made, sides, begins)]


def _padded(x: Any, sides: Sequence[_Side], need: str, value: Any) -> Any:
    paddings = [[0, 0] for _ in x.shape]
    for side in sides:
        paddings[side.dimension] = list(side.padding(need))
    return _bordered(x, paddings, value)


def _scaled(y: Any, sides: Sequence[_Side], need: str) -> Any:
    """Return averages over all of each window, as those over what is within the image."""
    rows, columns = (side.shares(need) for side in sides)
    shares = np.outer(rows, columns)
    if np.all(shares == 1):
        return y
    shape = [1] * y.shape.rank
    for side, length in zip(sides, shares.shape, strict=True):
        shape[side.dimension] = length
    return y * tf.constant((1 / shares).reshape(shape), y.dtype)


def pooling(device: LocalOperation, x: Any) -> Any:
    """Run `MaxPool` and `AvgPool`."""
    x = yield from _extended(device, 0, x)
    sides, most = _sides(device), device.operation.kind == "MaxPool"
    x = _padded(x, sides, ROWS, x.dtype.min if most else 0)
    (y,) = device.again([x], attributes=_valid(device))
    return [y if most else _scaled(y, sides, ROWS)]


def average_gradient(device: LocalOperation, dy: Any) -> Any:
    """Run `AvgPoolGrad`."""
    dy = yield from _extended(device, 0, dy)
    sides = _sides(device)
    shape, begins = np.array(device.shape(), np.int32), []
    for side in sides:
        begin, end = side.covered(WINDOWS)
        begins.append(begin)
        shape[side.dimension] = end - begin
    (made,) = device.again([_scaled(dy, sides, WINDOWS)], {0: shape}, _valid(device))
    return [_placed(made, sides, begins)]


def maximum_gradient(device: LocalOperation, x: Any, y: Any, dy: Any) -> Any:
    """Run `MaxPoolGrad`."""
    found = []
    for number, one in enumerate((x, y, dy)):
        found.append((yield from _extended(device, number, one)))
    x, y, dy = found
    sides = _sides(device)
    x = _padded(x, sides, WINDOWS, x.dtype.min)
    (made,) = device.again([x, y, dy], attributes=_valid(device))
    return [_placed(made, sides, [side.covered(WINDOWS)[0] for side in sides])]
