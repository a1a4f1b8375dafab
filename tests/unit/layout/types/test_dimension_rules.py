# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Dimensions, meshes and rules: what they mean, and what they say when they cannot be."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tf_fuse import layout
from tf_fuse.layout import (
    Dimension,
    LayoutError,
    LayoutRules,
    Mesh,
    StepSet,
    TensorLayout,
    assumed_rates,
)
from tf_fuse.layout.optimize import Candidate, Node, Problem, search, search_meshes
from tf_fuse.layout.optimize.graph_problem import problem_of
from tf_fuse.layout.planning.sharding_constraints import annotations_of
from tf_fuse.layout.strategies.name_propagation import propagate
from tf_fuse.layout.types.operation import Operation, Tensor

MESH = Mesh({"rows": 2, "cols": 4})
BATCH, HIDDEN, IO = Dimension("batch", 8), Dimension("hidden", 12), Dimension("io", 6)


def problems(call, *args) -> tuple[str, ...]:
    with pytest.raises(LayoutError) as caught:
        call(*args)
    return caught.value.problems


def test_a_layout_is_the_rules_restricted_to_a_tensor():
    rules = LayoutRules.from_text("batch:rows;hidden:cols")
    tensors = {"x": [BATCH, IO], "w": [IO, HIDDEN], "h": [BATCH, HIDDEN], "scale": []}
    assert rules.layouts(tensors, MESH) == {
        "x": TensorLayout(MESH, [8, 6], [["rows"], []]),
        "w": TensorLayout(MESH, [6, 12], [[], ["cols"]]),
        "h": TensorLayout(MESH, [8, 12], [["rows"], ["cols"]]),
        "scale": TensorLayout(MESH, []),
    }
    assert rules.layout([HIDDEN], MESH) == TensorLayout(MESH, [12], [["cols"]])


@pytest.mark.parametrize("text", ["", "batch:rows", "batch:rows;hidden:cols", "a:rows;b:rows"])
def test_rules_are_read_from_their_text(text):
    assert str(LayoutRules.from_text(text)) == text
    spaced = " ; ".join(text.replace(":", " : ").split(";")) + " ;"
    assert LayoutRules.from_text(spaced) == LayoutRules.from_text(text)


def test_the_text_of_a_mesh():
    assert Mesh.from_text(" rows:2; cols :4 ") == MESH
    assert str(MESH) == "rows:2;cols:4"
    assert (MESH.axes, MESH.shape, MESH.size) == (("rows", "cols"), (2, 4), 8)
    assert [MESH.coordinates(device) for device in (0, 3, 4, 7)] == [(0, 0), (0, 3), (1, 0), (1, 3)]
    assert Mesh({}).size == 1


def test_every_offender_of_a_model_is_named():
    rules = LayoutRules({"batch": "rows", "io": "rows", "hidden": "cols", "vocab": "deep"})
    tensors = {
        "x": [BATCH, IO],
        "h": [BATCH, Dimension("hidden", 10)],
        "w": [IO, HIDDEN],
        "twice": [HIDDEN, HIDDEN],
    }
    assert problems(rules.layouts, tensors, MESH) == (
        "dimension 'hidden' has 2 sizes: 10 in h, 12 in twice, w; give it one size, or give those "
        "of another size another name",
        "rule vocab:deep: axis 'deep' is not in mesh 'rows:2;cols:4'; its axes are: rows, cols",
        "rule vocab:deep: no tensor has a dimension 'vocab'; there are: batch, hidden, io",
        "tensor 'h': dimension 'hidden' has 10 elements, which is not a multiple of the 4 devices "
        "of axis 'cols'; pad it to 12, or leave out the rule hidden:cols",
        "tensor 'twice': dimension 'hidden' is there 2 times; a tensor has a dimension once, so "
        "give the others names of their own",
        "tensor 'x': dimensions 'batch', 'io' are all on axis 'rows'; keep the rule of one of "
        "them, or name a dimension otherwise here",
    )


def test_one_tensor_does_not_mind_rules_for_others():
    rules = LayoutRules({"batch": "rows", "vocab": "cols"})
    assert rules.layout([BATCH], MESH).splits == (("rows",),)
    rules = LayoutRules({"batch": "rows", "vocab": "deep"})
    assert problems(rules.layout, [BATCH], MESH) == (
        "rule vocab:deep: axis 'deep' is not in mesh 'rows:2;cols:4'; its axes are: rows, cols",
    )


@pytest.mark.parametrize(
    ("call", "args", "expected"),
    [
        (
            Dimension,
            ("a b", 0),
            [
                "dimension 'a b': a name is a string of one character or more, without spaces and "
                "any of :;,(); choose another",
                "dimension 'a b': a size is a whole number, 1 or more, got 0",
            ],
        ),
        (Dimension, ("a", 2.0), ["dimension 'a': a size is a whole number, 1 or more, got 2.0"]),
        (Dimension, ("a", True), ["dimension 'a': a size is a whole number, 1 or more, got True"]),
        (
            Mesh,
            ([("x", 2), ("x", 2), ("", -1)],),
            [
                "axis '': a name is a string of one character or more, without spaces and any of "
                ":;,(); choose another",
                "axis '': a size is a whole number, 1 or more, got -1",
                "axis 'x' is there 2 times; give each axis a name of its own",
            ],
        ),
        (
            Mesh.from_text,
            ("x:2;y:two",),
            ["axis 'y' of 'x:2;y:two': its size is a whole number, got 'two'"],
        ),
        (
            Mesh.from_text,
            ("x:2;y",),
            ["axis 'y' of 'x:2;y': write name:value, with a semicolon between two of them"],
        ),
        (
            LayoutRules.from_text,
            ("a:x;b:;a:y:z",),
            [
                "rule 'a:y:z' of 'a:x;b:;a:y:z': write name:value, with a semicolon between two of "
                "them",
                "rule 'b:' of 'a:x;b:;a:y:z': write name:value, with a semicolon between two of "
                "them",
            ],
        ),
        (
            LayoutRules.from_text,
            ("a:x;b:z;a:y",),
            ["dimension 'a' has 2 rules, for the axes x, y; keep one of them"],
        ),
        (MESH.coordinates, (8,), ["device 8: mesh rows:2;cols:4 has devices 0 to 7"]),
        (
            MESH.size_of,
            ("x",),
            ["axis 'x' is not in mesh 'rows:2;cols:4'; its axes are: rows, cols"],
        ),
        (
            TensorLayout,
            (MESH, [8, 6], [["rows", "x"], ["rows", "cols"]], ["cols"]),
            [
                "axis 'cols' is used 2 times, by partial, dimension 1; an axis splits one "
                "dimension once or is partial, so keep one of them",
                "axis 'rows' is used 2 times, by dimension 0, dimension 1; an axis splits one "
                "dimension once or is partial, so keep one of them",
                "axis 'x' is not in mesh 'rows:2;cols:4'; its axes are: rows, cols",
                "dimension 1 has 6 elements, which is not a multiple of the 8 slices over 'rows', "
                "'cols'; pad it to 8, or split it over fewer devices",
            ],
        ),
        (
            TensorLayout,
            (MESH, [8, 6], [["rows"]]),
            [
                "the tensor has 2 dimensions (8, 6), but splits are given for 1; give one for "
                "each, empty where it is not split"
            ],
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_an_error_with_all_problems(call, args, expected):
    assert problems(call, *args) == tuple(expected)


def _text_for(name: str, text: str) -> str:
    return f"{name}: give a sequence of names, got the text {text!r}; write [{text!r}] for one"


_XY = Mesh({"x": 2, "y": 2})
_GIVEN = [Tensor("x", (8, 4)), Tensor("w", (4, 4), parameter=True)]
_MATMUL = Operation("y", "MatMul", _GIVEN, [Tensor("y", (8, 4))])


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            lambda: Mesh("x:2"),
            "mesh: give a mapping or pairs, got the text 'x:2'; write layout.Mesh.from_text('x:2')",
        ),
        (lambda: Mesh(["x2"]), "mesh: give a mapping or pairs, got 'x2', which is not a pair"),
        (
            lambda: LayoutRules("batch:rows"),
            "rules: give a mapping or pairs, got the text 'batch:rows'; write "
            "layout.LayoutRules.from_text('batch:rows')",
        ),
        (
            lambda: LayoutRules(["bx", ("h", "y")]),
            "rules: give a mapping or pairs, got 'bx', which is not a pair",
        ),
        (
            lambda: LayoutRules({"b": "x"}).layouts({"x": ["b"]}, _XY),
            "tensor 'x': give a layout.Dimension for each dimension, got 'b'",
        ),
        (
            lambda: LayoutRules({"b": "x"}).layout("b", _XY),
            "give a layout.Dimension for each dimension, got 'b'",
        ),
        (
            lambda: layout.to_rules(TensorLayout(_XY, (8, 8), (["x"], ())), "bh"),
            _text_for("names", "bh"),
        ),
        (
            lambda: propagate([_MATMUL], {"x": "bi"}),
            _text_for("tensor 'x': dimensions", "bi"),
        ),
        (lambda: annotations_of({"x": "bi"}), _text_for("dimensions of 'x'", "bi")),
        (
            lambda: propagate([_MATMUL], {"x": ["b", "i"]}, renamed="x"),
            _text_for("renamed", "x"),
        ),
        (
            lambda: problem_of([_MATMUL], assumed_rates(_XY), results="y"),
            _text_for("results", "y"),
        ),
        (
            lambda: search(Problem([Node("a", (Candidate("s"),))])).why("a"),
            _text_for("operations", "a"),
        ),
        (
            lambda: Problem([Node("a", (Candidate("s", tags="data"),))]),
            _text_for("operation 'a', strategy 's': tags", "data"),
        ),
        (lambda: StepSet(joint="all_to_all"), _text_for("joint", "all_to_all")),
        (
            lambda: StepSet(joint=["all_reduce", "all2all"]),
            "joint: 'all2all' cannot take several axes at once; these can: all_to_all, all_reduce, "
            "permute",
        ),
    ],
)  # fmt: skip
def test_text_is_no_sequence_of_names(call, expected):
    """Its letters would be names, or would be no names, which no error could tell."""
    assert problems(call) == (expected,)


def test_text_is_the_name_of_one_axis():
    mesh = Mesh((2,), "rows")
    assert mesh == Mesh({"rows": 2})
    assert TensorLayout(mesh, (8, 8), ("rows", None)) == TensorLayout(mesh, (8, 8), [["rows"], []])
    assert TensorLayout(mesh, (8,), "rows", ()) == TensorLayout(mesh, (8,), [["rows"]])
    assert TensorLayout(mesh, (8,), None, "rows").partial == ("rows",)
    assert mesh.groups("rows") == [[0, 1]]
    written = layout.MindSporeLayout((2,), (0,), (8,))
    assert layout.from_mindspore(written, "rows") == TensorLayout(mesh, (8,), ["rows"])
    found = search_meshes(4, lambda one: Problem([Node(str(one), (Candidate("s"),))]), axes="rows")
    assert [str(one.mesh) for one in found.tried] == ["rows:4"]
    unknown = "axis 'xy' is not in mesh 'x:2;y:2'; its axes are: x, y"
    assert problems(TensorLayout, _XY, (8, 8), ("xy", None)) == (unknown,)
    assert problems(TensorLayout, _XY, (8, 8), None, "xy") == (unknown,)
    assert problems(_XY.groups, "xy") == (unknown,)


def test_a_mesh_of_sizes_and_names():
    assert Mesh((2, 4), ("rows", "cols")) == MESH
    assert Mesh([2, 4], iter(["rows", "cols"])) == MESH
    assert Mesh((), ()) == Mesh({})
    assert problems(Mesh, (2, 4)) == (
        "mesh (2, 4) has sizes without names; name each axis, as layout.Mesh((2, 4), ('axis0', "
        "'axis1'))",
    )
    assert problems(Mesh, (2, 4), "xy") == (
        "mesh: (2, 4) has 2 sizes, and there are 1 names ('xy',); give a name for each axis",
    )
    assert problems(Mesh, {"x": 2}, "x") == (
        "mesh: the axes of {'x': 2} have names, and names are 'x'; give them once",
    )
    assert problems(Mesh, (2, 2), ("x", "x")) == (
        "axis 'x' is there 2 times; give each axis a name of its own",
    )


class _TheirMesh:
    """As JAX's: sizes by names."""

    axis_names = ("x", "y")
    shape: ClassVar = {"x": 2, "y": 4}

    def __repr__(self) -> str:
        return "TheirMesh"


@pytest.mark.parametrize(
    ("given", "way"),
    [
        ("x:2", "layout.Mesh.from_text('x:2')"),
        ({"x": 2}, "layout.Mesh({'x': 2})"),
        ((2, 4), "layout.Mesh((2, 4), ('x', 'y'))"),
        (_TheirMesh(), "layout.Mesh((2, 4), ('x', 'y'))"),
    ],
)
def test_what_is_not_a_mesh_gets_the_way_to_write_it(given, way):
    expected = (f"a layout.Mesh is needed, got {given!r}; write {way}",)
    assert problems(TensorLayout, given, (8,)) == expected
    assert problems(layout.from_sbp, given, (8,), "B") == expected
    assert problems(layout.from_spec, given, (8,), ()) == expected
    assert problems(LayoutRules({}).layout, [BATCH], given) == expected
    assert problems(LayoutRules({}).layouts, {}, given) == expected


def test_an_error_with_several_problems_is_a_list():
    assert str(LayoutError("one")) == "one"
    assert str(LayoutError(["b", "a"])) == "- a\n- b"


def test_slices_bytes_and_holders():
    one = TensorLayout(MESH, [8, 6], [["cols", "rows"], []])
    assert one.slice_shape == (1, 6)
    assert one.bytes_per_device(4) == 24
    # Device 5 is at row 1, column 1: slice 1 * 2 + 1 of the rows.
    assert one.slice_of(5) == (slice(3, 4), slice(0, 6))
    two = TensorLayout(MESH, [8, 6], [["rows"], []], ["cols"])
    assert (two.replicated, two.partial) == ((), ("cols",))
    assert two.slice_of(5) == (slice(4, 8), slice(0, 6))
    assert [two.term_of(device) for device in (0, 5, 7)] == [(0,), (1,), (3,)]
    assert two.holders() == {((0, 4), (0, 6)): [0, 1, 2, 3], ((4, 8), (0, 6)): [4, 5, 6, 7]}
    assert str(two) == "[8/rows, 6] sum over cols on rows:2;cols:4"
    assert TensorLayout(MESH, [8]).replicated == ("rows", "cols")


def picture_of(one: TensorLayout) -> str:
    from rich.console import Console

    console = Console(width=72)
    with console.capture() as capture:
        console.print(layout.picture(one, item_bytes=2))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def test_the_picture_shows_who_holds_what():
    assert picture_of(TensorLayout(MESH, [4, 8, 3], [["rows"], [], []], ["cols"])) == (
        """\
[4/rows, 8, 3] sum over cols on rows:2;cols:4
each device: [2, 8, 3], 96 bytes
┌───────────────────┬───────────────────┐
│ dimension 0: 0..1 │ dimension 0: 2..3 │
├───────────────────┼───────────────────┤
│ 0:0 1:1 2:2 3:3   │ 4:0 5:1 6:2 7:3   │
└───────────────────┴───────────────────┘"""
    )
    mesh = Mesh({"x": 2, "y": 2, "z": 2})
    assert picture_of(TensorLayout(mesh, [4, 8], [["z"], ["x"]])) == (
        """\
[4/z, 8/x] on x:2;y:2;z:2
each device: [2, 4], 16 bytes
┌─────────────┬───────────────────┬───────────────────┐
│ dimension 0 │ dimension 1: 0..3 │ dimension 1: 4..7 │
├─────────────┼───────────────────┼───────────────────┤
│ 0..1        │ 0 2               │ 4 6               │
├─────────────┼───────────────────┼───────────────────┤
│ 2..3        │ 1 3               │ 5 7               │
└─────────────┴───────────────────┴───────────────────┘"""
    )
    assert "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 and 4 more" in " ".join(
        picture_of(TensorLayout(Mesh({"x": 20}), [4])).replace("│", "").split()
    )


def test_what_is_shown_in_a_file_has_whole_names(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    name = "_".join(f"part_{i}" for i in range(20))  # Longer than 80 columns.
    plan = search(Problem([Node(name, (Candidate("replicate", 0.5), Candidate("split", 1.0)))]))
    layout.show(plan)
    assert f"\u2502 {name} \u2502 replicate " in capsys.readouterr().out
    layout.show(plan.why())
    assert "\u2502 this one " in capsys.readouterr().out
    one = TensorLayout(MESH, [8, 6], [["rows"], []], ["cols"])
    layout.show(one, item_bytes=2)
    assert capsys.readouterr().out.startswith(f"{one}\neach device: [4, 6], 48 bytes\n")
