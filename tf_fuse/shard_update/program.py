# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes of a cone one operation of ours, which evaluates it in one pass over memory.

It computes what TensorFlow's kernels do, block by block, with the same bits, and under one lock on
all of the cone's variables: who reads or updates them at the same time finds all of the update
done, or nothing (cc/kernels/elementwise_update_op.cc).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.cones import Cone, Rules
from tf_fuse.shard_update.graph_view import ASSIGNS, READS, GraphView, data_inputs
from tf_fuse.shard_update.origins import Site
from tf_fuse.shard_update.outline import Operation
from tf_fuse.shard_update.plain import plain
from tf_fuse.shard_update.simplify import Simple, Twins, simplify

OP = "TfFuse>ElementwiseUpdate"

# DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64, DT_BOOL, DT_BFLOAT16, DT_HALF.
_TYPES = frozenset({1, 2, 3, 9, 10, 14, 19})
# Those of them whose sums are exact.
_WHOLE = frozenset({3, 9})
# As in cc/update/program.cc.
_MOST_VALUES = 10000
# What the operation does itself. (Reshape: it has no shapes inside. EnsureShape stands in front of
# what is added to a part of a weight; with that part in the operation, a step took longer.)
_SAME = frozenset({"Identity", "Reshape", "StopGradient"})
# Which Grappler makes of operations on one tensor; those of them that have the same bits in it,
# wherever in a register an element is; and its types that are not computed in others.
_COMPOSITION = "_UnaryOpsComposition"
_EXACT = frozenset({"Abs", "Neg", "Sqrt", "Square"})
_FLOATS = frozenset({1, 2})


class ProgramMaker:
    """Makes operations that carry out a program."""

    def __init__(self, config: Callable[[], Any], may_differ: Callable[[], bool] = lambda: False):
        """Takes what says how functions are optimized.

        Args:
          config: returns the `ConfigProto` that functions are called with.
          may_differ: whether the last bits may be others where it is not known how.
        """
        self._config, self._may_differ = config, may_differ
        self._twins: tuple[GraphView, Twins] | None = None

    @property
    def rules(self) -> Rules:
        """What may be in them."""
        # (Of more, the order may depend on the memory that they are in; see `_added`.)
        # (In what Grappler does, one element is as a number, and its order among them is unclear.)
        least = 1 if self._may_differ() else 2
        return Rules(
            _has, _TYPES, is_flat=True, needs_value=True, least_elements=least, most_added=2
        )

    def make(
        self, view: GraphView, cone: Cone, shapes: Mapping[str, Shape | None], site: Site
    ) -> Operation | str:
        """Makes one; or says why it cannot."""
        made = self._make_exact(view, cone, shapes, site) if cone.size != 1 else "optimizer"
        if made != "optimizer" or not self._may_differ():
            return made
        simple = plain(view, cone, shapes)
        if simple is None:
            return made
        operation = _Writer(simple, cone).write(shapes)
        operation.is_exact = {view.dtype(t) for t in simple.inputs.values()} <= _WHOLE and all(
            node.attr["dtype"].type in _WHOLE
            for node in map(view.nodes.__getitem__, cone.nodes)
            if node.op in ASSIGNS
        )
        return operation

    def _make_exact(
        self, view: GraphView, cone: Cone, shapes: Mapping[str, Shape | None], site: Site
    ) -> Operation | str:
        if site.reads(view, cone, shapes):
            return "optimizer"
        if self._twins is None or self._twins[0] is not view:
            self._twins = view, Twins(view, site.is_inner)
        written = [self._write(view, cone, shapes, has) for has in site.has_results]
        for one in written:
            # In a function that several call, what is the same for all.
            if isinstance(one, str) or one != written[0]:
                return one if isinstance(one, str) else "optimizer"
        return written[0]

    def _write(
        self, view: GraphView, cone: Cone, shapes: Mapping[str, Shape | None], has_results: bool
    ) -> Operation | str:
        assert self._twins is not None
        simple = simplify(
            view, cone, shapes, self._config(), twins=self._twins[1], has_results=has_results
        )
        if simple is None:
            return "optimizer"
        for name in simple.nodes:
            if not _can_be(simple.view, simple.view.nodes[name]):
                return "optimizer"
        if len(simple.nodes) + len(simple.inputs) > _MOST_VALUES:
            return "too_many"
        return _Writer(simple, cone).write(shapes)


@functools.cache
def _has(op: str, operand: int, result: int) -> bool:
    if op in _SAME:
        return operand == result
    return _has_block_op("AddV2" if op == "AddN" else op, operand, result)


def _has_block_op(op: str, operand: int, result: int) -> bool:
    import ctypes

    from tf_fuse import _native

    function = _native.library().tf_fuse_has_block_op
    function.restype = ctypes.c_bool
    function.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    return bool(function(op.encode(), operand, result))


def _composed(node: Any) -> list[str]:
    """The operations that Grappler has made one of."""
    return [name.decode() for name in node.attr["op_names"].list.s]


def _can_be(view: GraphView, node: Any) -> bool:
    """Whether a program can have a node."""
    if node.op == _COMPOSITION:
        dtype = node.attr["T"].type
        return dtype in _FLOATS and all(op in _EXACT for op in _composed(node))
    if node.op in READS | ASSIGNS or node.op == "Const":
        return True
    read, outputs = _read(node), view.outputs(node)
    if node.op == "AddN" and _added(view, node) is None:
        return False
    return (
        len(outputs) == 1
        and bool(read)
        and _has(node.op, view.dtype(read[-1]), view.dtype(outputs[0]))
    )


def _added(view: GraphView, node: Any) -> list[str] | None:
    """The inputs of an AddN in the order in which TensorFlow adds them; None if it may differ.

    It adds to the first one whose memory no one else has, and that one has the place of the first.
    Which of the first two that is makes no difference.
    """
    tensors = data_inputs(node)
    is_known = True
    for index, tensor in enumerate(tensors):
        is_taken = _is_alone(view, tensor)
        if is_taken and index < 2:
            break
        if is_taken:
            tensors[0], tensors[index] = tensors[index], tensors[0]
            return tensors if is_known else None
        if is_taken is None:
            is_known = False
            if index >= 2:
                return None
    return tensors


def _is_alone(view: GraphView, tensor: str) -> bool | None:
    """Whether no one but its reader has a tensor's memory; None if that is not known."""
    producer = view.producer(tensor)
    # (What is read is the variable's memory, or a copy of it, as the variable is set.)
    if producer is None or producer.op in _SAME | READS | {"Cast", "Select"}:
        return None
    if producer.op == "Const":
        return False
    return True if len(view.uses(tensor)) == 1 else None


def _read(node: Any) -> list[str]:
    """What is read of a node's inputs."""
    if node.op in READS or node.op == "Const":
        return []
    if node.op in ASSIGNS:
        return data_inputs(node)[1:2]
    return data_inputs(node)[:1] if node.op == "Reshape" else data_inputs(node)


class _Writer:
    """Writes the program of a cone."""

    def __init__(self, simple: Simple, cone: Cone):
        from tf_fuse.v1 import update_pb2

        self._simple, self._cone, self._view = simple, cone, simple.view
        self._program = update_pb2.UpdateProgram(size=cone.size)
        read = {t for name in simple.nodes for t in _read(self._view.nodes[name])}
        constants = [n for n in simple.nodes if self._view.nodes[n].op == "Const"]
        self._constants = [n for n in constants if f"{n}:output:0" in read]
        arguments = sorted(argument for argument in simple.inputs if argument in read)
        self._inputs = [*arguments, *(f"{name}:output:0" for name in self._constants)]
        self._values = {tensor: i for i, tensor in enumerate(self._inputs)}
        self._variables: dict[str, int] = {}

    def write(self, shapes: Mapping[str, Shape | None]) -> Operation:
        from tensorflow.core.framework import node_def_pb2

        simple, program = self._simple, self._program
        program.input_types.extend(map(self._view.dtype, self._inputs))
        for name in simple.nodes:
            if self._view.nodes[name].op != "Const":
                self._add(self._view.nodes[name])
        program.results.extend(self._values[tensor] for tensor in simple.results)
        node = node_def_pb2.NodeDef(op=OP, device=self._cone.device)
        node.input.extend(simple.variables[name] for name in self._variables)
        node.input.extend(simple.inputs.get(tensor, tensor) for tensor in self._inputs)
        node.attr["N"].i = len(self._variables)
        node.attr["Tin"].list.type.extend(program.input_types)
        node.attr["Tout"].list.type.extend(map(self._view.dtype, simple.results))
        for tensor in simple.outer_results:
            shape = node.attr["shapes"].list.shape.add()
            for size in shapes[tensor] or ():
                shape.dim.add(size=size)
        for key in ("Tin", "Tout", "shapes"):  # (An empty list is a value, too.)
            node.attr[key].list.SetInParent()
        node.attr["program"].s = program.SerializeToString(deterministic=True)
        constants = [self._view.nodes[name] for name in self._constants]
        return Operation(node, simple.outer_results, "results", constants=constants)

    def _add(self, node: Any) -> None:
        view, program = self._view, self._program
        *first, last = _composed(node) if node.op == _COMPOSITION else [node.op]
        read = (_added(view, node) if node.op == "AddN" else None) or _read(node)
        values = [self._values[tensor] for tensor in read]
        for op in first:
            program.steps.add(op=op, inputs=values, type=node.attr["T"].type)
            values = [self._last()]
        step = program.steps.add(op=last, inputs=values)
        if node.op in READS | ASSIGNS:
            variable = data_inputs(node)[0]
            if variable not in self._variables:
                self._variables[variable] = len(self._variables)
                program.variable_types.append(node.attr["dtype"].type)
            step.variable = self._variables[variable]
        if node.op not in ASSIGNS:
            (output,) = view.outputs(node)
            step.type = view.dtype(output)
            self._values[output] = self._last()

    def _last(self) -> int:
        """The number of the last step's value."""
        return len(self._inputs) + len(self._program.steps) - 1
