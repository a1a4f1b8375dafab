# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the rules of convolution and pooling.

Images and channels can be split, and height and width, too. Where windows neither overlap nor leave
gaps, as in the first layer of a vision transformer, that costs nothing; others need rows of the
neighbours (`halo.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

from tf_fuse.layout.operators.halo import AROUND, ROWS, WINDOWS, Windows
from tf_fuse.layout.operators.rule import Halo, Rule, Work, Written, expect, make
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.operation import Operation

_NAMES: Final = ("height", "width")


@dataclasses.dataclass(frozen=True)
class _Space:
    """The factors of height and width.

    Attributes:
      big: of the image before, each.
      small: of the output image, each.
      windows: over the image before, along each.
      sizes: of the factors that are not a dimension alone.
      fixed: those that are not split.
      uneven: those after which a dimension is not a product.
    """

    big: tuple[Written, Written]
    small: tuple[str, str]
    windows: tuple[Windows, Windows]
    sizes: dict[str, int]
    fixed: tuple[str, ...]
    uneven: tuple[str, ...]

    def halo(self, need: str, rest: Work, backward: bool = False) -> Halo:
        """Return what neighbours exchange of an image.

        Args:
          need: what a device needs of it.
          rest: elements of a pixel of all images.
          backward: whether it is for the gradient.
        """
        return Halo(self.small, self.windows, need, rest, backward)


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
    explicit = operation.attribute("explicit_paddings")
    before: list[Written] = []
    windows: list[Windows] = []
    sizes: dict[str, int] = {}
    fixed: list[str] = []
    uneven: list[str] = []
    for i, name in enumerate(_NAMES):
        size, count, length, stride = big[at][i], small[at][i], window[i], strides[i]
        reach = (length - 1) * dilations[i] + 1
        # Without explicit padding, windows are centred if they reach over the image.
        missing = max(0, (count - 1) * stride + reach - size)
        padding = explicit[2 * (at.start + i)] if explicit else missing // 2
        windows.append(Windows(size, count, reach, stride, padding))
        cell, step, edge = f"cell_{name}", f"step_{name}", f"edge_{name}"
        fixed += [cell, step, edge]
        sizes |= {name: count, cell: length, step: stride, edge: 1}
        if size == count * stride and stride == reach == length and not padding:
            before.append((name, cell) if length > 1 else name)
        elif size == count * stride:
            before.append((name, step) if stride > 1 else name)
        else:
            before.append((name, edge))
            uneven.append(edge)
    return _Space(
        (before[0], before[1]), _NAMES, (windows[0], windows[1]), sizes, tuple(fixed),
        tuple(uneven),
    )  # fmt: skip


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
    factors = ("batch", *space.small, "out", "cell_height", "cell_width")
    work = Work(2, (*factors, "in")) if whole else Work(2 * kernel[2], factors)
    pixel = Work(1, ("batch", "in")) if whole else Work(x[c], ("batch",))
    return space, dims | {
        "fixed": fixed, "work": [work], "x pixel": pixel, "y pixel": Work(1, ("batch", "out")),
    }  # fmt: skip


def _halos(space: _Space, operation: Operation, x: Work, y: Work) -> list[Halo]:
    """Return what neighbours exchange for a convolution and its gradients."""
    image, kernel = operation.inputs
    found = [space.halo(ROWS, x)]
    if image.has_gradient:
        found.append(space.halo(WINDOWS, y, backward=True))
    if kernel.has_gradient:
        found.append(space.halo(ROWS, x, backward=True))
    return found


def convolution(operation: Operation) -> Rule:
    """Return the rule of `Conv2D`, with `strides`, `dilations` and `data_format`.

    Splitting images or output channels costs nothing; over split input channels the result is
    partial; over height and width neighbours exchange rows of the images.
    """
    expect(operation, [4, 4], [4])
    x, kernel = (one.shape for one in operation.inputs)
    space, known = _convolution(operation, x, kernel, operation.outputs[0].shape)
    return make(
        operation,
        [known["x"], known["filter"]],
        [known["y"]],
        sizes=space.sizes,
        uneven=space.uneven,
        halos=_halos(space, operation, known["x pixel"], known["y pixel"]),
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
        uneven=space.uneven,
        halos=[space.halo(WINDOWS, known["y pixel"])],
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
        uneven=space.uneven,
        halos=[space.halo(ROWS, known["x pixel"])],
        fixed=known["fixed"],
        sums=["batch", *space.small],
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
    factors = ("batch", *space.small, "channels", "multiplier")
    x_pixel, y_pixel = Work(1, ("batch", "channels")), Work(1, ("batch", "channels", "multiplier"))
    halos = {
        "y": lambda: _halos(space, operation, x_pixel, y_pixel),
        "x": lambda: [space.halo(WINDOWS, y_pixel)],
        "filter": lambda: [space.halo(ROWS, x_pixel)],
    }
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
        uneven=space.uneven,
        halos=halos[output](),
        # After the channels it would be strided.
        fixed=[*space.fixed, "multiplier"],
        sums=["batch", *space.small] if output == "filter" else (),
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
        pixel = Work(1, ("batch", "channels"))
        # The gradient of a maximum looks for it again.
        needs = [WINDOWS] if linear else [AROUND, WINDOWS, WINDOWS]
        back = [space.halo(one, pixel, backward=not gradient) for one in needs]
        return make(
            operation,
            ([y] if linear else [x, y, y]) if gradient else [x],
            [x] if gradient else [y],
            sizes=space.sizes,
            uneven=space.uneven,
            halos=back if gradient else [space.halo(ROWS, pixel), *back],
            fixed=space.fixed,
            linear=[(len(operation.inputs) - 1,)] if linear or gradient else (),
            work=[Work(count, ("batch", *space.small, "channels"))],
            saved_inputs=() if linear else None,
            saved_outputs=() if linear else (0,),
        )

    return rule
