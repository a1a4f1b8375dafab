# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Has the elementwise operations of each weight's update run as one operation.

Point by point, an optimizer reads and writes each of its variables once; run one by one, its
operations read and write a tensor of that size every time. So what lies in front of the assignments
of variables is moved into one operation: a call of a function that XLA compiles (`xla.py`), or our
own, which has the same bits (`program.py`):

    g ─► Sub ─► Mul ─► AssignAdd(m) ··► Read(m) ─► Mul ─► AssignSub(w)
          ▲ Read(m)                                  ▲ rate
                          becomes    call(g, rate, &m, &w)

Such a *cone* starts from an assignment and takes an operation if all that read its result are in
it. So nothing in it is seen from outside but variables, and (in a function that updates a part of
the weights) what is sent to other replicas. Variables are read and assigned inside.

No optimizer is known by name here, and nothing about replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tf_fuse.shard_update.asynchrony import count_of
from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.cones import (
    CONTROL_FLOW,
    FREE,
    Cone,
    Finder,
    IsHere,
    Left,
    Rules,
    narrowed,
    without_cycles,
)
from tf_fuse.shard_update.graph_view import ASSIGNS, READS, GraphView, control_inputs, data_inputs
from tf_fuse.shard_update.origins import Site
from tf_fuse.shard_update.rows import SCATTERS, PartialShape

if TYPE_CHECKING:
    from tf_fuse.shard_update.staged import Stager

# Operations and assignments; each reads and writes a whole tensor if it is run by itself.
MIN_PASSES = 2
CALL_PREFIX = "tf_fuse_update_"
_OWN_CALL = Site()

# Why an assignment is left as it is.
REASONS = {
    "too_small": "the variable has fewer elements than are worth a call",
    "too_many": "there are more operations than one operation can have",
    "too_few": f"fewer than {MIN_PASSES} operations and assignments make one cone",
    "type": "of the types of the operations, one is not computed alike in one operation",
    "device": "the assignment or the variable is not on a CPU where it can run, as far as is known",
    "no_plugin": "the server that has the variable cannot run operations of tf_fuse",
    "several_devices": "the operations are on different devices",
    "unknown_shape": "a shape is not known when the function is traced, or not the variable's",
    "optimizer": "TensorFlow's graph optimizer makes something else of the operations",
    "not_read": "the variable may have no value before: it is assigned first",
    "not_elementwise": "the assigned value is made by an operation that is not elementwise",
    "read_elsewhere": "the assigned value is read by something else, too",
    "waits_for_itself": "something in between waits for a part of the operations",
    "rows": "what is done to rows of the variable is not all that is known to be done by rows",
    "control_flow": "the function has conditionals or loops of TensorFlow 1",
}


@dataclass
class Outline:
    """What becomes of a function.

    Attributes:
      cones: what is compiled, in the order of their calls' numbers.
      exact: of each, whether its operation has its bits.
      left: assignments that are not.
      function: the `FunctionDef` to run instead; None if nothing is compiled.
      bodies: the functions that it calls, by name.
    """

    cones: list[Cone] = field(default_factory=list)
    exact: list[bool] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    function: Any | None = None
    bodies: dict[str, Any] = field(default_factory=dict)


@dataclass
class Operation:
    """What a cone becomes.

    Attributes:
      node: with all attributes and data inputs; it has neither a name nor control inputs.
      results: tensors of the cone that are read elsewhere, in the order of the node's outputs.
      output: name of its list of outputs.
      body: the function that it calls, if it does.
      constants: nodes that it reads, with names of their own kind.
      is_exact: whether it has the bits of the cone.
    """

    node: Any
    results: list[str]
    output: str
    body: Any | None = None
    constants: list[Any] = field(default_factory=list)
    is_exact: bool = True


class Maker(Protocol):
    """Makes one kind of operations of cones."""

    @property
    def rules(self) -> Rules:
        """What may be in them."""

    def make(
        self, view: GraphView, cone: Cone, shapes: Mapping[str, Shape | None], site: Site
    ) -> Operation | str:
        """Makes one; or says why it cannot: a key of REASONS."""


def outline(
    view: GraphView,
    shapes: Mapping[str, Shape | None],
    is_here: IsHere,
    maker: Maker,
    site: Site = _OWN_CALL,
    partial: PartialShape | None = None,
) -> Outline:
    """Moves what lies in front of a function's assignments into operations of their own.

    Args:
      view: of the function.
      shapes: of its tensors and, by argument, of its variables, as far as they are known.
      is_here: where the function runs.
      maker: of the operations.
      site: how the function is called.
      partial: the shapes of tensors that are not all known, if what is done to rows of variables is
        moved, too.
    """
    old = sorted(node.name for node in view.nodes.values() if node.op in CONTROL_FLOW)
    if old:
        assigns = sorted(name for name, node in view.nodes.items() if node.op in ASSIGNS)
        return Outline(left=[Left(name, "control_flow", old[0]) for name in assigns])
    finder = Finder(view, shapes, is_here, maker.rules)
    found = Outline(left=finder.left)
    kept, cones = [], finder.cones()
    staged: list[tuple[Cone, Operation]] = []
    if partial is not None:
        from tf_fuse.shard_update.staged import Stager

        stager = Stager(view, finder, partial, is_here, maker, site)
        staged, cones = _staged(view, stager, cones, found)
    for cone in cones:
        cone = narrowed(view, cone) if cone.size == 1 else cone
        reason = _reason(view, cone, finder, maker.rules)
        if reason is None:
            kept.append(cone)
        else:
            found.left += [Left(n, *reason) for n in cone.nodes if view.nodes[n].op in ASSIGNS]
    ready = {id(cone): made for cone, made in staged}
    kept = [*(cone for cone, _ in staged), *kept]
    for cone in without_cycles(view, kept):
        found.left += [
            Left(n, "waits_for_itself", n) for n in cone.nodes if view.nodes[n].op in ASSIGNS
        ]
        kept.remove(cone)
    operations = {}
    for i, cone in enumerate(kept):
        made = ready.get(id(cone)) or maker.make(view, cone, finder.shapes, site)
        if isinstance(made, Operation):
            operations[i] = made
            continue
        found.left += [Left(n, made, n) for n in cone.nodes if view.nodes[n].op in ASSIGNS]
    found.left.sort(key=lambda left: left.node)
    found.cones = [kept[i] for i in operations]
    found.exact = [made.is_exact for made in operations.values()]
    if operations:
        is_counted = partial is not None
        _Builder(view, found, list(operations.values()), is_counted).build()
    return found


def _staged(
    view: GraphView, stager: Stager, cones: list[Cone], found: Outline
) -> tuple[list[tuple[Cone, Operation]], list[Cone]]:
    """Operations of updates that change rows, and the cones of others; see `staged.py`."""
    made, others = stager.take(cones)
    bad = without_cycles(view, [cone for cone, _ in made])
    nodes = {name for cone in bad for name in cone.nodes}
    found.left += [Left(n, "rows", n) for n in stager.left]
    found.left += [
        Left(n, "waits_for_itself", n) for n in sorted(nodes) if view.nodes[n].op in SCATTERS
    ]
    others += [cone for cone in cones if cone not in others and set(cone.nodes) & nodes]
    return [(cone, one) for cone, one in made if cone not in bad], others


def _reason(view: GraphView, cone: Cone, finder: Finder, rules: Rules) -> tuple[str, str] | None:
    """Why a cone is not worth an operation."""
    assigned = finder.assigned(cone)
    if cone.size < rules.least_elements:
        return "too_small", cone.nodes[-1]
    passes = [n for n in cone.nodes if view.nodes[n].op not in FREE | READS]
    if any(view.nodes[n].op not in ASSIGNS for n in passes) and len(passes) >= MIN_PASSES:
        return None
    if assigned is not None and len(passes) == 1 and cone.size > 1:
        producer = view.producer(assigned)
        if producer is not None and finder.is_compiled(producer):
            return "read_elsewhere", assigned
        return "not_elementwise", assigned
    return "too_few", cone.nodes[-1]


class _Builder:
    """Makes the function."""

    def __init__(
        self,
        view: GraphView,
        found: Outline,
        operations: Sequence[Operation],
        is_counted: bool = False,
    ):
        """Takes what it is made of.

        Args:
          view: of the function as it was.
          found: what is moved; gets the function.
          operations: for that.
          is_counted: whether servers are to count updates (`asynchrony.py`).
        """
        self._view, self._found, self._operations = view, found, operations
        self._is_counted = is_counted
        self._call_of: dict[str, str] = {}
        self._tensor_of: dict[str, str] = {}

    def build(self) -> None:
        from tensorflow.core.framework import function_pb2

        view = self._view
        pairs = zip(self._found.cones, self._operations, strict=True)
        calls = [node for i, pair in enumerate(pairs) for node in self._call(i, *pair)]
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

    def _call(self, number: int, cone: Cone, made: Operation) -> list[Any]:
        """The operation of a cone; its inputs are still those of the function as it was."""
        view = self._view
        name = f"{CALL_PREFIX}{number}"
        while name in view.nodes:
            name += "_"
        if made.body is not None:
            self._found.bodies[made.body.signature.name] = made.body
        self._call_of.update(dict.fromkeys(cone.nodes, name))
        for index, tensor in enumerate(made.results):
            self._tensor_of[tensor] = f"{name}:{made.output}:{index}"
        made.node.name = name
        for constant in made.constants:
            old, constant.name = constant.name, f"{name}/{constant.name}"
            constant.device = cone.device
            inputs = list(made.node.input)
            made.node.input[:] = [
                f"{constant.name}:output:0" if one == f"{old}:output:0" else one for one in inputs
            ]
        inside = set(cone.nodes)
        counts = [count_of(view, cone, made.node)] if self._is_counted else []
        before = {b for n in cone.nodes for b in control_inputs(view.nodes[n])} - inside
        made.node.input.extend(f"^{b}" for b in sorted(before))
        return [*made.constants, *counts, made.node]


def results_of(view: GraphView, cone: Cone) -> list[str]:
    """The tensors of a cone that are read elsewhere."""
    inside = set(cone.nodes)
    return [
        tensor
        for name in cone.nodes
        if view.nodes[name].op not in ASSIGNS
        for tensor in view.outputs(view.nodes[name])
        if tensor in view.results or not {use.node for use in view.uses(tensor)} <= inside
    ]


def _check(function: Any) -> None:
    """TensorFlow drops a node in silence if nothing that exists waits for it."""
    there = {node.name for node in function.node_def}
    there |= {argument.name for argument in function.signature.input_arg}
    used = {tensor for node in function.node_def for tensor in node.input}
    used |= {*function.ret.values(), *function.control_ret.values()}
    if missing := sorted({name.lstrip("^").partition(":")[0] for name in used} - there):
        raise ValueError(f"{function.signature.name} has no {missing[:10]}, which it uses")
