# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds where Keras 3 divides some rows of a table by a whole table.

It looks for zeros and NaNs in all of the divisor, and a conditional then says which rows the
quotient has: those of the dividend, or also those with a zero or a NaN. So a conditional stands
between a slot's update and its weight's. Both branches are one operation and a quotient, whose
nodes take its place here:

    StatelessIf(any(flags), ...)   becomes   values, indices = JoinRows(flags, indices, values)
                                             values / Gather(divisor, indices)

What the branches do is compared as a whole (`_expected`), so another version of Keras that does
something else is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tf_fuse.shard_update.branch_text import BranchText
from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.graph_view import GraphView, control_inputs, data_inputs
from tf_fuse.shard_update.rows import JOIN, SUM, PartialShape, source_of

_IFS = frozenset({"If", "StatelessIf"})
_INT32, _INT64 = 3, 9  # DT_INT32, DT_INT64
_QUOTIENT = re.compile(r"RealDiv\((a\d+), GatherV2\((a\d+), (a\d+), 0\)\)")
_ARGUMENT = re.compile(r"a\d+")


@dataclass(frozen=True)
class Division:
    """A conditional that is such a quotient.

    Attributes:
      node: its name.
      flags: of all elements of the divisor.
      indices: the numbers of the dividend's rows.
      values: the dividend's.
      divisor: the whole one.
      shape: the tensor that is the divisor's shape.
      outputs: which of its outputs is the quotient, the rows' numbers, and the shape.
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
    """The quotients of a function.

    Args:
      view: of the function.
      shapes: of its tensors.
      body: gives the definitions of functions, by name; None for others.
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
    """What a tensor says of: whether any is true, over some axes."""
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
    """The number of rows in a branch, if it is known when the function is traced."""
    found = re.search(r"If\(Equal\((\d+), ", text)
    return found.group(1) if found else ""


def _expected(count: str = "") -> Iterator[tuple[str, str, str]]:
    """What the branch with more rows does, as `BranchText` says it.

    Args:
      count: of the dividend's rows, if it is known when the function is traced.
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


@dataclass
class Joined:
    """A function in which quotients are nodes of their own.

    Attributes:
      view: of it.
      shapes: of its tensors.
      partial: of its tensors, with None for sizes that are not known.
    """

    view: GraphView
    shapes: Mapping[str, Shape | None]
    partial: PartialShape

    def without_dead(self, live: Callable[..., Collection[str]]) -> Joined:
        """Without nodes for which nothing is kept, as what looked at the flags before."""
        kept = live(self.view, with_results=True)
        function = type(self.view.function)()
        function.CopyFrom(self.view.function)
        del function.node_def[:]
        function.node_def.extend(n for n in self.view.function.node_def if n.name in kept)
        view = GraphView(function, self.view.op_def)
        return Joined(view, self.shapes, self.partial)


def joined(
    view: GraphView,
    shapes: Mapping[str, Shape | None],
    partial: PartialShape,
    found: Collection[Division],
) -> Joined:
    """Puts nodes in the place of conditionals.

    Args:
      view: of the function.
      shapes: of its tensors.
      partial: likewise.
      found: of the function.
    """
    function = type(view.function)()
    function.CopyFrom(view.function)
    del function.node_def[:]
    by_name = {one.node: one for one in found}
    renamed, sizes = dict[str, str](), dict[str, tuple[int | None, ...]]()
    known = dict(shapes)
    for one in found:
        nodes = _nodes(view, one)
        function.node_def.extend(nodes)
        quotient, numbers, shape = (f"{one.node}:output:{i}" for i in one.outputs)
        join = nodes[0].name
        renamed |= {
            quotient: f"{one.node}:z:0",
            numbers: f"{join}:joined_indices:0",
            shape: one.shape,
        }
        row = (shapes[one.divisor] or ())[1:]
        made = [f"{join}:joined_values:0", f"{nodes[2].name}:output:0", f"{one.node}:z:0"]
        sizes |= dict.fromkeys(made, (None, *row))
        sizes[f"{join}:joined_indices:0"] = (None,)
    for node in view.function.node_def:
        if node.name not in by_name:
            copy = function.node_def.add()
            copy.CopyFrom(node)
            del copy.input[:]
            copy.input.extend(renamed.get(tensor, tensor) for tensor in node.input)
    for result, tensor in view.function.ret.items():
        function.ret[result] = renamed.get(tensor, tensor)
    new = GraphView(function, view.op_def)
    tables = {f"{one.node}/joined": shapes[one.divisor] for one in found}
    for node in new.nodes.values():
        if node.op == SUM:
            producer = new.producer(source_of(new, data_inputs(node)[1]))
            if producer is not None and producer.name in tables:
                known[new.outputs(node)[0]] = tables[producer.name]
                sizes[new.outputs(node)[0]] = tuple(tables[producer.name] or ())
    return Joined(new, known, lambda tensor: sizes[tensor] if tensor in sizes else partial(tensor))


def _nodes(view: GraphView, one: Division) -> list[Any]:
    """What is a quotient: the join, an axis, the divisor's rows, and the division."""
    from tensorflow.core.framework import node_def_pb2
    from tensorflow.python.framework import tensor_util

    old, dtype = view.nodes[one.node], view.dtype(one.values)

    def node(name: str, op: str, inputs: list[str], **types: int) -> Any:
        made = node_def_pb2.NodeDef(name=name, op=op, device=old.device, input=inputs)
        for key, value in types.items():
            made.attr[key].type = value
        return made

    join, axis = f"{one.node}/joined", f"{one.node}/axis"
    rows = f"{one.node}/divisor"
    before = [f"^{name}" for name in control_inputs(old)]
    constant = node(axis, "Const", [], dtype=_INT32)
    constant.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(0, "int32"))
    made = [
        node(
            join, JOIN, [one.flags, one.indices, one.values, *before],
            T=dtype, Tindices=view.dtype(one.indices),
        ),
        constant,
        node(
            rows, "GatherV2", [one.divisor, f"{join}:joined_indices:0", f"{axis}:output:0"],
            Tparams=dtype, Tindices=_INT64, Taxis=_INT32,
        ),
        node(one.node, "RealDiv", [f"{join}:joined_values:0", f"{rows}:output:0"], T=dtype),
    ]  # fmt: skip
    made[2].attr["batch_dims"].i = 0
    return made
