# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run the pass that makes each weight update of a function one operation.

`Pipeline.run` is the table of contents. For one function, in this order:

1. remove dead nodes            `rewrite/dead_nodes.py`           FunctionDef -> FunctionDef
2. infer shapes                 `function_graph/function_lookup.py`  FuncGraph -> tensors' shapes
3. fuse the called functions    this pass, once for each call      call -> name to call instead
4. find fusion clusters         `analysis/fusion_clusters.py`     view, shapes -> clusters
5. encode them                  `encode/`                         cluster -> FusedOperation
6. outline them                 `rewrite/function_builder.py`     view, operations -> FunctionDef
7. mark reads (servers only)    `rewrite/shared_reads.py`         of rates, for a later pass
8. lock (servers only)          `rewrite/locking.py`              sets use_locking on ResourceApply*
9. register the function, with the bodies that it calls

Steps 4 to 6 are `outline.outline`; on servers, `outline_row_divisions.py` first replaces the
conditionals in which Keras 3 divides rows by a table.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import RESOURCE
from tf_fuse._tensorflow.graphs.functions import called_by
from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.decisions import Decided
from tf_fuse.function_graph.function_lookup import (
    op_defs,
    partial_shapes,
    rename_called,
    static_shapes,
)
from tf_fuse.function_graph.set_shapes import set_shapes
from tf_fuse.function_graph.view import ASSIGNS, GraphView, data_inputs
from tf_fuse.fuse_update.analysis.devices import ArgumentDevices
from tf_fuse.fuse_update.analysis.fusion_clusters import CanFuseOn
from tf_fuse.fuse_update.analysis.grappler_inputs import CallSite
from tf_fuse.fuse_update.analysis.local_nodes import can_fuse_locally
from tf_fuse.fuse_update.analysis.rows import SCATTERS
from tf_fuse.fuse_update.backend import Backend
from tf_fuse.fuse_update.fusion_decision import FusionDecision
from tf_fuse.fuse_update.outline import Outline, outline
from tf_fuse.fuse_update.outline_row_divisions import outline_with_divisions
from tf_fuse.fuse_update.rewrite.dead_nodes import without_dead_nodes
from tf_fuse.fuse_update.rewrite.locking import lock_applies
from tf_fuse.fuse_update.rewrite.shared_reads import mark_reads


@dataclass(frozen=True)
class FunctionCall:
    """A function to rewrite, and how the program calls it.

    Attributes:
      name: of the function.
      graph: the `FuncGraph` that it was traced to.
      site: how it is called.
      rewritten: the name for the rewritten function.
      can_fuse_on: decides which assignments may be fused, by device and variable.
      variables: names of variables in the program, by argument, as far as they are known.
    """

    name: str
    graph: Any
    site: CallSite
    rewritten: str
    can_fuse_on: CanFuseOn
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Records:
    """What the pass did to the functions of one eager context.

    Attributes:
      decided: what was decided about each function.
      counts: how many updates were ever fused, and how many assignments were not.
      called: names of the rewritten functions of each called function, one for each `CallSite`.
    """

    decided: Decided[FusionDecision] = field(default_factory=Decided)
    counts: Counter[str] = field(
        default_factory=lambda: Counter(updates_fused=0, assignments_left=0)
    )
    called: dict[bytes, set[bytes]] = field(default_factory=dict)


class Pipeline:
    """Runs the pass on functions of one eager context, with one set of options.

    Attributes:
      suffix: appended to names of rewritten functions.
    """

    def __init__(
        self,
        backend: Backend,
        suffix: str,
        shapes: Mapping[str, Mapping[str, Shape | None]],
        records: Records,
    ):
        """Store what the pass needs.

        Args:
          backend: runs the fused updates.
          suffix: see `Pipeline`; it differs from that of other options.
          shapes: by function, the shapes of its tensors where its graph does not have them.
          records: what was done so far.
        """
        self.suffix = suffix
        self._backend, self._shapes, self._records = backend, shapes, records

    def run(self, context: Any, call: FunctionCall) -> str:
        """Rewrite a function, and register the result in the context.

        Returns:
          The name of the function to call instead; the function's own name if nothing changed.
        """
        definition = context.get_function_def(call.name)
        if _is_compiled(definition):
            return call.name
        if context.has_function(call.rewritten):
            return call.rewritten
        devices = call.can_fuse_on if isinstance(call.can_fuse_on, ArgumentDevices) else None
        definition = without_dead_nodes(definition, op_defs(call.site.body))
        view = GraphView(definition, op_defs(call.site.body))
        if devices is not None:
            view.device_of = functools.partial(devices.of_node, view)
        shapes = self._shapes.get(call.name) or static_shapes(view, call.graph)
        inner = self._fuse_called(context, call, view, shapes)
        found = Outline()
        if any(node.op in ASSIGNS | SCATTERS for node in definition.node_def):
            call = replace(call, site=replace(call.site, set_shapes=set_shapes(view, call.graph)))
            view, found = self._outline(call, view, shapes, devices)
        function, is_locked = found.function, False
        if devices is not None:
            if function is not None:
                mark_reads(function, view, shapes)
            is_locked = bool(lock_applies(function or definition, view, devices))
        if function is None:
            if not inner and not is_locked:
                return call.name
            function = definition  # (Step 1 made a copy.)
        for node in function.node_def:
            rename_called(node, inner.get(node.name, {}))
        function.signature.name = call.rewritten
        for made in [*found.bodies.values(), function]:
            if not context.has_function(made.signature.name):
                context.add_function_def(made)
        return call.rewritten

    def _outline(
        self,
        call: FunctionCall,
        view: GraphView,
        shapes: Mapping[str, Shape | None],
        devices: ArgumentDevices | None,
    ) -> tuple[GraphView, Outline]:
        """Run steps 4 to 6; return the view that was outlined, and the outline."""
        arguments = (shapes, call.can_fuse_on, self._backend.encoder, call.site)
        if devices is None:
            found = outline(view, *arguments)
        else:
            partial = partial_shapes(view, call.graph)
            if self._backend.may_differ():
                view, found = outline_with_divisions(view, *arguments, partial)
            else:
                found = outline(view, *arguments, partial)
        decision = FusionDecision(call.name, found, view, devices is not None, call.variables)
        self._records.decided.add(call.name, decision, call.rewritten)
        unfused = len(decision.assignments_left())
        self._records.counts.update(updates_fused=len(found.clusters), assignments_left=unfused)
        return view, found

    def _fuse_called(
        self,
        context: Any,
        call: FunctionCall,
        view: GraphView,
        shapes: Mapping[str, Shape | None],
    ) -> dict[str, dict[str, str]]:
        """Run the pass on called functions; return the new name of each, by calling node."""
        found: dict[str, dict[str, str]] = {}
        functions = called_by(call.graph)
        for node in view.function.node_def:
            called = {f.name for a in node.attr.values() for f in [a.func, *a.list.func]}
            for name in sorted(called & functions.keys()):
                graph = getattr(functions[name], "graph", None)
                if graph is None or not context.has_function(name) or _is_compiled(node):
                    continue
                if _passes_one_variable_twice(view, node):
                    continue
                inner = self._inner_call(context, call, view, shapes, node, name, graph)
                if self.run(context, inner) == inner.rewritten:
                    called = self._records.called.setdefault(name.encode(), set())
                    called.add(inner.rewritten.encode())
                    found.setdefault(node.name, {})[name] = inner.rewritten
        return found

    def _inner_call(
        self,
        context: Any,
        call: FunctionCall,
        view: GraphView,
        shapes: Mapping[str, Shape | None],
        node: Any,
        name: str,
        graph: Any,
    ) -> FunctionCall:
        """Describe the call of one function by a node of another."""
        site = call.site.of_call(view, shapes, node)
        arguments = [a.name for a in context.get_function_def(name).signature.input_arg]
        rewritten = name + self.suffix + site.suffix
        if isinstance(call.can_fuse_on, ArgumentDevices):
            inside: CanFuseOn = call.can_fuse_on.inside(view, node, arguments)
            # Calls with variables of other servers get a function of their own.
            rewritten += _name_of(call.can_fuse_on.of_arguments(view, node, arguments))
        else:
            inside = can_fuse_locally(context, {})
        known = view.of_arguments(node, arguments, call.variables)
        return FunctionCall(name, graph, site, rewritten, inside, known)


def _name_of(devices: Mapping[str, str]) -> str:
    """Return a part of a function's name: the same only for the same devices of its arguments."""
    return "_" + hashlib.sha256(repr(sorted(devices.items())).encode()).hexdigest()[:16]


def _passes_one_variable_twice(view: GraphView, node: Any) -> bool:
    """Return whether a variable is two arguments of a call: two names of one variable."""
    passed = [view.resource(t) for t in data_inputs(node) if view.dtype(t) == RESOURCE]
    return len(set(passed)) < len(passed)


def _is_compiled(node: Any) -> bool:
    """Return whether XLA compiles a call, or a function, as a whole."""
    # (Looking a missing key up would add it.)
    return "_XlaMustCompile" in node.attr and bool(node.attr["_XlaMustCompile"].b)
