# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mark tensors of a function with the layout that a plan has to give them.

A mark is an attribute of an `Identity`. It does not name a mesh, since a function may be planned
for several; a plan reads it for its own. A function without a plan ignores it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

from tf_fuse._tensorflow import feature_names, features
from tf_fuse._tensorflow.graphs import functions
from tf_fuse.layout.trace.effects import functions_of
from tf_fuse.layout.trace.records import Origin
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import Mesh
from tf_fuse.layout.types.operation import LAYOUT_MARK, Operation
from tf_fuse.layout.types.specs import (
    Entries,
    Given,
    Partial,
    Placement,
    Replicate,
    Shard,
    entries_of,
    layout_from,
)
from tf_fuse.layout.types.tensor_layout import TensorLayout, without_single_axes

_ATTRIBUTE: Final = "_tf_fuse_layout"
_GRADIENT: Final = "gradient"
_NAME: Final = "constrain"
_WITH_BODIES: Final = ("Case", "If", "StatelessCase", "StatelessIf", "StatelessWhile", "While")
_FOLDERS: Final = (Path(tf.__file__).parent, Path(__file__).parents[2])


@tf.autograph.experimental.do_not_convert
def constrain(tensor: Any, spec: Given, name: str | None = None) -> Any:
    """Give a tensor of a function a layout, as JAX's `with_sharding_constraint`.

    Plans of the function bring the tensor into this layout, and its gradient, too. Without a plan,
    and eagerly, the tensor stays what it is.

    Args:
      tensor: inside of a function that is planned, also in the body of a loop or of a branch,
        unless all devices run that whole.
      spec: an entry for each dimension, as ("x", None); placements for each axis of the mesh, as
        (Shard(0), Replicate()); or a `TensorLayout`. The mesh is that of the plan.
      name: of the operation.

    Returns:
      The tensor.

    Raises:
      LayoutError: it is neither a spec nor placements, or has more entries than the tensor has
        dimensions. Plans raise one if an axis is unknown, or a size is not divisible.
    """
    mark = spec if isinstance(spec, TensorLayout) else entries_of(spec)
    if type(tensor).__name__ == "KerasTensor":
        raise LayoutError(
            f"layout.constrain takes a tensor of a function, got {tensor!r}; call it in the method "
            "call of a layer"
        )
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank is not None:
        _check_rank(mark, tensor.shape.rank)
    if tf.executing_eagerly():
        return tensor
    if not features.works(feature_names.LAYOUT):
        raise LayoutError(
            "this TensorFlow is not one whose operations can be marked: `python -m tf_fuse doctor` "
            "names the member that differs"
        )
    forward, backward = _text(mark, False), _text(mark, True)

    @tf.custom_gradient
    def with_gradient(value: Any) -> Any:
        def back(gradient: Any) -> Any:
            if isinstance(gradient, tf.IndexedSlices):  # Of rows, whose layout is another one.
                return gradient
            return _identity(gradient, backward, f"{name or _NAME}_gradient")

        return _identity(value, forward, name or _NAME), back

    return with_gradient(tensor)


def _check_rank(mark: Entries | TensorLayout, rank: int) -> None:
    if isinstance(mark, TensorLayout) and mark.rank != rank:
        raise LayoutError(
            f"the tensor has {rank} dimensions, and the layout {mark} has {mark.rank}; give one of "
            "the same shape"
        )
    if isinstance(mark, Entries) and not mark.of_axes and len(mark.entries) > rank:
        raise LayoutError(
            f"spec {mark} has {len(mark.entries)} entries, and the tensor has {rank} dimensions; "
            "give an axis's name, a tuple of names, or None for each dimension"
        )


def _identity(value: Any, text: str, name: str) -> Any:
    found = tf.identity(value, name=name)
    functions.set_text_attribute(found.op, _ATTRIBUTE, text)
    return found


def mark_of(operation: Any) -> dict[str, str]:
    """Return the mark of a `tf.Operation` as an attribute for rules; nothing if it has none.

    Raises:
      LayoutError: a tensor in the body of a loop or of a branch has one.
    """
    text = _text_of(operation)
    for inner in _inside(operation) if operation.type in _WITH_BODIES else ():
        if _text_of(inner) is not None:
            raise LayoutError(
                f"layout.constrain {inner.name!r} is in {operation.type} {operation.name!r}, whose "
                "body all devices run whole; constrain what goes in, or what comes out"
            )
    return {} if text is None else {LAYOUT_MARK: text}


def is_marked(operation: Any) -> bool:
    """Return whether a `tf.Operation` has a mark."""
    return _text_of(operation) is not None


def _text_of(operation: Any) -> str | None:
    if operation.type != "Identity":
        return None
    try:
        found: bytes = operation.get_attr(_ATTRIBUTE)
    except ValueError:
        return None
    return found.decode()


def _inside(operation: Any) -> Iterator[Any]:
    for one in functions_of(operation):
        for inner in functions.graph_of(one).get_operations():
            yield inner
            yield from _inside(inner)


def layouts_of_marks(
    operations: tuple[Operation, ...], origins: Mapping[str, Origin], mesh: Mesh
) -> dict[str, TensorLayout]:
    """Return, by names of marked operations, the layouts that their tensors must have.

    Axes of one device split nothing, and so are left out.

    Raises:
      LayoutError: a mark does not fit the mesh or its tensor; the error says where it was made.
    """
    found = {}
    # Of tensors, and of their gradients, whose marks are copies.
    problems: tuple[list[str], list[str]] = [], []
    for one in operations:
        text = one.attribute(LAYOUT_MARK)
        if text is None:
            continue
        try:
            wanted = layout_from(mesh, one.outputs[0].shape, _given(text))
            found[one.name] = without_single_axes(wanted)
        except LayoutError as error:
            where = _place(origins[one.name].operation)
            problems[_GRADIENT in json.loads(text)].extend(
                f"layout.constrain {one.name!r}{where}: {each}" for each in error.problems
            )
    raise_if(problems[0] or problems[1])
    return found


def _place(operation: Any) -> str:
    """Return the line of the program that made an operation."""
    for frame in reversed(list(operation.traceback or ())):
        path = Path(frame.filename)
        if not any(path.is_relative_to(folder) for folder in _FOLDERS) and path.is_file():
            return f" ({frame.filename}:{frame.lineno})"
    return ""


def _text(mark: Entries | TensorLayout, backward: bool) -> str:
    """Return a mark as text; what devices hold of a gradient is not a sum's term."""
    found: dict[str, Any]
    if isinstance(mark, TensorLayout):
        partial = () if backward else mark.partial
        found = {"mesh": mark.mesh.dims, "shape": mark.shape, "splits": mark.splits}
        found["partial"] = partial
    elif mark.of_axes:
        summed = "B" if backward else "P"
        found = {
            "placements": [
                one.dim if isinstance(one, Shard) else summed if one == Partial() else "B"
                for one in mark.entries
            ]
        }
    else:
        found = {"spec": mark.entries}
    return json.dumps(found | ({_GRADIENT: True} if backward else {}))


def _given(text: str) -> Given:
    read = json.loads(text)
    if "mesh" in read:
        return TensorLayout(Mesh(read["mesh"]), read["shape"], read["splits"], read["partial"])
    if "spec" in read:
        return read["spec"]
    words: list[int | str] = read["placements"]
    found: list[Placement] = [
        Shard(one) if isinstance(one, int) else Partial() if one == "P" else Replicate()
        for one in words
    ]
    return found
