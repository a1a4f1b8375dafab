# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Names of dimensions: where they come to, and conflicts with the paths of both."""

from __future__ import annotations

import pytest

from tf_fuse.layout import Dimension, LayoutError, LayoutRules, Mesh
from tf_fuse.layout.strategies.name_propagation import propagate
from tf_fuse.layout.types.operation import Operation, Tensor

B, IO, H = 8, 4, 16
SHAPES = {"x": (B, IO), "w": (IO, H), "b": (H,), "h": (B, H), "a": (B, H), "r": (B, H),
          "v": (H, IO), "y": (B, IO), "s": (B, IO)}  # fmt: skip


def op(name, kind, inputs, shapes=SHAPES, **attributes) -> Operation:
    return Operation(
        name, kind, [Tensor(one, shapes[one]) for one in inputs.split()],
        [Tensor(name, shapes[name])], attributes,
    )  # fmt: skip


MLP = [
    op("h", "MatMul", "x w"),
    op("a", "BiasAdd", "h b"),
    op("r", "Relu", "a"),
    op("y", "MatMul", "r v"),
    op("s", "Add", "x y"),
]


def test_two_annotations_name_all_of_two_layers():
    names = propagate(MLP, {"x": ["batch", "io"], "b": [Dimension("hidden", H)]})
    assert names.made == names.read == {
        "x": ("batch", "io"), "w": ("io", "hidden"), "b": ("hidden",), "h": ("batch", "hidden"),
        "a": ("batch", "hidden"), "r": ("batch", "hidden"), "v": ("hidden", "io"),
        "y": ("batch", "io"), "s": ("batch", "io"),
    }  # fmt: skip
    assert names.sizes() == {"batch": B, "hidden": H, "io": IO}
    mesh = Mesh({"rows": 2, "cols": 4})
    rules = LayoutRules.from_text("batch:rows;hidden:cols")
    assert str(names.layout("r", rules, mesh)) == "[8/rows, 16/cols] on rows:2;cols:4"
    assert str(names.layout("w", rules, mesh)) == "[4, 16/cols] on rows:2;cols:4"


def test_what_nothing_reaches_has_no_name_and_is_not_split():
    names = propagate(MLP, {"x": [None, "io"]})
    assert names.made["w"] == ("io", None)
    assert names.made["b"] == (None,)
    rules = LayoutRules.from_text("io:rows")
    assert str(names.layout("w", rules, Mesh({"rows": 2}))) == "[4/rows, 16] on rows:2"
    with pytest.raises(LayoutError) as caught:
        names.layout("q", rules, Mesh({"rows": 2}))
    assert str(caught.value) == ("tensor 'q' is not in the graph: it has a, b, h, r, s, v, w, x, y")
    with pytest.raises(LayoutError, match="not a multiple of the 3 devices"):
        names.layout("w", rules, Mesh({"rows": 3}))


def test_names_go_through_shapes_and_end_at_what_has_no_rule():
    shapes = {"x": (4, 6, 8), "t": (6, 4, 8), "f": (6, 32), "p": (6, 34), "q": (6, 34),
              "e": (6, 1, 34)}  # fmt: skip
    operations = [
        op("t", "Transpose", "x", shapes, perm=(1, 0, 2)),
        op("f", "Reshape", "t", shapes),
        op("p", "Pad", "f", shapes, paddings=[[0, 0], [1, 1]]),
        op("q", "Bessel", "p", shapes),
        op("e", "ExpandDims", "p", shapes),
    ]
    names = propagate(operations, {"x": ["heads", "seq", "dim"]})
    assert names.made == {
        "x": ("heads", "seq", "dim"), "t": ("seq", "heads", "dim"), "f": ("seq", None),
        "p": ("seq", None), "q": (None, None), "e": ("seq", None, None),
    }  # fmt: skip


def test_two_names_that_meet_are_an_error_with_both_paths():
    with pytest.raises(LayoutError) as caught:
        propagate(MLP, {"x": ["batch", "io"], "v": ["hidden", "out"]})
    assert caught.value.problems == (
        "dimension 1 of tensor 'y' is 'out' by v[1] -> MatMul 'y' -> y[1], and 'io' by x[1] -> Add "
        "'s' -> y[1]; give both the same name, or rename a tensor on one of the paths",
    )


def test_a_name_that_comes_twice_to_a_tensor_is_an_error_and_a_rename_mends_it():
    shapes = {"x": (2, 6, 4), "c": (2, 6, 4), "k": (2, 6, 4), "s": (2, 6, 6), "o": (2, 6, 4)}
    operations = [
        op("c", "Identity", "x", shapes),
        op("k", "Identity", "x", shapes),
        op("s", "Einsum", "c k", shapes, equation="bqd,bkd->bqk"),
        op("o", "Einsum", "s k", shapes, equation="bqk,bkd->bqd"),
    ]
    with pytest.raises(LayoutError) as caught:
        propagate(operations, {"x": ["batch", "seq", "dim"]})
    assert caught.value.problems == (
        "tensor 's' has dimension 'seq' twice: by x[1] -> Identity 'c' -> c[1] -> Einsum 's' -> "
        "s[1], and by x[1] -> Identity 'k' -> k[1] -> Einsum 's' -> s[2]; rename a tensor on one "
        "of the paths",
    )
    annotations = {"x": ["batch", "seq", "dim"], "k": ["batch", "memory", "dim"]}
    with pytest.raises(LayoutError, match=r"is 'seq' by x\[1\].*, and 'memory' by k\[1\]"):
        propagate(operations, annotations)
    names = propagate(operations, annotations, renamed=["k"])
    assert names.made["k"] == ("batch", "seq", "dim")
    assert names.read["k"] == ("batch", "memory", "dim")
    assert names.made["s"] == names.read["s"] == ("batch", "seq", "memory")
    assert names.made["o"] == ("batch", "seq", "dim")
    mesh = Mesh({"x": 2})
    rules = LayoutRules.from_text("memory:x")
    assert str(names.layout("k", rules, mesh)) == "[2, 6, 4] on x:2"
    assert str(names.layout("k", rules, mesh, read=True)) == "[2, 6/x, 4] on x:2"


def test_one_name_with_two_sizes_is_an_error_with_both_paths():
    with pytest.raises(LayoutError) as caught:
        propagate(MLP[:3], {"x": ["n", None], "b": ["n"]})
    assert caught.value.problems == (
        "dimension 'n' has 8 elements by x[0] -> MatMul 'h' -> h[0] -> BiasAdd 'a' -> a[0], and "
        "16 by b[0] -> BiasAdd 'a' -> a[1]; give one of them another name",
        "tensor 'a' has dimension 'n' twice: by x[0] -> MatMul 'h' -> h[0] -> BiasAdd 'a' -> a[0], "
        "and by b[0] -> BiasAdd 'a' -> a[1]; rename a tensor on one of the paths",
    )


def test_annotations_that_do_not_fit_are_errors():
    with pytest.raises(LayoutError) as caught:
        propagate(
            MLP,
            {"q": ["a"], "x": ["a"], "w": [Dimension("io", 5), "a b"], "b": [Dimension("h", 16)]},
            renamed=["z", "h"],
        )
    assert caught.value.problems == (
        "a rename is for tensor 'z', which is not in the graph: it has a, b, h, r, s, v, w, x, y",
        "an annotation is for tensor 'q', which is not in the graph: it has a, b, h, r, s, v, w, "
        "x, y",
        "tensor 'h' is renamed, and has no annotation with the new names",
        "tensor 'w': dimension 'a b': a name is a string of one character or more, without spaces "
        "and any of :;,(); choose another",
        "tensor 'w': dimension 0 has 4 elements, and is named 'io' with 5; make them equal",
        "tensor 'x' has 2 dimensions [8, 4], and its annotation 1; give a name for each, or None",
    )
