# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layouts as JAX, Keras and PyTorch write them, there and back."""

from __future__ import annotations

import types

import pytest
from hypothesis import given

from tests.unit.layout.types.test_notation import layouts
from tf_fuse.layout import (
    LayoutError,
    Mesh,
    Partial,
    Replicate,
    Shard,
    TensorLayout,
    from_placements,
    from_spec,
    to_placements,
    to_spec,
)
from tf_fuse.layout.types.specs import entries_of, layout_from

MESH = Mesh((2, 4), ("x", "y"))
SHAPE = (8, 16)


def problems(call, *args) -> tuple[str, ...]:
    with pytest.raises(LayoutError) as caught:
        call(*args)
    return caught.value.problems


@given(layouts(partial=False))
def test_specs_and_back(one):
    assert from_spec(one.mesh, one.shape, to_spec(one)) == one


@given(layouts())
def test_placements_and_back(one):
    try:
        there = to_placements(one)
    except LayoutError as error:
        assert "in this order; placements mean the mesh's order" in str(error)
        return
    assert from_placements(one.mesh, one.shape, there) == one


@pytest.mark.parametrize(
    ("spec", "splits"),
    [
        (("x", None), [["x"], []]),
        ("x", [["x"], []]),
        ((), [[], []]),
        ((None, ["y"]), [[], ["y"]]),
        ((("y", "x"),), [["y", "x"], []]),
        (iter(["x", "y"]), [["x"], ["y"]]),
    ],
)
def test_what_specs_say(spec, splits):
    assert from_spec(MESH, SHAPE, spec) == TensorLayout(MESH, SHAPE, splits)


def test_what_placements_say():
    found = from_placements(MESH, SHAPE, (Shard(-1), Partial()))
    assert found == TensorLayout(MESH, SHAPE, [[], ["x"]], ["y"])
    found = from_placements(MESH, SHAPE, [Shard(0), Shard(0)])
    assert found == TensorLayout(MESH, SHAPE, [["x", "y"], []])
    assert from_placements(Mesh({"x": 2}), (4,), Replicate()).splits == ((),)
    assert from_placements(Mesh({}), (4,), ()) == TensorLayout(Mesh({}), (4,))


class _Theirs:
    """As PyTorch's placements."""

    def __init__(self, kind: str, dim: int | None = None, reduce_op: str = "sum"):
        self._kind = kind
        self.dim = dim
        self.reduce_op = reduce_op

    def is_shard(self) -> bool:
        return self._kind == "shard"

    def is_replicate(self) -> bool:
        return self._kind == "replicate"

    def is_partial(self) -> bool:
        return self._kind == "partial"

    def __repr__(self) -> str:
        return f"{self._kind}({self.reduce_op})"


def test_placements_and_specs_of_other_packages():
    shard = type("Shard", (_Theirs,), {})("shard", 1)
    found = layout_from(MESH, SHAPE, (shard, _Theirs("partial")))
    assert found == TensorLayout(MESH, SHAPE, [[], ["x"]], ["y"])
    assert layout_from(MESH, SHAPE, (_Theirs("replicate"), shard)).splits == ((), ("y",))
    mean = (_Theirs("partial", reduce_op="avg"), shard)
    assert problems(layout_from, MESH, SHAPE, mean) == (
        "placement partial(avg): there are Shard(dim), Replicate(), and Partial() of a sum; "
        "relayout to one of these first",
    )
    of_jax = types.SimpleNamespace(spec=("x", None), mesh=None)
    of_keras = types.SimpleNamespace(axes=("x", None), device_mesh=None)
    for one in (of_jax, of_keras):
        assert layout_from(MESH, SHAPE, one).splits == (("x",), ())


def test_a_layout_of_another_mesh_or_shape():
    one = TensorLayout(MESH, SHAPE)
    assert layout_from(MESH, SHAPE, one) is one
    assert problems(layout_from, Mesh({"x": 2}), (8,), one) == (
        "the layout is for mesh x:2;y:4, and here is mesh x:2; give one for this",
        "the layout is for shape [8, 16], and here is shape [8]; give one for this",
    )
    assert problems(entries_of, one) == (
        f"{one} is a TensorLayout already; give a spec or placements",
    )


NEITHER = "a layout is a spec, as ('x', None), or placements, as (Shard(0), Replicate()), got "


@pytest.mark.parametrize(
    ("read", "what", "expected"),
    [
        (from_spec, ("rows",), "axis 'rows' is not in mesh 'x:2;y:4'; its axes are: x, y"),
        (
            from_spec,
            ("x", "x"),
            "axis 'x' is used 2 times, by dimension 0, dimension 1; an axis splits one dimension "
            "once or is partial, so keep one of them",
        ),
        (
            from_spec,
            ("x", None, ("x", "y")),
            "spec ('x', None, ('x', 'y')) has 3 entries, and the tensor has 2 dimensions (8, 16); "
            "give an axis's name, a tuple of names, or None for each dimension",
        ),
        (
            from_spec,
            (3, None),
            "spec, dimension 0: give an axis's name, a tuple of names, or None, got 3",
        ),
        (
            from_spec,
            (("x", 3), None),
            "spec, dimension 0: give an axis's name, a tuple of names, or None, got ('x', 3)",
        ),
        (from_spec, {"x": 0}, NEITHER + "{'x': 0}"),
        (from_spec, 3, NEITHER + "3"),
        (from_spec, None, NEITHER + "None"),
        (
            from_spec,
            (Shard(0), None),
            "(Shard(dim=0), None) has placements and names of axes; give a spec, as ('x', None), "
            "or placements, as (Shard(0), Replicate())",
        ),
        (
            from_spec,
            (Shard(0), Replicate()),
            "(Shard(dim=0), Replicate()) has placements; read them by layout.from_placements",
        ),
        (from_placements, ("x", None), "('x', None) is a spec; read it by layout.from_spec"),
        (
            from_placements,
            [Shard(0)] * 3,
            "mesh 'x:2;y:4' has 2 axes, and there are 3 placements (Shard(dim=0), Shard(dim=0), "
            "Shard(dim=0)); give Shard(dim), Replicate() or Partial() for each axis",
        ),
        (
            from_placements,
            Shard(0),
            "mesh 'x:2;y:4' has 2 axes, and there are 1 placements (Shard(dim=0)); give "
            "Shard(dim), Replicate() or Partial() for each axis",
        ),
        (
            from_placements,
            [Shard(2), Replicate()],
            "axis 'x': Shard(dim=2) is for a dimension that a tensor of shape (8, 16) does not "
            "have; there are 2 dimensions, from 0",
        ),
    ],
)
def test_what_cannot_be_read(read, what, expected):
    assert problems(read, MESH, SHAPE, what) == (expected,)


def test_what_cannot_be_split_or_written():
    assert problems(from_spec, MESH, (7, 16), ("x",)) == (
        "dimension 0 has 7 elements, which is not a multiple of the 2 slices over 'x'; pad it to "
        "8, or split it over fewer devices",
    )
    assert problems(to_spec, TensorLayout(MESH, SHAPE, None, "y")) == (
        "specs have no partial sums, and this layout is partial over 'y'; all-reduce or "
        "reduce-scatter it first",
    )
    assert problems(Shard, "x") == (
        "Shard takes the number of a dimension, got 'x'; write Shard(0)",
    )
