# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convolutions and pooling whose height and width are split, with rows of neighbours."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.unit.layout.operators import cases, numpy_halos
from tests.unit.layout.operators.checks import SQUARE, check, check_gradients
from tf_fuse.layout import LayoutRules, Link, Mesh
from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.operators.halo import AROUND, ROWS, WINDOWS, Windows, parts_of
from tf_fuse.layout.strategies.by_name import named_strategy
from tf_fuse.layout.strategies.name_propagation import propagate
from tf_fuse.layout.strategies.strategy import strategies

FOUR = Mesh({"x": 4})


def split(operation, mesh, choice):
    found = [one for one in strategies(operation, mesh) if str(one) == choice]
    return found[0] if found else None


def image(kind, size, small, length, step, mesh=FOUR, channels=(2, 3), **more):
    """The strategy that splits the height of a convolution of one image over all devices."""
    inside, outside = channels
    big, behind = (1, size, 8, inside), (1, small, 8 // step, outside)
    shapes = {"x": big, "filter": (length, 1, inside, outside), "y": behind}
    names = {"Conv2D": "x filter y", "Conv2DBackpropInput": "filter y x",
             "Conv2DBackpropFilter": "x y filter"}[kind]  # fmt: skip
    *inputs, output = (shapes[one] for one in names.split())
    one = cases.operation(kind, inputs, [output], {"strides": (1, step, step, 1), **more})
    return split(one, mesh, "split height")


def test_neighbours_send_the_rows_that_windows_reach_over():
    """Rows of 8 pixels, 2 channels and 8 bytes; in the middle 2 before and 2 after."""
    found = image("Conv2D", 16, 16, 5, 1)
    (halo,) = found.forward
    row = 8 * 2 * 8
    assert halo.axes == ("x",)
    assert halo.borders == ((0, 2), (2, 2), (2, 2), (2, 0))
    assert halo.received_bytes == 3 * (2 + 2) * row
    assert (halo.awaited_bytes, halo.messages) == (4 * row, 2)
    assert str(halo) == f"halo exchange of {12 * row} bytes over x"
    # The gradient of the input has rows of the output's 3 channels, and the filter's those of x.
    assert [one.received_bytes for one in found.backward] == [3 * 4 * 8 * 3 * 8, 12 * row]
    (back,) = image("Conv2DBackpropInput", 16, 16, 5, 1).forward
    assert back.received_bytes == 3 * 4 * 8 * 3 * 8
    (back,) = image("Conv2DBackpropFilter", 16, 16, 5, 1).forward
    assert back.received_bytes == 12 * row


def test_steps_of_two_rows_reach_over_one_side():
    """Padding of an even size is after the image alone, so the windows begin at own rows."""
    assert image("Conv2D", 16, 8, 3, 2).forward[0].borders == ((0, 1), (0, 1), (0, 1), (0, 0))
    found = image("Conv2DBackpropInput", 16, 8, 3, 2).forward[0]
    assert found.borders == ((0, 0), (1, 0), (1, 0), (1, 0))
    # Windows of one row leave rows out, and need nothing.
    assert image("Conv2D", 16, 8, 1, 2).forward == ()


def test_without_padding_windows_move_away_from_the_rows():
    """Of 16 rows and 12 windows the first device has rows 0 to 3 and needs 0 to 6."""
    found = image("Conv2D", 16, 12, 5, 1).forward[0]
    assert found.borders == ((0, 3), (1, 2), (2, 1), (3, 0))


@pytest.mark.parametrize(
    ("size", "small", "length", "step", "why"),
    [
        (16, 16, 11, 1, "5 rows of a neighbour that has 4"),
        (16, 14, 3, 1, "14 windows on 4 devices"),
        (18, 16, 3, 1, "18 rows on 4 devices"),
    ],
)
def test_what_neighbours_alone_cannot_give_is_no_choice(size, small, length, step, why):
    assert image("Conv2D", size, small, length, step) is None, why
    # On fewer devices it is one.
    two = image("Conv2D", size, small, length, step, Mesh({"x": 2}))
    assert two is not None and two.forward


def test_corners_come_with_the_columns():
    """Rows first; then columns of these rows, with those that came from above and below."""
    one = cases.operation("Conv2D", [(1, 8, 8, 1), (3, 3, 1, 1)], [(1, 8, 8, 1)])
    rows, columns = split(one, SQUARE, "split height, split width").forward
    assert (rows.axes, columns.axes) == (("x",), ("y",))
    assert rows.received_bytes == 4 * 4 * 8
    assert columns.received_bytes == 4 * 5 * 8
    # Both axes split one dimension: four parts in a row.
    (both,) = split(one, SQUARE, "split height, split height").forward
    assert both.axes == ("x", "y") and len(both.borders) == 4
    assert both.received_bytes == 2 * 3 * 8 * 8


@st.composite
def geometries(draw, count=1):
    """Rows of an image, windows over them, and padding, as TensorFlow allows them."""
    length, stride = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    dilation = draw(st.sampled_from([1, 1, 2])) if stride == 1 else 1
    reach = (length - 1) * dilation + 1
    size = draw(st.integers(1, 16 // count)) * count
    kind = draw(st.sampled_from(["SAME", "VALID", "EXPLICIT"]))
    if kind == "SAME":
        small = -(-size // stride)
        pads = max(0, (small - 1) * stride + reach - size)
        return size, small, length, stride, dilation, (pads // 2, pads - pads // 2), False
    pads = (0, 0) if kind == "VALID" else tuple(draw(st.integers(0, reach - 1)) for _ in "ab")
    assume(size + sum(pads) >= reach)
    small = (size + sum(pads) - reach) // stride + 1
    return size, small, length, stride, dilation, pads, kind == "EXPLICIT"


def operations(height, width, kind):
    """The operation of a kind, with these dimensions; None if it cannot have them."""
    explicit = height[6] or width[6]
    pooling = "Pool" in kind
    if pooling and (explicit or height[4] * width[4] > 1):
        return None
    big, small = (1, height[0], width[0], 2), (1, height[1], width[1], 2)
    window = height[2], width[2]
    given = {"strides": (1, height[3], width[3], 1), "dilations": (1, height[4], width[4], 1)}
    if explicit:
        given["explicit_paddings"] = (0, 0, *height[5], *width[5], 0, 0)
    if pooling:
        given["ksize"] = (1, *window, 1)
        del given["dilations"]
    kernel = (*window, 2, 1 if kind.startswith("Depthwise") else 2)
    inputs, output = {
        "Pool": ([big], small),
        "AvgPoolGrad": ([small], big),
        "MaxPoolGrad": ([big, small, small], big),
        "Input": ([kernel, small], big),
        "Filter": ([big, small], kernel),
        "": ([big, kernel], small),
    }[next(end for end in ("AvgPoolGrad", "MaxPoolGrad", "Pool", "Input", "Filter", "")
           if kind.endswith(end))]  # fmt: skip
    return cases.case(kind, inputs, [output], **given)


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.filter_too_much])
@given(geometries(2), geometries(), st.sampled_from(sorted(numpy_halos.KERNELS)),
       st.sampled_from([SQUARE, FOUR, Mesh({"x": 3, "y": 2})]))  # fmt: skip
def test_any_windows(height, width, kind, mesh):
    """Each strategy has the values of the whole, and exchanges what it says and no more."""
    one = operations(height, width, kind)
    assume(one is not None)
    check(one.operation, one.inputs, mesh)


@settings(deadline=None, max_examples=40)
@given(geometries(2), geometries(2), st.sampled_from(["Conv2D", "DepthwiseConv2dNative"]))
def test_gradients_of_any_convolution(height, width, kind):
    one = operations(height, width, kind)
    check_gradients(one.operation, one.inputs, SQUARE, numpy_halos.convolution_gradient)


@settings(deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.data(), st.sampled_from([ROWS, WINDOWS, AROUND]), st.integers(2, 4))
def test_parts_are_the_least_that_is_needed(data, need, count):
    """Against the windows and rows themselves."""
    size, small, length, stride, dilation, pads, _ = data.draw(geometries(count))
    assume(small % count == 0)
    windows = Windows(size, small, (length - 1) * dilation + 1, stride, pads[0])
    of_window = [
        set(range(i * stride - pads[0], i * stride - pads[0] + windows.length)) & set(range(size))
        for i in range(small)
    ]
    needed = []
    for part in range(count):
        own = range(part * small // count, (part + 1) * small // count)
        if need != ROWS:
            rows = set(range(part * size // count, (part + 1) * size // count))
            own = [i for i in range(small) if of_window[i] & rows]
        needed.append(own if need == WINDOWS else sorted(set().union(*(of_window[i] for i in own))))
    length = (small if need == WINDOWS else size) // count
    spans = [(one[0], one[-1] + 1) if one else None for one in needed]
    fits = all(
        span and (i - 1) * length <= span[0] and span[1] <= (i + 2) * length
        for i, span in enumerate(spans)
    )
    found = parts_of(windows, need, count)
    if not fits:
        assert found is None
        return
    assert [(one.begin, one.end) for one in found] == spans


def test_seconds_of_a_halo_are_those_of_the_device_in_the_middle():
    """Two messages, the bytes of both borders, and the operations that cut and join rows."""
    found = image("Conv2D", 16, 16, 5, 1)
    row, link = 8 * 2 * 8, Link(1e-6, 1e-9, 1e-3, 1e-12)
    seconds = Rates(FOUR, {"x": link}, 1e-9).collective(found.forward[0])
    received, joined = 4 * row, (4 + 4) * row
    assert seconds == pytest.approx(2e-6 + received * 1e-9 + 3e-3 + 2 * (received + joined) * 1e-12)


@pytest.mark.parametrize(("length", "choice"), [(3, "split height"), (11, "replicate")])
def test_names_split_rows_where_neighbours_have_all_that_is_needed(length, choice):
    one = cases.operation("Conv2D", [(1, 16, 8, 1), (length, 1, 1, 1)], [(1, 16, 8, 1)])
    names = propagate([one], {"a": (None, "rows", None, None)})
    assert names.made["y0"] == (None, "rows", None, None)
    assert str(named_strategy(one, names, LayoutRules.from_text("rows:x"), FOUR)) == choice
