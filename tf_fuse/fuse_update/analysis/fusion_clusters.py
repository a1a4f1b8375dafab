# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find fusion clusters: maximal regions of elementwise operations before assignments.

A cluster starts at an assignment of a variable. It takes an operation if the cluster contains all
consumers of the operation's result. So other nodes can observe only variables, and, in a function
that updates shards, the tensors that are sent to other replicas.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import RESOURCE
from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.operations import ELEMENTWISE
from tf_fuse.function_graph.view import ASSIGNS, READS, GraphView, data_inputs, value_inputs

# Constants of up to this many elements become part of the fused operation.
_LARGEST_CONSTANT = 16


FREE = frozenset({"Identity", "Reshape", "StopGradient"})


@dataclass(frozen=True)
class Rules:
    """What a cluster may contain.

    Attributes:
      has: returns whether the encoder supports an operation, by its name, the type of its last
        input and the type of its result.
      types: of variables.
      is_flat: whether each tensor must have the cluster's size or one element; otherwise any
        broadcast is allowed.
      needs_value: whether the function must read a variable before it assigns it first.
      least_elements: the smallest size of a cluster.
      most_added: the largest number of inputs of an AddN.
    """

    has: Callable[[str, int, int], bool]
    types: frozenset[int]
    is_flat: bool = False
    needs_value: bool = False
    least_elements: int = 1
    most_added: int = 1 << 31


# Lowered conditionals and loops: their nodes may not run at all, or run more than once.
CONTROL_FLOW = frozenset({"Enter", "Merge", "NextIteration", "RefEnter", "RefSwitch", "Switch"})


@dataclass(frozen=True)
class UnfusedAssignment:
    """An assignment that is not fused.

    Attributes:
      node: its name.
      reason: a key of `outline.REASONS`.
      detail: the node or tensor that is the reason.
    """

    node: str
    reason: str
    detail: str


@dataclass(frozen=True)
class FusionCluster:
    """Operations that become one operation.

    Attributes:
      nodes: their names, in a topological order.
      variables: the resources that they read or assign.
      size: the number of elements of each tensor.
      device: the device that they name; "" if they name none.
    """

    nodes: tuple[str, ...]
    variables: tuple[str, ...]
    size: int
    device: str


@dataclass(frozen=True)
class ChosenClusters:
    """What one phase gives to the next one.

    Attributes:
      clusters: that may be fused, as far as the phase knows.
      left: the assignments that the phase leaves alone.
    """

    clusters: tuple[FusionCluster, ...]
    left: tuple[UnfusedAssignment, ...] = ()


# Returns whether an operation of ours can run on a device, by the name in a node, with a variable.
CanFuseOn = Callable[[str, str | None], bool]


class Finder:
    """Finds the clusters of a function, from the assignments towards the inputs."""

    def __init__(
        self,
        view: GraphView,
        shapes: Mapping[str, Shape | None],
        can_fuse_on: CanFuseOn,
        rules: Rules,
    ):
        self._view, self._can_fuse_on, self._rules = view, can_fuse_on, rules
        # Union-find over clusters. Each starts at a variable or at a tensor that is sent.
        self._one_with: dict[str, str] = {}
        self._size: dict[str, int] = {}
        self._device: dict[str, str] = {}
        # The device of its variable: the node may name its device in part, or not at all.
        self._place: dict[str, str] = {}
        self._cone: dict[str, str] = {}
        self._order = list(view.in_order())
        self._shapes = dict(shapes)
        self._infer()
        self._sent = set(self._find_sent())
        self._results = set(view.results)

    def find(self) -> ChosenClusters:
        """Return all clusters, in the order of the names that they start from."""
        left: list[UnfusedAssignment] = []
        for variable, assigns in sorted(self._assigns().items()):
            left += self._begin_variable(variable, assigns)
        for node in reversed(self._order):
            if node.name not in self._cone:
                self._visit(node)
        members: dict[str, list[str]] = defaultdict(list)
        for node in self._order:
            if node.name in self._cone:
                members[self._find(self._cone[node.name])].append(node.name)
        clusters = tuple(
            FusionCluster(
                tuple(nodes), tuple(self._variables(nodes)), self._size[key], self._device[key]
            )
            for key, nodes in sorted(members.items())
        )
        return ChosenClusters(clusters, tuple(left))

    @property
    def shapes(self) -> Mapping[str, Shape | None]:
        """The shapes of all tensors, as far as they are known."""
        return self._shapes

    def _infer(self) -> None:
        """Infer the shapes of reads and elementwise operations that a rewrite has added."""
        for node in self._order:
            outputs = self._view.outputs(node)
            if len(outputs) != 1 or self._shapes.get(outputs[0]) is not None:
                continue
            if node.op in READS:
                self._shapes[outputs[0]] = self._variable_shape(str(self._view.variable_of(node)))
            elif node.op in ELEMENTWISE:
                known = [self._shapes.get(tensor) for tensor in data_inputs(node)]
                shapes = [shape for shape in known if shape is not None]
                if len(shapes) == len(known) and all(
                    min(shape, default=0) >= 0 for shape in shapes
                ):
                    self._shapes[outputs[0]] = _broadcast(shapes)

    def assigned(self, cluster: FusionCluster) -> str | None:
        """Return the tensor that the first assignment of a cluster assigns."""
        nodes = (self._view.nodes[name] for name in cluster.nodes)
        return next((data_inputs(node)[1] for node in nodes if node.op in ASSIGNS), None)

    def _variables(self, nodes: Sequence[str]) -> list[str]:
        found = {self._view.variable_of(self._view.nodes[name]) for name in nodes}
        return sorted(str(variable) for variable in found if variable is not None)

    def _assigns(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for node in self._order:
            if node.op in ASSIGNS:
                found[str(self._view.variable_of(node))].append(node.name)
        return found

    def _begin_variable(self, variable: str, assigns: Sequence[str]) -> list[UnfusedAssignment]:
        """Start a cluster with all assignments of a variable; or return them, with the reason."""
        nodes = [self._view.nodes[name] for name in assigns]
        shape = self._variable_shape(variable)
        reason = None
        if shape is None:
            reason = "unknown_shape", variable
        elif any(node.attr["dtype"].type not in self._rules.types for node in nodes):
            reason = "type", variable
        elif len({node.device for node in nodes}) > 1:
            reason = "several_devices", variable
        elif not self._has_here(nodes[0].device, variable):
            reason = "device", nodes[0].device
        elif self._rules.is_flat and (others := self._of_other_shape(nodes, shape)):
            producer = self._view.producer(others[0])
            if producer is not None and not self.is_compiled(producer):
                reason = "not_elementwise", others[0]
            else:
                reason = "unknown_shape", variable
        elif self._rules.needs_value and not self._has_value(variable, nodes[0]):
            reason = "not_read", variable
        if reason is not None or shape is None:
            return [UnfusedAssignment(name, *reason) for name in assigns if reason is not None]
        self._begin(variable, math.prod(shape), nodes[0])
        self._cone.update(dict.fromkeys(assigns, variable))
        return []

    def _has_here(self, device: str, variable: str) -> bool:
        """Return whether a fused operation can run on a device with a variable."""
        producer = self._view.producer(variable)
        if producer is None:
            return self._can_fuse_on(device, variable)
        # (TensorFlow places the function's own variable with all users of its handle.)
        return producer.device in ("", device) and self._can_fuse_on(device, None)

    def _of_other_shape(self, assigns: Sequence[Any], shape: Shape) -> list[str]:
        """Return the assigned tensors whose shape is unknown or not the variable's."""
        assigned = {data_inputs(assign)[1] for assign in assigns}
        known = {one: self._shapes.get(one) for one in sorted(assigned)}
        return [t for t, found in known.items() if found is None or tuple(found) != tuple(shape)]

    def _has_value(self, variable: str, first: Any) -> bool:
        """Return whether a variable is read before its first assignment."""
        if first.op != "AssignVariableOp":
            return True
        before = takewhile(lambda node: node is not first, self._order)
        return any(n.op in READS and self._view.variable_of(n) == variable for n in before)

    def _begin(self, key: str, size: int, node: Any) -> None:
        self._one_with[key], self._size[key] = key, size
        self._device[key], self._place[key] = node.device, self._view.device_of(node)

    def _variable_shape(self, variable: str) -> Shape | None:
        producer = self._view.producer(variable)
        if producer is not None and producer.op == "VarHandleOp":
            shape = producer.attr["shape"].shape
            return None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)
        return self._shapes.get(variable)

    def _find(self, key: str) -> str:
        while self._one_with[key] != key:
            self._one_with[key] = key = self._one_with[self._one_with[key]]
        return key

    def _visit(self, node: Any) -> None:
        """Add a node to the cluster that contains all its consumers, if there is one."""
        if node.op in READS:
            if node.attr["dtype"].type not in self._rules.types:
                return
        elif not self.is_compiled(node):
            return
        outputs = self._view.outputs(node)
        size = self._known_size(node)
        if size is not None and self._begins(node, size):
            self._begin(node.name, size, node)
            self._cone[node.name] = node.name
        elif any(tensor in self._results for tensor in outputs):
            return
        readers = {use.node for tensor in outputs for use in self._view.uses(tensor)}
        keys = {self._find(self._cone[name]) for name in readers if name in self._cone}
        if node.name in self._sent:
            keys |= {self._find(self._cone[node.name])} if node.name in self._cone else set()
        elif not readers or not readers <= self._cone.keys():
            return
        device = node.device
        if node.op in READS:
            variable = str(self._view.variable_of(node))
            if variable in self._one_with:
                keys.add(key := self._find(variable))
                # (A read runs where the variable is.)
                device = device or self._device[key]
            elif self._rules.is_flat:
                return  # All weights share such a variable (a rate): one update must not lock it.
            elif len(keys) > 1 or not self._has_here(device, variable):
                return
        self._join(node, keys, size, device)

    def _begins(self, node: Any, size: int) -> bool:
        is_sent = node.name in self._sent
        return is_sent and self._can_fuse_on(node.device, None) and self._fits(node, size)

    def _join(self, node: Any, keys: Collection[str], size: int | None, device: str) -> None:
        sizes = {self._size[key] for key in keys}
        devices = {self._device[key] for key in keys}
        if len({self._place[key] for key in keys}) > 1:
            return
        if len(sizes) != 1 or devices != {device} or (size is not None and size not in sizes):
            return
        if not self._fits(node, min(sizes)):
            return
        first, *others = sorted(keys)
        for key in others:
            self._one_with[key] = first
        self._cone[node.name] = first

    def _fits(self, node: Any, size: int | None) -> bool:
        """Return whether a node's result has `size` elements, and each input `size` or one."""
        if not self._rules.is_flat:
            return True
        if self._known_size(node) != size:
            return False
        inputs = value_inputs(node)
        known = [self._shapes.get(t) for t in inputs if self._view.dtype(t) != RESOURCE]
        return all(shape is not None and math.prod(shape) in (1, size) for shape in known)

    def is_compiled(self, node: Any) -> bool:
        """Return whether a cluster may contain a node."""
        view, outputs = self._view, self._view.outputs(node)
        if len(outputs) != 1 or not data_inputs(node):
            return False
        if node.op == "Reshape" and not is_small_constant(view, data_inputs(node)[1]):
            return False
        if node.op == "AddN" and len(data_inputs(node)) > self._rules.most_added:
            return False
        tensors = value_inputs(node)
        operand = view.dtype(tensors[-1])
        if any(view.dtype(t) not in self._rules.types for t in [*tensors, *outputs]):
            return False
        return self._rules.has(node.op, operand, view.dtype(outputs[0]))

    def _find_sent(self) -> Iterator[str]:
        """Yield the nodes that produce a shard of a new weight that other replicas gather."""
        view = self._view
        for node in view.nodes.values():
            if node.op == "TfFuse>AllGather":
                for tensor in data_inputs(node)[: node.attr["N"].i]:
                    producer = view.producer(tensor)
                    while producer is not None and producer.op in ("Slice", "Reshape"):
                        producer = view.producer(data_inputs(producer)[0])
                    if producer is not None and self.is_compiled(producer):
                        yield producer.name

    def _known_size(self, node: Any) -> int | None:
        """Return how many elements a node's result has, inferred from its inputs if need be."""
        if node.op in READS:
            shape = self._variable_shape(str(self._view.variable_of(node)))
            return None if shape is None else math.prod(shape)
        shape = self._shapes.get(self._view.outputs(node)[0])
        if shape is not None:
            return math.prod(shape)
        known = [self._shapes.get(tensor) for tensor in data_inputs(node)]
        sizes = [math.prod(shape) for shape in known if shape is not None]
        return max(sizes) if len(sizes) == len(known) or max(sizes, default=0) > 1 else None


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    found = tuple(max(sizes) for sizes in zip(*padded, strict=True))
    fits = all(
        size in (1, most) for shape in padded for size, most in zip(shape, found, strict=True)
    )
    return found if fits else None


def is_small_constant(view: GraphView, tensor: str) -> bool:
    """Return whether a tensor is a constant that the fused operation may contain."""
    node = view.producer(tensor)
    if node is None or node.op != "Const":
        return False
    shape = node.attr["value"].tensor.tensor_shape
    return math.prod(dim.size for dim in shape.dim) <= _LARGEST_CONSTANT


def narrowed(view: GraphView, cluster: FusionCluster) -> FusionCluster:
    """Return the part of a cluster that depends on its variables.

    Where all tensors are scalars, the rest (such as a rate) may be shared with other updates.
    """
    kept: set[str] = set()
    for name in cluster.nodes:
        node = view.nodes[name]
        made = {tensor.partition(":")[0] for tensor in data_inputs(node)}
        if node.op in READS | ASSIGNS or made & kept:
            kept.add(name)
    return replace(cluster, nodes=tuple(name for name in cluster.nodes if name in kept))


def results_of(view: GraphView, cluster: FusionCluster) -> list[str]:
    """Return the tensors of a cluster that other nodes read."""
    inside = set(cluster.nodes)
    return [
        tensor
        for name in cluster.nodes
        if view.nodes[name].op not in ASSIGNS
        for tensor in view.outputs(view.nodes[name])
        if tensor in view.results or not {use.node for use in view.uses(tensor)} <= inside
    ]
