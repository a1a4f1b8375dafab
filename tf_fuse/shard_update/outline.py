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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.cones import (
    COMPILED,
    CONTROL_FLOW,
    FREE,
    Cone,
    Finder,
    IsHere,
    Left,
    is_small_constant,
    without_cycles,
)
from tf_fuse.shard_update.graph_view import ASSIGNS, READS, GraphView, control_inputs, data_inputs

# Calls cost more than they save in smaller tensors.
MIN_ELEMENTS = 65536
# Operations and assignments; each reads and writes a whole tensor if it is run by itself.
MIN_PASSES = 2
FUNCTION_PREFIX = "__tf_fuse_update_"
CALL_PREFIX = "tf_fuse_compiled_"

_RESOURCE = 20  # DT_RESOURCE

# Why an assignment is left as it is.
REASONS = {
    "too_small": f"the variable has fewer than {MIN_ELEMENTS} elements",
    "too_few": f"fewer than {MIN_PASSES} operations and assignments make one cone",
    "type": "of the types of the operations, one is not computed alike when it is compiled",
    "device": "the assignment or the variable is not on a CPU of this process, as far as is known",
    "several_devices": "the operations are on different devices",
    "unknown_shape": "the shape of the variable is not known when the function is traced",
    "not_elementwise": "the assigned value is made by an operation that is not elementwise",
    "read_elsewhere": "the assigned value is read by something else, too",
    "waits_for_itself": "something in between waits for a part of the operations",
    "control_flow": "the function has conditionals or loops of TensorFlow 1",
}


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

    @property
    def same_bits(self) -> bool:
        """Whether values are those of the function as it was, to the last bit.

        XLA rounds a product and a sum once where it computes both by one instruction.
        """
        return not self.cones


def outline(view: GraphView, shapes: Mapping[str, Shape | None], is_here: IsHere) -> Outline:
    """Moves what lies in front of a function's assignments into functions to be compiled.

    Args:
      view: of the function.
      shapes: of its tensors and, by argument, of its variables, as far as they are known.
      is_here: where the function runs.
    """
    old = sorted(node.name for node in view.nodes.values() if node.op in CONTROL_FLOW)
    if old:
        assigns = sorted(name for name, node in view.nodes.items() if node.op in ASSIGNS)
        return Outline(left=[Left(name, "control_flow", old[0]) for name in assigns])
    finder = Finder(view, shapes, is_here)
    found = Outline(left=finder.left)
    kept = []
    for cone in finder.cones():
        reason = _reason(view, cone, finder.assigned(cone))
        if reason is None:
            kept.append(cone)
        else:
            found.left += [Left(n, *reason) for n in cone.nodes if view.nodes[n].op in ASSIGNS]
    for cone in without_cycles(view, kept):
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
    passes = [n for n in cone.nodes if view.nodes[n].op not in FREE | READS]
    if any(view.nodes[n].op not in ASSIGNS for n in passes) and len(passes) >= MIN_PASSES:
        return None
    if assigned is not None and len(passes) == 1:
        producer = view.producer(assigned)
        if producer is not None and producer.op in COMPILED:
            return "read_elsewhere", assigned
        return "not_elementwise", assigned
    return "too_few", cone.nodes[-1]


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
        for result, tensor in view.function.ret.items():
            function.ret[result] = self._tensor_of.get(tensor, tensor)
        for result, name in view.function.control_ret.items():
            function.control_ret[result] = self._call_of.get(name, name)
        _check(function)
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


def _check(function: Any) -> None:
    """TensorFlow drops a node in silence if nothing that exists waits for it."""
    there = {node.name for node in function.node_def}
    there |= {argument.name for argument in function.signature.input_arg}
    used = {tensor for node in function.node_def for tensor in node.input}
    used |= {*function.ret.values(), *function.control_ret.values()}
    if missing := sorted({name.lstrip("^").partition(":")[0] for name in used} - there):
        raise ValueError(f"{function.signature.name} has no {missing[:10]}, which it uses")


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
            elif is_small_constant(view, tensor):
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
