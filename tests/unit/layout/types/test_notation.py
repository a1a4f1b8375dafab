# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensor layouts in three notations, there and back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_fuse.layout import (
    Dimension,
    LayoutError,
    LayoutRules,
    Mesh,
    MindSporeLayout,
    TensorLayout,
    from_mindspore,
    from_sbp,
    to_mindspore,
    to_rules,
    to_sbp,
)

MESH = Mesh({"x": 2, "y": 4})


@st.composite
def layouts(draw, partial: bool = True, stacked: bool = True) -> TensorLayout:
    """Any layout of a tensor of at most three dimensions on a mesh of at most three axes."""
    mesh = Mesh(
        [
            (f"a{i}", size)
            for i, size in enumerate(draw(st.lists(st.sampled_from([1, 2, 3, 4]), max_size=3)))
        ]
    )
    rank = draw(st.integers(0, 3))
    splits: list[list[str]] = [[] for _ in range(rank)]
    sums = []
    for axis in draw(st.permutations(mesh.axes)):
        kind = draw(st.sampled_from(["B", *(["P"] if partial else []), *range(rank)]))
        if kind == "P":
            sums.append(axis)
        elif kind != "B" and (stacked or not splits[kind]):
            splits[kind].append(axis)
    shape = [draw(st.integers(1, 3)) * math.prod(map(mesh.size_of, axes)) for axes in splits]
    return TensorLayout(mesh, shape, splits, sums)  # fmt: skip


@given(layouts(partial=False))
def test_mindspore_and_back(one):
    there = to_mindspore(one)
    assert there.tensor_shape == one.shape
    assert from_mindspore(there, one.mesh.axes) == one


@given(layouts())
def test_signatures_and_back(one):
    if any(list(axes) != sorted(axes) for axes in one.splits):
        with pytest.raises(LayoutError, match="in this order; signatures of OneFlow mean"):
            to_sbp(one)
    else:
        assert from_sbp(one.mesh, one.shape, to_sbp(one)) == one
        assert from_sbp(one.mesh, one.shape, f"({', '.join(to_sbp(one))})") == one


@given(layouts(partial=False, stacked=False))
def test_rules_and_back(one):
    dimensions = [Dimension(f"d{i}", size) for i, size in enumerate(one.shape)]
    rules = to_rules(one, [dimension.name for dimension in dimensions])
    assert rules.layout(dimensions, one.mesh) == one
    assert LayoutRules.from_text(str(rules)) == rules


@given(layouts())
def test_slices_cover_the_tensor_once_per_copy(one):
    """Every element is held by as many devices as there are copies of its terms."""
    held = one.holders()
    copies = one.mesh.size // math.prod(one.slices)
    assert {len(devices) for devices in held.values()} == {copies}
    assert len(held) == math.prod(one.slices)
    assert sum(math.prod(end - begin for begin, end in key) for key in held) == math.prod(one.shape)
    assert {end - begin for key in held for begin, end in key} <= set(one.slice_shape)
    terms = [(*(one.slice_of(d)), one.term_of(d)) for d in range(one.mesh.size)]
    replicas = math.prod(map(one.mesh.size_of, one.replicated))
    assert all(terms.count(term) == replicas for term in terms)


def test_known_layouts_in_all_notations():
    one = TensorLayout(MESH, [8, 12], [["x"], ["y"]])
    assert to_mindspore(one) == MindSporeLayout((2, 4), (1, 0), (8, 12))
    assert to_sbp(one) == ("S(0)", "S(1)")
    assert str(to_rules(one, ["batch", "hidden"])) == "batch:x;hidden:y"
    two = TensorLayout(MESH, [8, 12], [[], ["y"]], ["x"])
    assert to_sbp(two) == ("P", "S(1)")
    three = TensorLayout(MESH, [8, 12], [["y", "x"], []])
    assert to_mindspore(three) == MindSporeLayout((2, 4), ((0, 1), -1), (8, 12))
    assert from_mindspore(MindSporeLayout((2, 4), (0, -1), (8, 12))).splits == (("axis1",), ())


@pytest.mark.parametrize("text", ["(S(0), P)", " S0,P ", "(S0, P)", "S(0), P"])
def test_ways_to_write_a_signature(text):
    assert from_sbp(MESH, [8], text) == TensorLayout(MESH, [8], [["x"]], ["y"])


def problems(call, *args) -> tuple[str, ...]:
    with pytest.raises(LayoutError) as caught:
        call(*args)
    return caught.value.problems


@pytest.mark.parametrize(
    ("call", "args", "expected"),
    [
        (
            to_mindspore,
            (TensorLayout(MESH, [8], None, ["y", "x"]),),
            [
                "MindSpore's layouts have no partial sums, and this one is partial over 'x', 'y'; "
                "all-reduce or reduce-scatter it first"
            ],
        ),
        (
            to_sbp,
            (TensorLayout(MESH, [8], [["y", "x"]]),),
            [
                "dimension 0 is split over y, x, in this order; signatures of OneFlow mean the "
                "mesh's order, x, y: relayout to that, or use a mesh with its axes in the other "
                "order"
            ],
        ),
        (
            to_rules,
            (TensorLayout(MESH, [8, 2], [["x", "y"], []]), ["batch", "io"]),
            [
                "dimension 'batch' is split over 'x', 'y', and a rule has one axis; use a mesh in "
                "which they are one"
            ],
        ),
        (
            to_rules,
            (TensorLayout(MESH, [8, 2], [["x"], []], ["y"]), ["batch", "io"]),
            [
                "rules have no partial sums, and this layout is partial over 'y'; all-reduce or "
                "reduce-scatter it first"
            ],
        ),
        (to_rules, (TensorLayout(MESH, [8]), []), ["1 dimensions (8,), but names []"]),
        (
            to_rules,
            (TensorLayout(MESH, [8, 8], [["x"], []]), ["io", "io"]),
            [
                "dimension 'io' is there 2 times; a tensor has a dimension once, so give the "
                "others names of their own"
            ],
        ),
        (
            from_mindspore,
            (MindSporeLayout((2, 4), (2, -2), (8, 8)),),
            [
                "tensor_map (2, -2): entry -2 of dimension 1 is not an axis of device_matrix (2, "
                "4); axes are counted from the right, 0 to 1, and -1 is for none",
                "tensor_map (2, -2): entry 2 of dimension 0 is not an axis of device_matrix (2, "
                "4); axes are counted from the right, 0 to 1, and -1 is for none",
            ],
        ),
        (
            from_mindspore,
            (MindSporeLayout((2, 4), (0, 0), (8, 8)), ["x", "y"]),
            [
                "axis 'y' is used 2 times, by dimension 0, dimension 1; an axis splits one "
                "dimension once or is partial, so keep one of them"
            ],
        ),
        (
            from_mindspore,
            (MindSporeLayout((2, 4), (0,), (8,)), ["x"]),
            ["device_matrix (2, 4) has 2 axes, got ['x']"],
        ),
        (
            from_sbp,
            (MESH, [8], ("S(1)", "Q")),
            [
                "axis 'x': 'S(1)' is not a signature of a tensor with 1 dimensions; there are B, P "
                "and S(0) to S(0)",
                "axis 'y': 'Q' is not a signature of a tensor with 1 dimensions; there are B, P "
                "and S(0) to S(0)",
            ],
        ),
        (
            from_sbp,
            (MESH, [8], "(XB, S(0))"),
            [
                "axis 'x': 'XB' is not a signature of a tensor with 1 dimensions; there are B, P "
                "and S(0) to S(0)",
            ],
        ),
        (
            from_sbp,
            (MESH, [8], "S(0)"),
            [
                "mesh 'x:2;y:4' has 2 axes, but there are 1 signatures, (S(0)); give S(i), B or P "
                "for each axis"
            ],
        ),
    ],
)  # fmt: skip
def test_an_impossible_conversion_says_why(call, args, expected):
    assert problems(call, *args) == tuple(expected)
