# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Encode a cluster as TfFuse>ElementwiseUpdate, which evaluates it in one pass over memory.

The operation computes what TensorFlow's kernels compute, block by block, with the same bits. It
locks all variables of the cluster: a concurrent reader or updater sees the whole update or none of
it.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import BFLOAT16, BOOL, DOUBLE, FLOAT, HALF, INT32, INT64
from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import ASSIGNS, READS, GraphView, data_inputs, value_inputs
from tf_fuse.fuse_update.analysis.fusion_clusters import FusionCluster, Rules
from tf_fuse.fuse_update.analysis.grappler_inputs import CallSite
from tf_fuse.fuse_update.encode.encoder_interface import FusedOperation
from tf_fuse.fuse_update.grappler.predict_common_subexpressions import CommonSubexpressions
from tf_fuse.fuse_update.grappler.simplified_cluster import SimplifiedCluster
from tf_fuse.fuse_update.grappler.simplify import simplify
from tf_fuse.fuse_update.grappler.unsimplified_cluster import cluster_as_traced

OP = "TfFuse>ElementwiseUpdate"

_TYPES = frozenset({FLOAT, DOUBLE, INT32, INT64, BOOL, BFLOAT16, HALF})
# Those of them whose sums are exact.
_WHOLE = frozenset({INT32, INT64})
# As in cc/update/update_program.cc.
_MOST_VALUES = 10000
# Operations that need no step. (Programs have no shapes, so Reshape does nothing. EnsureShape is
# not here: it stands before the sum with a weight's shard; fusing that sum made steps slower.)
_SAME = frozenset({"Identity", "Reshape", "StopGradient"})
# Grappler fuses operations on one tensor to this operation. _EXACT have the same bits in it at any
# position in a register; _FLOATS are the types that it does not compute in wider ones.
_COMPOSITION = "_UnaryOpsComposition"
_EXACT = frozenset({"Abs", "Neg", "Sqrt", "Square"})
_FLOATS = frozenset({FLOAT, DOUBLE})
_EXACT_NUMBERS = _EXACT | _SAME | {"Add", "AddN", "AddV2", "Cast", "Div", "Mul", "RealDiv", "Sub"}


class ElementwiseEncoder:
    """Encodes clusters as operations that run a program."""

    def __init__(
        self, graph_options: Callable[[], bytes], may_differ: Callable[[], bool] = lambda: False
    ):
        """Store how functions are optimized.

        Args:
          graph_options: returns the serialized `GraphOptions` of a call.
          may_differ: returns whether last bits may differ where Grappler's result is unknown.
        """
        self._graph_options, self._may_differ = graph_options, may_differ
        # (Of each thread, its newest function: each worker's thread rewrites functions.)
        self._newest = threading.local()

    @property
    def rules(self) -> Rules:
        """What may be in them."""
        # (AddN with more inputs: the order may depend on buffers; see `_added`.)
        # (One element: Grappler treats it as a scalar, whose position among factors is unknown.)
        least = 1 if self._may_differ() else 2
        return Rules(
            _has, _TYPES, is_flat=True, needs_value=True, least_elements=least, most_added=2
        )

    def encode(
        self,
        view: GraphView,
        cluster: FusionCluster,
        shapes: Mapping[str, Shape | None],
        site: CallSite,
    ) -> FusedOperation | str:
        """Make one; or says why it cannot."""
        if getattr(self._newest, "view", None) is not view:
            self._newest.view = view
            self._newest.subexpressions = CommonSubexpressions(view, site.is_inner)
        made = self._make_exact(view, cluster, shapes, site)
        if not self._may_differ() or (made != "optimizer" and cluster.size != 1):
            return made
        # (Try the cluster as Grappler leaves it without its producers, then as traced.)
        if not isinstance(made, FusedOperation):
            made = self._write(view, cluster, shapes, site.has_results[0], alone=True)
        if not isinstance(made, FusedOperation):
            simple = cluster_as_traced(view, cluster, shapes)
            if simple is None:
                return "optimizer"
            made = _Writer(simple, cluster).write(shapes)
        is_exact = set(made.node.attr["Tin"].list.type) <= _WHOLE and all(
            node.attr["dtype"].type in _WHOLE
            for node in map(view.nodes.__getitem__, cluster.nodes)
            if node.op in ASSIGNS
        )
        return replace(made, is_exact=is_exact)

    def _make_exact(
        self,
        view: GraphView,
        cluster: FusionCluster,
        shapes: Mapping[str, Shape | None],
        site: CallSite,
    ) -> FusedOperation | str:
        if site.reads(view, cluster, shapes):
            return "optimizer"
        written = [self._write(view, cluster, shapes, has) for has in site.has_results]
        for one in written:
            # Several calls share the function, so the operation must fit all of them.
            if isinstance(one, str) or one != written[0]:
                return one if isinstance(one, str) else "optimizer"
        return written[0]

    def _write(
        self,
        view: GraphView,
        cluster: FusionCluster,
        shapes: Mapping[str, Shape | None],
        has_results: bool,
        alone: bool = False,
    ) -> FusedOperation | str:
        simple = simplify(
            view, cluster, shapes, self._graph_options(),
            subexpressions=self._newest.subexpressions, has_results=has_results, alone=alone,
        )  # fmt: skip
        if simple is None:
            return "optimizer"
        ops = {simple.view.nodes[name].op for name in simple.nodes}
        if not simple.results and not ops & ASSIGNS:  # (Such as the subtraction of zeros.)
            return "optimizer"
        for name in simple.nodes:
            if not _can_be(simple.view, simple.view.nodes[name]):
                return "optimizer"
        if cluster.size != 1 and _computes_numbers(simple, shapes):
            return "optimizer"
        if len(simple.nodes) + len(simple.inputs) > _MOST_VALUES:
            return "too_many"
        return _Writer(simple, cluster).write(shapes)


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
    """Return the operations that Grappler fused into a node."""
    return [name.decode() for name in node.attr["op_names"].list.s]


def _can_be(view: GraphView, node: Any) -> bool:
    """Return whether a program can contain a node."""
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


def _computes_numbers(simple: SimplifiedCluster, shapes: Mapping[str, Shape | None]) -> bool:
    """Return whether one number is computed whose bits are others in a vector of it.

    (The operation computes a function of one input that is a number as TensorFlow does.)
    """
    known = {name: shapes.get(tensor) for name, tensor in simple.inputs.items()}
    given = {name for name, shape in known.items() if shape is not None and math.prod(shape) == 1}
    numbers = set(given)
    for name in simple.nodes:
        node = simple.view.nodes[name]
        read = _read(node)
        if node.op in READS | ASSIGNS or not set(read) <= numbers:
            continue
        is_of_given = len(read) == 1 and set(read) <= given
        if node.op != "Const" and node.op not in _EXACT_NUMBERS and not is_of_given:
            return True
        numbers.update(simple.view.outputs(node))
    return False


def _added(view: GraphView, node: Any) -> list[str] | None:
    """Return the inputs of an AddN in TensorFlow's order of addition, or None if it is unknown.

    TensorFlow adds to the first input whose buffer has no other user, after it swapped that input
    with the first one. Between the first two inputs the swap does not matter.
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
    """Return whether a tensor's buffer has one user; None if that is unknown."""
    producer = view.producer(tensor)
    # (A read returns the variable's buffer or a copy of it, depending on the variable's mode.)
    if producer is None or producer.op in _SAME | READS | {"Cast", "Select"}:
        return None
    if producer.op == "Const":
        return False
    return True if len(view.uses(tensor)) == 1 else None


def _read(node: Any) -> list[str]:
    """Return the inputs that a program's step reads."""
    if node.op in READS or node.op == "Const":
        return []
    if node.op in ASSIGNS:
        return data_inputs(node)[1:2]
    return value_inputs(node)


class _Writer:
    """Writes the program of a cluster."""

    def __init__(self, simple: SimplifiedCluster, cluster: FusionCluster):
        from tf_fuse.v1 import update_pb2

        self._simple, self._cone, self._view = simple, cluster, simple.view
        self._program = update_pb2.UpdateProgram(size=cluster.size)
        read = {t for name in simple.nodes for t in _read(self._view.nodes[name])}
        constants = [n for n in simple.nodes if self._view.nodes[n].op == "Const"]
        self._constants = [n for n in constants if f"{n}:output:0" in read]
        arguments = sorted(argument for argument in simple.inputs if argument in read)
        self._inputs = [*arguments, *(f"{name}:output:0" for name in self._constants)]
        self._values = {tensor: i for i, tensor in enumerate(self._inputs)}
        self._variables: dict[str, int] = {}

    def write(self, shapes: Mapping[str, Shape | None]) -> FusedOperation:
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
        return FusedOperation(node, simple.outer_results, "results", constants=constants)

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
        """Return the number of the value of the last step."""
        return len(self._inputs) + len(self._program.steps) - 1
