# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the rules of convolution and pooling.

Images and channels can be split. Height and width can where windows neither overlap nor leave gaps,
as in the first layer of a vision transformer; other windows would need rows of the neighbours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tf_fuse.layout.operators.rule import Rule, Work, Written, expect, make
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.operation import Operation


@dataclasses.dataclass(frozen=True)
class _Space:
    """The factors of height and width.

    Attributes:
      big: of the image before, each.
      small: of the output image, each.
      sizes: of the factors that are not a dimension alone.
      fixed: those that are not split.
    """

    big: tuple[Written, Written]
    small: tuple[Written, Written]
    sizes: dict[str, int]
    fixed: tuple[str, ...]


def _first(operation: Operation) -> bool:
    return str(operation.attribute("data_format", "NHWC")).startswith("NC")


def _numbers(operation: Operation, name: str, default: Any = None) -> tuple[int, int]:
    """Return the two of four numbers that are for height and width."""
    value = operation.attribute(name, default)
    if not isinstance(value, tuple) or len(value) != 4:
        raise LayoutError(
            f"{operation}: attribute {name!r} has a number for each of 4 dimensions, got {value!r}"
        )
    return value[2:] if _first(operation) else value[1:3]


def _image(operation: Operation, space: Sequence[Written], channels: Written) -> list[Written]:
    return (
        ["batch", channels, *space] if _first(operation) else ["batch", *space, channels]
    )  # fmt: skip


def _space(
    operation: Operation, big: Sequence[int], small: Sequence[int], window: Sequence[int]
) -> _Space:
    """Return the factors of height and width."""
    at = slice(2, 4) if _first(operation) else slice(1, 3)
    strides = _numbers(operation, "strides", (1, 1, 1, 1))
    dilations = _numbers(operation, "dilations", (1, 1, 1, 1))
    before: list[Written] = []
    after: list[Written] = []
    sizes: dict[str, int] = {}
    fixed: list[str] = []
    for i, name in enumerate(("height", "width")):
        size, count, length = big[at][i], small[at][i], window[i]
        cell = f"cell_{name}"
        fixed.append(cell)
        sizes |= {name: count, cell: length}
        after.append(name)
        if strides[i] == length and size == count * length and dilations[i] == 1:
            before.append((name, cell) if length > 1 else name)
            continue
        # The same name where windows are centred around each place; nothing otherwise.
        before.append(name if size == count else None)
        fixed.append(name)
    return _Space((before[0], before[1]), (after[0], after[1]), sizes, tuple(fixed))


def _convolution(
    operation: Operation, x: Any, kernel: Any, y: Any
) -> tuple[_Space, dict[str, Any]]:
    """Return the factors of the three images of a convolution, and what all its rules share."""
    space = _space(operation, x, y, kernel[:2])
    c = 1 if _first(operation) else 3
    whole = x[c] == kernel[2]
    dims = {
        "x": _image(operation, space.big, "in" if whole else None),
        "filter": ["cell_height", "cell_width", "in" if whole else None, "out"],
        "y": _image(operation, space.small, "out"),
    }
    # In groups, an output channel belongs to some of the input's: neither is split.
    fixed = space.fixed if whole else (*space.fixed, "out")
    factors = ("batch", *map(str, space.small), "out", "cell_height", "cell_width")
    work = Work(2, (*factors, "in")) if whole else Work(2 * kernel[2], factors)
    return space, dims | {"fixed": fixed, "work": [work]}


def convolution(operation: Operation) -> Rule:
    """Return the rule of `Conv2D`, with `strides`, `dilations` and `data_format`.

    Splitting images or output channels costs nothing; over split input channels the result is
    partial.
    """
    expect(operation, [4, 4], [4])
    x, kernel = (one.shape for one in operation.inputs)
    space, known = _convolution(operation, x, kernel, operation.outputs[0].shape)
    return make(
        operation,
        [known["x"], known["filter"]],
        [known["y"]],
        sizes=space.sizes,
        fixed=known["fixed"],
        sums=["in"],
        linear=[(0,), (1,)],
        work=known["work"],
    )


def input_gradient(operation: Operation) -> Rule:
    """Return the rule of `Conv2DBackpropInput` of the filter and the output's gradient."""
    expect(operation, [4, 4], [4])
    kernel, y = (one.shape for one in operation.inputs)
    space, known = _convolution(operation, operation.outputs[0].shape, kernel, y)
    return make(
        operation,
        [known["filter"], known["y"]],
        [known["x"]],
        sizes=space.sizes,
        fixed=known["fixed"],
        sums=["out"],
        linear=[(0,), (1,)],
        work=known["work"],
    )


def filter_gradient(operation: Operation) -> Rule:
    """Return the rule of `Conv2DBackpropFilter` of the images and the output's gradient."""
    expect(operation, [4, 4], [4])
    x, y = (one.shape for one in operation.inputs)
    space, known = _convolution(operation, x, operation.outputs[0].shape, y)
    return make(
        operation,
        [known["x"], known["y"]],
        [known["filter"]],
        sizes=space.sizes,
        fixed=known["fixed"],
        sums=["batch", *(one for one in space.sizes if not one.startswith("cell_"))],
        linear=[(0,), (1,)],
        work=known["work"],
    )


def depthwise(operation: Operation) -> Rule:
    """Return the rule of `DepthwiseConv2dNative`: channels are split for nothing, too."""
    expect(operation, [4, 4], [4])
    x, kernel = (one.shape for one in operation.inputs)
    return _depthwise(operation, x, kernel, operation.outputs[0].shape, "x filter", "y")


def depthwise_input_gradient(operation: Operation) -> Rule:
    """Return the rule of `DepthwiseConv2dNativeBackpropInput`, as of `Conv2DBackpropInput`."""
    expect(operation, [4, 4], [4])
    kernel, y = (one.shape for one in operation.inputs)
    return _depthwise(operation, operation.outputs[0].shape, kernel, y, "filter y", "x")


def depthwise_filter_gradient(operation: Operation) -> Rule:
    """Return the rule of `DepthwiseConv2dNativeBackpropFilter`, as of `Conv2DBackpropFilter`."""
    expect(operation, [4, 4], [4])
    x, y = (one.shape for one in operation.inputs)
    return _depthwise(operation, x, operation.outputs[0].shape, y, "x y", "filter")


def _depthwise(operation: Operation, x: Any, kernel: Any, y: Any, inputs: str, output: str) -> Rule:
    """Return the rule of a depthwise convolution or gradient, by names of inputs and output."""
    space = _space(operation, x, y, kernel[:2])
    pair = ("channels", "multiplier") if kernel[3] > 1 else "channels"
    factors = ("batch", *map(str, space.small), "channels", "multiplier")
    dims: dict[str, Sequence[Written]] = {
        "x": _image(operation, space.big, "channels"),
        "filter": ["cell_height", "cell_width", "channels", "multiplier"],
        "y": _image(operation, space.small, pair),
    }
    return make(
        operation,
        [dims[one] for one in inputs.split()],
        [dims[output]],
        sizes={**space.sizes, "channels": kernel[2], "multiplier": kernel[3]},
        # After the channels it would be strided.
        fixed=[*space.fixed, "multiplier"],
        sums=["batch", *map(str, space.small)] if output == "filter" else (),
        linear=[(0,), (1,)],
        work=[Work(2, (*factors, "cell_height", "cell_width"))],
    )


def pooling(linear: bool, gradient: bool = False) -> Callable[[Operation], Rule]:
    """Return the rule of pooling, with `ksize`, `strides` and `data_format`, or of its gradient.

    Args:
      linear: whether it is an average.
      gradient: whether inputs are x, y and the gradient of y (the last one only, of an average),
        and the output the gradient of x.
    """

    def rule(operation: Operation) -> Rule:
        expect(operation, ([4] if linear else [4, 4, 4]) if gradient else [4], [4])
        small = (operation.inputs[-1] if gradient else operation.outputs[0]).shape
        big = (operation.outputs[0] if gradient else operation.inputs[0]).shape
        window = _numbers(operation, "ksize")
        space = _space(operation, big, small, window)
        x = _image(operation, space.big, "channels")
        y = _image(operation, space.small, "channels")
        count = window[0] * window[1]
        return make(
            operation,
            ([y] if linear else [x, y, y]) if gradient else [x],
            [x] if gradient else [y],
            sizes=space.sizes,
            fixed=space.fixed,
            linear=[(len(operation.inputs) - 1,)] if linear or gradient else (),
            work=[Work(count, ("batch", *map(str, space.small), "channels"))],
            saved_inputs=() if linear else None,
            saved_outputs=() if linear else (0,),
        )

    return rule
