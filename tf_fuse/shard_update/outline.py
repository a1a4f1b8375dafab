# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Has the elementwise operations of each weight's update run as one compiled kernel.

Point by point, an optimizer reads and writes each of its variables once; run one by one, its
operations read and write a tensor of that size every time. So what lies in front of the assignments
of variables is moved into a function that XLA compiles:

    g ─► Sub ─► Mul ─► AssignAdd(m) ··► Read(m) ─► Mul ─► AssignSub(w)
          ▲ Read(m)                                  ▲ rate
                          becomes    call(g, rate, &m, &w)

Such a *cone* starts from an assignment and takes an operation if all that read its result are in
it. So nothing in it is seen from outside but variables, and (in a function that updates a part of
the weights) what is sent to other replicas. Variables are read and assigned inside: XLA then writes
the new values where the old ones were, which takes two thirds of the time of assigning its results.

Functions for weights of one shape are the same, and compiled once.

No optimizer is known by name here, and nothing about replicas.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tf_fuse.shard_update.clusters import ELEMENTWISE, Shape
from tf_fuse.shard_update.graph_view import ASSIGNS, READS, GraphView, control_inputs, data_inputs

# Calls cost more than they save in smaller tensors.
MIN_ELEMENTS = 65536
# Operations and assignments; each reads and writes a whole tensor if it is run by itself.
MIN_PASSES = 3
FUNCTION_PREFIX = "__tf_fuse_update_"
CALL_PREFIX = "tf_fuse_compiled_"

# Constants of up to so many elements become constants of the compiled function.
_LARGEST_CONSTANT = 16
_RESOURCE = 20  # DT_RESOURCE
# DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64, DT_BOOL. Of narrower floating types, XLA leaves out the
# rounding between operations: that is not the same update any more.
_TYPES = frozenset({1, 2, 3, 9, 10})
_FREE = frozenset({"Identity", "Reshape", "StopGradient"})
# What XLA computes elementwise.
COMPILED = ELEMENTWISE | {"Reshape"}

# Why an assignment is left as it is.
REASONS = {
    "too_small": f"the variable has fewer than {MIN_ELEMENTS} elements",
    "too_few": f"fewer than {MIN_PASSES} operations and assignments make one cone",
    "type": "of the types of the operations, one is not computed alike when it is compiled",
    "device": "the assignment is not on a CPU of this process",
    "several_devices": "the operations are on different devices",
    "unknown_shape": "the shape of the variable is not known when the function is traced",
    "not_elementwise": "the assigned value is made by an operation that is not elementwise",
    "read_elsewhere": "the assigned value is read by something else, too",
    "waits_for_itself": "something in between waits for a part of the operations",
}


@dataclass
class Cone:
    """Operations that are compiled together.

    Attributes:
      nodes: their names, in an order in which they can run.
      variables: resources that they read or assign.
      size: elements of each tensor.
      device: that they are on; "" for any.
    """

    nodes: list[str]
    variables: list[str]
    size: int
    device: str


@dataclass
class Left:
    """An assignment that is left as it is.

    Attributes:
      node: its name.
      reason: a key of REASONS.
      detail: the node or tensor that is the reason.
    """

    node: str
    reason: str
    detail: str


@dataclass
class Outline:
    """What becomes of a function.

    Attributes:
      cones: what is compiled, in the order of their calls' numbers.
      left: assignments that are not.
      function: the `FunctionDef` to run instead; None if nothing is compiled.
      bodies: the functions that it calls, by name.
    """

    cones: list[Cone] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    function: Any | None = None
    bodies: dict[str, Any] = field(default_factory=dict)


def outline(
    view: GraphView, shapes: Mapping[str, Shape | None], is_here: Callable[[str], bool]
) -> Outline:
    """Moves what lies in front of a function's assignments into functions to be compiled.

    Args:
      view: of the function.
      shapes: of its tensors and, by argument, of its variables, as far as they are known.
      is_here: whether a device, by the name in a node, is a CPU of this process.
    """
    finder = _Finder(view, shapes, is_here)
    found = Outline(left=finder.left)
    kept = []
    for cone in finder.cones():
        reason = _reason(view, cone, finder.assigned(cone))
        if reason is None:
            kept.append(cone)
        else:
            found.left += [Left(n, *reason) for n in cone.nodes if view.nodes[n].op in ASSIGNS]
    for cone in _without_cycles(view, kept):
        found.left += [
            Left(n, "waits_for_itself", n) for n in cone.nodes if view.nodes[n].op in ASSIGNS
        ]
        kept.remove(cone)
    found.left.sort(key=lambda left: left.node)
    found.cones = kept
    if kept:
        _Builder(view, found).build()
    return found


def _reason(view: GraphView, cone: Cone, assigned: str | None) -> tuple[str, str] | None:
    """Why a cone is not worth to be compiled."""
    if cone.size < MIN_ELEMENTS:
        return "too_small", cone.nodes[-1]
    passes = [n for n in cone.nodes if view.nodes[n].op not in _FREE | READS]
    if any(view.nodes[n].op not in ASSIGNS for n in passes) and len(passes) >= MIN_PASSES:
        return None
    if assigned is not None and len(passes) == 1:
        producer = view.producer(assigned)
        if producer is not None and producer.op in COMPILED:
            return "read_elsewhere", assigned
        return "not_elementwise", assigned
    return "too_few", cone.nodes[-1]


class _Finder:
    """Finds the cones of a function, from their ends to their beginnings."""

    def __init__(
        self, view: GraphView, shapes: Mapping[str, Shape | None], is_here: Callable[[str], bool]
    ):
        self._view, self._shapes, self._is_here = view, shapes, is_here
        self.left: list[Left] = []
        # Cones that are one have one representative. They begin as variables, or as what is sent.
        self._one_with: dict[str, str] = {}
        self._size: dict[str, int] = {}
        self._device: dict[str, str] = {}
        self._cone: dict[str, str] = {}
        self._order = list(view.in_order())
        self._sent = set(_sent(view))
        self._results = set(view.results)

    def cones(self) -> list[Cone]:
        """All that there are, by what they begin with."""
        for variable, assigns in sorted(self._assigns().items()):
            self._begin_variable(variable, assigns)
        for node in reversed(self._order):
            if node.name not in self._cone:
                self._visit(node)
        members: dict[str, list[str]] = defaultdict(list)
        for node in self._order:
            if node.name in self._cone:
                members[self._find(self._cone[node.name])].append(node.name)
        return [
            Cone(nodes, self._variables(nodes), self._size[key], self._device[key])
            for key, nodes in sorted(members.items())
        ]

    def assigned(self, cone: Cone) -> str | None:
        """What the first assignment of a cone assigns."""
        nodes = (self._view.nodes[name] for name in cone.nodes)
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

    def _begin_variable(self, variable: str, assigns: Sequence[str]) -> None:
        """Takes all assignments of a variable, or none."""
        nodes = [self._view.nodes[name] for name in assigns]
        shape = self._variable_shape(variable)
        reason = None
        if shape is None:
            reason = "unknown_shape", variable
        elif any(node.attr["dtype"].type not in _TYPES for node in nodes):
            reason = "type", variable
        elif not all(self._is_here(node.device) for node in nodes):
            reason = "device", next(n.device for n in nodes if not self._is_here(n.device))
        elif len({node.device for node in nodes}) > 1:
            reason = "several_devices", variable
        if reason is not None or shape is None:
            self.left += [Left(name, *reason) for name in assigns if reason is not None]
            return
        self._begin(variable, math.prod(shape), nodes[0].device)
        self._cone.update(dict.fromkeys(assigns, variable))

    def _begin(self, key: str, size: int, device: str) -> None:
        self._one_with[key], self._size[key], self._device[key] = key, size, device

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
        """Has a node join the cone of all that read it, if there is one."""
        if node.op in READS:
            if node.attr["dtype"].type not in _TYPES:
                return
        elif not self._is_compiled(node):
            return
        outputs = self._view.outputs(node)
        size = self._known_size(node)
        if node.name in self._sent and size is not None and self._is_here(node.device):
            self._begin(node.name, size, node.device)
            self._cone[node.name] = node.name
        elif any(tensor in self._results for tensor in outputs):
            return
        readers = {use.node for tensor in outputs for use in self._view.uses(tensor)}
        keys = {self._find(self._cone[name]) for name in readers if name in self._cone}
        if node.name in self._sent:
            keys |= {self._find(self._cone[node.name])} if node.name in self._cone else set()
        elif not readers or not readers <= self._cone.keys():
            return
        if node.op in READS:
            variable = str(self._view.variable_of(node))
            # A variable that this cone does not assign may be read by any number of cones.
            if variable in self._one_with:
                keys.add(self._find(variable))
            elif len(keys) > 1:
                return
        self._join(node, keys, size)

    def _join(self, node: Any, keys: Collection[str], size: int | None) -> None:
        sizes = {self._size[key] for key in keys}
        devices = {self._device[key] for key in keys}
        if not keys or len(sizes) > 1 or devices != {node.device}:
            return
        if size is not None and size not in sizes:
            return
        first, *others = sorted(keys)
        for key in others:
            self._one_with[key] = first
        self._cone[node.name] = first

    def _is_compiled(self, node: Any) -> bool:
        view = self._view
        if node.op not in COMPILED:
            return False
        if node.op == "Reshape" and not _is_small_constant(view, data_inputs(node)[1]):
            return False
        tensors = data_inputs(node)[:1] if node.op == "Reshape" else data_inputs(node)
        return all(view.dtype(tensor) in _TYPES for tensor in [*tensors, *view.outputs(node)])

    def _known_size(self, node: Any) -> int | None:
        """Elements of a node's result; those of what it reads if that is all that is known."""
        if node.op in READS:
            shape = self._variable_shape(str(self._view.variable_of(node)))
            return None if shape is None else math.prod(shape)
        shape = self._shapes.get(self._view.outputs(node)[0])
        if shape is not None:
            return math.prod(shape)
        known = [self._shapes.get(tensor) for tensor in data_inputs(node)]
        sizes = [math.prod(shape) for shape in known if shape is not None]
        return max(sizes) if len(sizes) == len(known) or max(sizes, default=0) > 1 else None


def _sent(view: GraphView) -> Iterator[str]:
    """The nodes that make what other replicas get of a new weight."""
    for node in view.nodes.values():
        if node.op == "TfFuse>AllGather":
            for tensor in data_inputs(node)[: node.attr["N"].i]:
                producer = view.producer(tensor)
                while producer is not None and producer.op in ("Slice", "Reshape"):
                    producer = view.producer(data_inputs(producer)[0])
                if producer is not None and producer.op in COMPILED:
                    yield producer.name


def _is_small_constant(view: GraphView, tensor: str) -> bool:
    node = view.producer(tensor)
    if node is None or node.op != "Const":
        return False
    shape = node.attr["value"].tensor.tensor_shape
    return math.prod(dim.size for dim in shape.dim) <= _LARGEST_CONSTANT


def _without_cycles(view: GraphView, cones: Sequence[Cone]) -> list[Cone]:
    """The cones that cannot be one node each, since others are in between."""
    if not _has_cycle(view, cones):
        return []
    good: list[Cone] = []
    for cone in cones:
        if not _has_cycle(view, [*good, cone]):
            good.append(cone)
    return [cone for cone in cones if cone not in good]


def _has_cycle(view: GraphView, cones: Sequence[Cone]) -> bool:
    """Whether nodes wait for each other once each cone is one node."""
    group = {name: f"^{i}" for i, cone in enumerate(cones) for name in cone.nodes}
    before: dict[str, set[str]] = {group.get(name, name): set() for name in view.nodes}
    after: dict[str, list[str]] = defaultdict(list)
    for name, node in view.nodes.items():
        mine = group.get(name, name)
        for tensor in node.input:
            other = tensor.lstrip("^").partition(":")[0]
            other = group.get(other, other)
            if other in before and other != mine and other not in before[mine]:
                before[mine].add(other)
                after[other].append(mine)
    missing = {name: len(others) for name, others in before.items()}
    ready = [name for name, count in missing.items() if count == 0]
    done = 0
    while ready:
        done += 1
        for name in after[ready.pop()]:
            missing[name] -= 1
            if missing[name] == 0:
                ready.append(name)
    return done < len(missing)


class _Builder:
    """Makes the functions."""

    def __init__(self, view: GraphView, found: Outline):
        self._view, self._found = view, found
        self._call_of: dict[str, str] = {}
        self._tensor_of: dict[str, str] = {}

    def build(self) -> None:
        from tensorflow.core.framework import function_pb2

        view = self._view
        calls = [self._call(i, cone) for i, cone in enumerate(self._found.cones)]
        function = function_pb2.FunctionDef()
        function.CopyFrom(view.function)
        del function.node_def[:]
        for node in view.function.node_def:
            if node.name not in self._call_of:
                self._rewire(function.node_def.add(), node)
        for call in calls:
            self._rewire(function.node_def.add(), call)
        for result, tensor in function.ret.items():
            function.ret[result] = self._tensor_of.get(tensor, tensor)
        for result, name in function.control_ret.items():
            function.control_ret[result] = self._call_of.get(name, name)
        self._found.function = function

    def _rewire(self, copy: Any, node: Any) -> None:
        """A node that reads, and waits for, calls in the place of what is in them."""
        copy.CopyFrom(node)
        del copy.input[:]
        copy.input.extend(self._tensor_of.get(tensor, tensor) for tensor in data_inputs(node))
        before = [self._call_of.get(name, name) for name in control_inputs(node)]
        copy.input.extend(f"^{name}" for name in dict.fromkeys(before) if name != node.name)
        if "_class" in copy.attr:
            gone = {f"loc:@{name}".encode() for name in self._call_of}
            classes = [name for name in copy.attr["_class"].list.s if name not in gone]
            copy.attr["_class"].list.s[:] = classes

    def _call(self, number: int, cone: Cone) -> Any:
        """The call of a cone; its inputs are still those of the function as it was."""
        from tensorflow.core.framework import node_def_pb2

        view = self._view
        name = f"{CALL_PREFIX}{number}"
        while name in view.nodes:
            name += "_"
        body = _Body(view, cone)
        self._found.bodies[body.function.signature.name] = body.function
        self._call_of.update(dict.fromkeys(cone.nodes, name))
        for index, tensor in enumerate(body.results):
            self._tensor_of[tensor] = f"{name}:output:{index}"
        call = node_def_pb2.NodeDef(name=name, device=cone.device)
        call.op = "StatefulPartitionedCall" if cone.variables else "PartitionedCall"
        call.input.extend(body.arguments)
        inside = set(cone.nodes)
        before = {b for n in cone.nodes for b in control_inputs(view.nodes[n])} - inside
        call.input.extend(f"^{b}" for b in sorted(before))
        signature = body.function.signature
        call.attr["f"].func.name = signature.name
        call.attr["Tin"].list.type.extend(argument.type for argument in signature.input_arg)
        call.attr["Tout"].list.type.extend(result.type for result in signature.output_arg)
        # (An empty list is a value, too.)
        call.attr["Tout"].list.SetInParent()
        for key in ("config", "config_proto", "executor_type"):
            call.attr[key].s = b""
        call.attr["_XlaMustCompile"].b = True
        return call


class _Body:
    """The function of a cone. Equal cones have equal functions, with the same name.

    Attributes:
      function: the `FunctionDef`.
      arguments: what it is called with.
      results: tensors of the cone that are read elsewhere.
    """

    def __init__(self, view: GraphView, cone: Cone):
        from tensorflow.core.framework import function_pb2

        self._view = view
        self.function = function_pb2.FunctionDef()
        self.arguments: list[str] = []
        self.results: list[str] = []
        self._inner: dict[str, str] = {}
        self._names = {name: f"n{i}" for i, name in enumerate(cone.nodes)}
        for name in cone.nodes:
            self._add(view.nodes[name])
        self._return(cone)
        for key in ("_XlaMustCompile", "_noinline"):
            self.function.attr[key].b = True
        bits = self.function.SerializeToString(deterministic=True)
        self.function.signature.name = FUNCTION_PREFIX + hashlib.sha256(bits).hexdigest()[:16]

    def _add(self, node: Any) -> None:
        copy = self.function.node_def.add()
        copy.CopyFrom(node)
        copy.name, copy.device = self._names[node.name], ""
        copy.ClearField("experimental_debug_info")
        for key in [key for key in copy.attr if key.startswith("_")]:
            del copy.attr[key]
        del copy.input[:]
        inputs = [self._input(tensor) for tensor in data_inputs(node)]
        copy.input.extend(inputs)
        before = [self._names[b] for b in control_inputs(node) if b in self._names]
        copy.input.extend(f"^{name}" for name in sorted(before))

    def _input(self, tensor: str) -> str:
        """What a tensor is called in the function."""
        view = self._view
        if view.dtype(tensor) == _RESOURCE:
            tensor = view.resource(tensor)
        if tensor not in self._inner:
            producer, _, output = tensor.partition(":")
            if producer in self._names:
                self._inner[tensor] = f"{self._names[producer]}:{output}"
            elif _is_small_constant(view, tensor):
                self._inner[tensor] = self._constant(view.nodes[producer])
            else:
                argument = self.function.signature.input_arg.add()
                argument.name, argument.type = f"a{len(self.arguments)}", view.dtype(tensor)
                self.arguments.append(tensor)
                self._inner[tensor] = argument.name
        return self._inner[tensor]

    def _constant(self, node: Any) -> str:
        copy = self.function.node_def.add(name=f"c{len(self._inner)}", op="Const")
        for key in ("dtype", "value"):
            copy.attr[key].CopyFrom(node.attr[key])
        return f"{copy.name}:output:0"

    def _return(self, cone: Cone) -> None:
        view, signature = self._view, self.function.signature
        for name in cone.nodes:
            node = view.nodes[name]
            if node.op in ASSIGNS:
                signature.is_stateful = True
                signature.control_output.append(self._names[name])
                self.function.control_ret[self._names[name]] = self._names[name]
                continue
            for tensor in view.outputs(node):
                readers = {use.node for use in view.uses(tensor)}
                if tensor in view.results or not readers <= self._names.keys():
                    result = signature.output_arg.add(name=f"r{len(self.results)}")
                    result.type = view.dtype(tensor)
                    self.function.ret[result.name] = self._input(tensor)
                    self.results.append(tensor)
