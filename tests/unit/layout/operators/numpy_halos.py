# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What convolutions and pooling compute where height or width is split, of rows and neighbours'.

A device puts what it has into an image of the whole size, of NaN elsewhere, and computes the whole
operation. Its part of the result has no NaN if it had all that it needs.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from tests.unit.layout.operators import numpy_shape_kernels as kernels
from tf_fuse.layout.operators.halo import parts_of

NEIGHBOURS = "neighbours"


def _count(device, factor):
    return int(np.prod([device.mesh.size_of(axis) for axis in device.axes(factor)]))


def _at(device):
    return 2 if device.attribute("data_format", "NHWC") == "NCHW" else 1


def with_neighbours(device, halo, x, shape, fill):
    """A generator of the image of the whole height and width, filled where it is not needed.

    What it yields is answered by the rows before and those after.
    """
    begins = []
    for i, (factor, windows) in enumerate(zip(halo.factors, halo.windows, strict=True)):
        dimension = _at(device) + i
        parts = parts_of(windows, halo.need, _count(device, factor))
        part = parts[device.first(factor, 1)]
        begin = part.own_begin
        if any(one.before or one.after for one in parts):
            before, after = yield factor, (NEIGHBOURS, dimension), x
            x = np.concatenate([before, x, after], dimension)
            begin -= part.before
        kept = range(part.begin - begin, part.end - begin)
        assert kept.start >= 0 and kept.stop <= x.shape[dimension]
        x = x.take(kept, dimension)
        begins.append(part.begin)
    return _embedded(device, x, begins, shape, fill)


def _embedded(device, x, begins, shape, fill):
    at = _at(device)
    whole = np.full([*x.shape[:at], *shape[at : at + 2], *x.shape[at + 2 :]], fill, float)
    rows, columns = (
        slice(begin, begin + n) for begin, n in zip(begins, x.shape[at : at + 2], strict=True)
    )
    whole[(*[slice(None)] * at, rows, columns)] = x
    return whole


def _own_begins(device, x):
    return [
        device.first(factor, x.shape[_at(device) + i])
        for i, factor in enumerate(("height", "width"))
    ]


def _as_whole(device, local, whole):
    """A device that makes an image of the whole height and width."""
    at = _at(device)
    shape = [*local[:at], *whole[at : at + 2], *local[at + 2 :]]
    return SimpleNamespace(
        attribute=device.attribute,
        operation=device.operation,
        strategy=SimpleNamespace(outputs=[SimpleNamespace(slice_shape=tuple(shape))]),
    )


def _own(device, made, local):
    begins = [device.first(f, local[_at(device) + i]) for i, f in enumerate(("height", "width"))]
    for i, begin in enumerate(begins):
        at = _at(device) + i
        made = made.take(range(begin, begin + local[at]), at)
    return made


def image(kernel, device, inputs, halos, shapes, made):
    """A generator of an image that a kernel makes, of images with neighbours' rows.

    `halos` are by the numbers of inputs, `shapes` are those of whole inputs, and `made` is the
    shape of the output, on the device and whole.
    """
    given = list(inputs)
    for i, halo in halos.items():
        given[i] = yield from with_neighbours(device, halo, inputs[i], shapes[i], np.nan)
    (found,) = kernel(_as_whole(device, *made), *given)
    return _own(device, found, made[0])


def filter_gradient(kernel, device, x, dy, halo, shapes, made):
    """A generator of a device's term of a filter's gradient."""
    x = yield from with_neighbours(device, halo, x, shapes[0], 0)
    dy = _embedded(device, dy, _own_begins(device, dy), shapes[1], 0)
    proxy = SimpleNamespace(
        attribute=device.attribute,
        operation=device.operation,
        strategy=SimpleNamespace(outputs=[SimpleNamespace(slice_shape=made)]),
    )
    (found,) = kernel(proxy, x, dy)
    return found


def _is_simple(device, halos):
    """Whether each device needs just what it has, and its first window begins there."""
    for halo in halos:
        for factor, windows in zip(halo.factors, halo.windows, strict=True):
            parts = parts_of(windows, halo.need, _count(device, factor))
            moved = windows.padding or windows.rows != windows.count * windows.stride
            if any(one[:2] != one[2:] for one in parts) or (moved and len(parts) > 1):
                return False
    return True


def spread(kernel, *images):
    """A kernel of slices, by one of whole images; `images` are the inputs that are exchanged."""

    def run(device, *inputs):
        split = device.axes("height") or device.axes("width")
        halos = [one for one in device.rule.halos if not one.backward]
        if not split or _is_simple(device, halos):
            return kernel(device, *inputs)
        return _spread(device, *inputs)

    def _spread(device, *inputs):
        halos = [one for one in device.rule.halos if not one.backward]
        shapes = [one.shape for one in device.operation.inputs]
        local = device.strategy.outputs[0].slice_shape
        if device.operation.kind.endswith("Filter"):
            found = yield from filter_gradient(kernel, device, *inputs, halos[0], shapes, local)
        else:
            whole = device.operation.outputs[0].shape
            by_input = dict(zip(images, halos, strict=True))
            found = yield from image(kernel, device, inputs, by_input, shapes, (local, whole))
        return [found]

    return run


def convolution_gradient(device, x, kernel, dy):
    """A generator of both gradients of a convolution, whose halos are those of its backward."""
    depthwise = device.operation.kind.startswith("Depthwise")
    of_input = kernels.depthwise_input_gradient if depthwise else kernels.input_gradient
    of_filter = kernels.depthwise_filter_gradient if depthwise else kernels.filter_gradient
    windows, rows = (one for one in device.rule.halos if one.backward)
    shape, behind = device.operation.inputs[0].shape, device.operation.outputs[0].shape
    both = [kernel.shape, behind]
    dx = yield from image(of_input, device, [kernel, dy], {1: windows}, both, (x.shape, shape))
    both = [shape, behind]
    dk = yield from filter_gradient(of_filter, device, x, dy, rows, both, kernel.shape)
    return [dx, dk]


KERNELS = {
    "Conv2D": spread(kernels.convolution, 0),
    "Conv2DBackpropInput": spread(kernels.input_gradient, 1),
    "Conv2DBackpropFilter": spread(kernels.filter_gradient, 0),
    "DepthwiseConv2dNative": spread(kernels.depthwise, 0),
    "DepthwiseConv2dNativeBackpropInput": spread(kernels.depthwise_input_gradient, 1),
    "DepthwiseConv2dNativeBackpropFilter": spread(kernels.depthwise_filter_gradient, 0),
    "AvgPool": spread(kernels.pooling, 0),
    "MaxPool": spread(kernels.pooling, 0),
    "AvgPoolGrad": spread(kernels.pooling_gradient, 0),
    "MaxPoolGrad": spread(kernels.pooling_gradient, 0, 1, 2),
}
