# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find where Keras 3 divides some rows of a table by a whole table.

Keras 3 searches the whole divisor for zeros and NaNs. A conditional then decides which rows the
quotient has: those of the dividend, or also those with a zero or a NaN. So a conditional stands
between the update of a slot and the update of its weight.

`_expected` is the text of what the branches compute. If another version of Keras computes something
else, the texts differ and the conditional stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import GraphView, data_inputs
from tf_fuse.fuse_update.analysis.branch_text import BranchText

_IFS = frozenset({"If", "StatelessIf"})
_QUOTIENT = re.compile(r"RealDiv\((a\d+), GatherV2\((a\d+), (a\d+), 0\)\)")
_ARGUMENT = re.compile(r"a\d+")


@dataclass(frozen=True)
class Division:
    """A conditional that computes such a quotient.

    Attributes:
      node: its name.
      flags: tensor that marks the zeros and NaNs of the divisor.
      indices: tensor of the dividend's row numbers.
      values: tensor of the dividend's rows.
      divisor: tensor of the whole divisor.
      shape: tensor of the divisor's shape.
      outputs: indices of its outputs: the quotient, the row numbers, the shape.
    """

    node: str
    flags: str
    indices: str
    values: str
    divisor: str
    shape: str
    outputs: tuple[int, int, int]


def divisions(
    view: GraphView, shapes: Mapping[str, Shape | None], body: Callable[[str], Any]
) -> Iterator[Division]:
    """Yield the divisions of a function.

    Args:
      view: of the function.
      shapes: of its tensors.
      body: returns the `FunctionDef` of a function, by name, or None.
    """
    for node in view.nodes.values():
        if node.op in _IFS and (found := _division(view, shapes, body, node)) is not None:
            yield found


def _division(
    view: GraphView, shapes: Mapping[str, Shape | None], body: Callable[[str], Any], node: Any
) -> Division | None:
    predicate, *given = data_inputs(node)
    names = [f"a{i}" for i in range(len(given))]
    branches = [node.attr[key].func.name for key in ("then_branch", "else_branch")]
    if any(body(name) is None for name in branches) or f"{node.name}/joined" in view.nodes:
        return None
    then, other = (BranchText(body(name), names, body, view.op_def).outputs() for name in branches)
    quotients = [i for i, text in enumerate(other) if _QUOTIENT.fullmatch(text)]
    if len(other) != 3 or len(quotients) != 1 or len(then) != 3:
        return None
    values, divisor, indices = _QUOTIENT.fullmatch(other[quotients[0]]).groups()  # type: ignore[union-attr]
    rest = [i for i in range(3) if i != quotients[0]]
    numbers = [i for i in rest if other[i] == indices]
    if len(numbers) != 1:
        return None
    (shape_at,) = (i for i in rest if i != numbers[0])
    shape = other[shape_at]
    flags = [i for i, tensor in enumerate(given) if _any(view, predicate, [0]) == tensor]
    if not _ARGUMENT.fullmatch(shape) or len(flags) != 1:
        return None
    tensor_of = dict(zip(names, given, strict=True))
    table = shapes.get(tensor_of[divisor])
    whole = None if table is None else _any(view, given[flags[0]], list(range(1, len(table))))
    if not table or whole is None or shapes.get(whole) != table:
        return None
    roles = {values: "values", divisor: "divisor", indices: "indices", shape: "shape"}
    roles[names[flags[0]]] = "flags"
    if len(roles) != 5:
        return None
    said = [re.sub(r"\ba\d+\b", lambda m: roles.get(m.group(), m.group()), t) for t in then]
    at = quotients[0], numbers[0], shape_at
    if tuple(said[i] for i in at) not in set(_expected()) | set(_expected(_count(said[at[0]]))):
        return None
    return Division(
        node.name,
        whole,
        indices=tensor_of[indices],
        values=tensor_of[values],
        divisor=tensor_of[divisor],
        shape=tensor_of[shape],
        outputs=at,
    )


def _any(view: GraphView, tensor: str, axes: list[int]) -> str | None:
    """Return the input of a reduction by `Any` over some axes, or None."""
    from tensorflow.python.framework import tensor_util

    node = view.producer(tensor)
    if node is None or node.op != "Any" or node.attr["keep_dims"].b:
        return None
    read, axis = data_inputs(node)
    constant = view.producer(axis)
    if constant is None or constant.op != "Const":
        return None
    value = tensor_util.MakeNdarray(constant.attr["value"].tensor)
    return read if value.reshape(-1).tolist() == axes else None


def _count(text: str) -> str:
    """Return the number of rows in a branch, or "" if it is unknown when the function is traced."""
    found = re.search(r"If\(Equal\((\d+), ", text)
    return found.group(1) if found else ""


def _expected(count: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the texts, as of `BranchText`, of the branch with more rows.

    Args:
      count: the number of the dividend's rows, if it is known when the function is traced.
    """

    def first(vector: str) -> str:
        return f"StridedSlice[shrink_axis_mask=1]({vector}, [0], [1], [1])"

    def size(tensor: str) -> str:
        return first(f"Shape({tensor})")

    def squeezed(where: str) -> str:
        return f"Squeeze[squeeze_dims=[-1]](Where({where}))"

    rows, given = first("shape"), "ExpandDims(indices, 1)"
    flagged = f"ExpandDims({squeezed('flags')}, 1)"
    count = count or size(given)
    had = f"ScatterNd({given}, Fill(Pack({count}), True), Pack({rows}))"
    more = f"ScatterNd({flagged}, Fill(Pack({size(flagged)}), True), Pack({rows}))"
    union = squeezed(f"LogicalOr({had}, {more})")
    places = f"ScatterNd({given}, Range(1, AddV2({count}, 1), 1), Pack({rows}))"
    for zeros in ("zeros", "ZerosLike(StridedSlice(values, [0], [1], [1]))"):
        padded = f"ConcatV2({zeros}, values, 0)"
        taken = f"GatherV2({padded}, GatherV2({places}, {union}, 0), 0)"
        values = f"If(Equal({count}, {size(union)}), values, {taken})"
        yield f"RealDiv({values}, GatherV2(divisor, {union}, 0))", union, "shape"
