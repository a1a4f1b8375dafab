# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Replace the conditionals in which Keras 3 divides rows by a table with nodes of their own.

    StatelessIf(any(flags), ...)   becomes   values, indices = JoinRows(flags, indices, values)
                                             values / Gather(divisor, indices)

`analysis/keras_row_division.py` finds the conditionals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import INT32, INT64
from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import GraphView, control_inputs, data_inputs
from tf_fuse.fuse_update.analysis.keras_row_division import Division
from tf_fuse.fuse_update.analysis.rows import JOIN, SUM, PartialShape, source_of


@dataclass(frozen=True)
class FunctionWithJoins:
    """A function in which nodes compute the quotients, not conditionals.

    Attributes:
      view: of the function.
      shapes: of its tensors.
      partial: of its tensors, with None for unknown sizes.
    """

    view: GraphView
    shapes: Mapping[str, Shape | None]
    partial: PartialShape

    def without_dead(self, live: Callable[..., Collection[str]]) -> FunctionWithJoins:
        """Return a copy without dead nodes, such as those that tested the flags.

        Args:
          live: returns the names of the nodes to keep.
        """
        kept = live(self.view, with_results=True)
        function = type(self.view.function)()
        function.CopyFrom(self.view.function)
        del function.node_def[:]
        function.node_def.extend(n for n in self.view.function.node_def if n.name in kept)
        view = GraphView(function, self.view.op_def)
        return FunctionWithJoins(view, self.shapes, self.partial)


def replace_divisions(
    view: GraphView,
    shapes: Mapping[str, Shape | None],
    partial: PartialShape,
    found: Collection[Division],
) -> FunctionWithJoins:
    """Replace conditionals by nodes.

    Args:
      view: of the function.
      shapes: of its tensors.
      partial: of its tensors, with None for unknown sizes.
      found: the divisions to replace.
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
    return FunctionWithJoins(
        new, known, lambda tensor: sizes[tensor] if tensor in sizes else partial(tensor)
    )


def _nodes(view: GraphView, one: Division) -> list[Any]:
    """Return the nodes of a quotient: the join, an axis, the divisor's rows, the division."""
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
    constant = node(axis, "Const", [], dtype=INT32)
    constant.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(0, "int32"))
    made = [
        node(
            join, JOIN, [one.flags, one.indices, one.values, *before],
            T=dtype, Tindices=view.dtype(one.indices),
        ),
        constant,
        node(
            rows, "GatherV2", [one.divisor, f"{join}:joined_indices:0", f"{axis}:output:0"],
            Tparams=dtype, Tindices=INT64, Taxis=INT32,
        ),
        node(one.node, "RealDiv", [f"{join}:joined_values:0", f"{rows}:output:0"], T=dtype),
    ]  # fmt: skip
    made[2].attr["batch_dims"].i = 0
    return made
