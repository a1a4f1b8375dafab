# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find which inputs of a cluster Grappler, TensorFlow's graph optimizer, can look through.

Grappler optimizes a function after it inlined the called functions. So it may change the producer
of an argument, or of a call's result, together with the consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import RESOURCE
from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.operations import ELEMENTWISE, REDUCTIONS, SAME_ELEMENTS
from tf_fuse.function_graph.view import GraphView, data_inputs, value_inputs
from tf_fuse.fuse_update.analysis.fusion_clusters import FusionCluster, is_small_constant

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# Grappler replaces them by constants if shapes are known.
_SHAPES = frozenset({"Rank", "Shape", "ShapeN", "Size", "VariableShape"})
# UnfusedAssignment out by Grappler where they change nothing.
_LEFT_OUT = (
    SAME_ELEMENTS
    | REDUCTIONS
    | {"BroadcastTo", "CheckNumerics", "ConcatV2", "Identity", "IdentityN", "Pad", "PadV2"}
    | {"PreventGradient", "Reverse", "ReverseV2", "Slice", "Snapshot", "StridedSlice", "Tile"}
    | {"StopGradient", "Transpose"}
)
# Operations that forward their inputs.
SAME = frozenset({"Identity", "IdentityN", "StopGradient"})


@dataclass(frozen=True)
class CallSite:
    """How a function is called.

    Attributes:
      has_results: whether the program's own call returns anything; both values for a branch or
        the body of a loop.
      open: arguments whose producers Grappler sees.
      is_inner: whether another function calls it, so that its results may be unused.
      body: returns the `FunctionDef` of a function, by name, or None.
      set_shapes: tensors of the function whose shapes Grappler does not know.
    """

    has_results: tuple[bool, ...] = (True,)
    open: frozenset[str] = frozenset()
    is_inner: bool = False
    body: Callable[[str], Any] = lambda name: None
    set_shapes: frozenset[str] = frozenset()

    @property
    def suffix(self) -> str:
        """A suffix of the rewritten function's name: call sites with one suffix can share it."""
        if len(self.has_results) > 1:
            kind = "_inside"
        else:
            kind = "_called" if self.has_results[0] else "_called_only"
        return kind + "".join(f"_{argument}" for argument in sorted(self.open))

    def of_call(self, view: GraphView, shapes: Mapping[str, Shape | None], node: Any) -> CallSite:
        """Return the call site of the functions that a node calls."""
        called = self.body(node.attr["f"].func.name) if node.op in _CALLS else None
        if called is None:
            called = self.body(_functions_of(node)[0])
            has_results: tuple[bool, ...] = (True, False)
            seen = [is_constant(view, tensor) for tensor in data_inputs(node)]
            if node.op in ("Case", "If", "StatelessCase", "StatelessIf"):
                seen = seen[1:]
        else:
            has_results = self.has_results
            seen = [not self.is_opaque(view, shapes, tensor) for tensor in data_inputs(node)]
        names = [] if called is None else [a.name for a in called.signature.input_arg]
        opened = frozenset(n for n, is_seen in zip(names, seen, strict=False) if is_seen)
        return CallSite(has_results, opened, True, self.body)

    def reads(
        self, view: GraphView, cluster: FusionCluster, shapes: Mapping[str, Shape | None]
    ) -> bool:
        """Return whether Grappler may change a cluster because of nodes that we do not see.

        Or does not change it because it does not know shapes that we know.
        """
        waiting, seen = list(cluster.nodes), set(cluster.nodes)
        while waiting:
            node = view.nodes[waiting.pop()]
            tensors = value_inputs(node)
            if not self.set_shapes.isdisjoint(tensors):
                return True
            for tensor in tensors:
                producer = view.producer(tensor)
                if producer is not None and producer.op == "IdentityN":
                    # (`simplify` looks through it, too.)
                    producer = view.producer(same_as(view, tensor))
                if producer is not None and producer.name in seen:
                    continue
                if producer is not None and is_front(view, producer):
                    seen.add(producer.name)
                    waiting.append(producer.name)
                elif view.dtype(tensor) == RESOURCE or is_small_constant(view, tensor):
                    continue
                elif not self.is_opaque(view, shapes, tensor):
                    return True
        return False

    def is_opaque(self, view: GraphView, shapes: Mapping[str, Shape | None], tensor: str) -> bool:
        """Return whether Grappler never changes a tensor's producer together with its consumer."""
        node = view.producer(tensor)
        if node is None:
            return tensor not in self.open
        if node.op in _CALLS:
            return self._is_opaque_result(view, shapes, node, tensor)
        if node.op in ELEMENTWISE - {"Identity", "StopGradient"} or is_constant(view, tensor):
            return False
        if node.op in _LEFT_OUT:
            index = int(tensor.rpartition(":")[2]) if node.op == "IdentityN" else 0
            read = data_inputs(node)[index]
            shape = shapes.get(read)
            if shape is None or shape == shapes.get(tensor):
                return self.is_opaque(view, shapes, read)
        return True

    def _is_opaque_result(
        self, view: GraphView, shapes: Mapping[str, Shape | None], node: Any, tensor: str
    ) -> bool:
        called = self.body(node.attr["f"].func.name)
        if called is None:
            return False
        inside = GraphView(called, view.op_def)
        site = self.of_call(view, shapes, node)
        # (Shapes are unknown there: assume that Grappler removes every node that it may remove.)
        return site.is_opaque(inside, {}, inside.results[view.output_index(tensor)])


def live(view: GraphView, *, with_results: bool) -> set[str]:
    """Return the nodes that TensorFlow does not prune before it optimizes a function.

    Args:
      view: of the function.
      with_results: whether the caller reads the results.
    """
    waiting = [name for name, node in view.nodes.items() if view.op_def(node.op).is_stateful]
    waiting += view.function.control_ret.values()
    if with_results:
        waiting += [tensor.partition(":")[0] for tensor in view.results]
    found: set[str] = set()
    while waiting:
        node = view.nodes.get(waiting.pop())
        if node is not None and node.name not in found:
            found.add(node.name)
            waiting.extend(text.lstrip("^").partition(":")[0] for text in node.input)
    return found


def is_front(view: GraphView, node: Any) -> bool:
    """Return whether Grappler may change a node together with its consumers."""
    if node is None or len(view.outputs(node)) != 1:
        return False
    if node.op == "Reshape":
        return is_small_constant(view, data_inputs(node)[1])
    return node.op in ELEMENTWISE


def same_as(view: GraphView, tensor: str) -> str:
    """Return the source of a tensor, looking through nodes that forward it, as Grappler does."""
    while (node := view.producer(tensor)) is not None and node.op in SAME:
        tensor = handed_on(node, tensor)
    return tensor


def handed_on(node: Any, tensor: str) -> str:
    """Return the input that a node forwards as a tensor."""
    index = int(tensor.rpartition(":")[2]) if node.op == "IdentityN" else 0
    return data_inputs(node)[index]


def is_constant(view: GraphView, tensor: str) -> bool:
    """Return whether a tensor depends only on constants."""
    waiting, seen = [tensor], set()
    while waiting:
        node = view.producer(waiting.pop())
        if node is None:
            return False
        if node.op == "Const" or node.op in _SHAPES or node.name in seen:
            continue
        seen.add(node.name)
        if not data_inputs(node) or view.op_def(node.op).is_stateful:
            return False
        waiting.extend(data_inputs(node))
    return True


def _functions_of(node: Any) -> list[str]:
    return [
        function.name
        for attribute in node.attr.values()
        for function in [attribute.func, *attribute.list.func]
        if function.name
    ] or [node.op]
