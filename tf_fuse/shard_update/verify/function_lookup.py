# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Look up a function and those that it calls, for the verifier (`verifier.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_fuse.function_graph.view import GraphView, control_inputs, data_inputs

# The first input of these is not an argument of the functions that they call.
BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
SCATTER, GATHER = "TfFuse>ReduceScatter", "TfFuse>AllGather"
OURS = frozenset({SCATTER, GATHER, "TfFuse>AllReduce"})

_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})
_READS_SHAPE = frozenset({"VariableShape", "VarIsInitializedOp"})
_HANDS_ON = frozenset({"Identity", "IdentityN"})
_LOOPS = frozenset({"While", "StatelessWhile"})


class WrongError(Exception):
    """Says what is wrong with a function."""


class Bodies:
    """Functions and those that they call."""

    def __init__(self, function: Callable[[str], Any | None]):
        self._function = function
        self._views: dict[int, tuple[Any, GraphView]] = {}
        self._has_collective: dict[str, bool] = {}
        self._handles: dict[str, dict[str, list[tuple[GraphView, Any]]]] = {}

    def view(self, definition: Any) -> GraphView:
        """Return the graph of a function."""
        if id(definition) not in self._views:
            self._views[id(definition)] = definition, GraphView(definition, self._op_def)
        return self._views[id(definition)][1]

    def called(self, node: Any) -> list[Any]:
        """Return the functions that a node calls, as far as they are known."""
        names = [node.op]
        for key in sorted(node.attr):
            value = node.attr[key]
            names += [function.name for function in [value.func, *value.list.func]]
        return [body for name in names if name and (body := self._function(name)) is not None]

    def all_of(self, definition: Any) -> Iterator[GraphView]:
        """Yield the graphs of a function and of all that it calls, each once."""
        waiting, seen = [definition], set()
        while waiting:
            one = waiting.pop()
            if one.signature.name not in seen:
                seen.add(one.signature.name)
                yield self.view(one)
                waiting += [body for node in one.node_def for body in self.called(node)]

    def has_collective(self, node: Any) -> bool:
        """Return whether a node, or a function that it calls, is a collective."""
        if node.op.startswith("Collective") or node.op in OURS:
            return True
        for body in self.called(node):
            name = body.signature.name
            if name not in self._has_collective:
                self._has_collective[name] = any(map(self.has_collective, body.node_def))
            if self._has_collective[name]:
                return True
        return False

    def uses(self, view: GraphView, resource: str, path: str = "") -> Iterator[tuple[str, Any]]:
        """Yield the nodes that use a variable, here and in called functions, with their paths."""
        waiting = [resource]
        while waiting:
            tensor = waiting.pop()
            for use in view.uses(tensor):
                node = view.nodes[use.node]
                index = use.index - (node.op in BRANCHES)
                if node.op in _HANDS_ON:
                    waiting.append(view.outputs(node)[use.index])
                    continue
                bodies = [self.view(body) for body in self.called(node)]
                if not bodies or any(index >= len(body.arguments) for body in bodies):
                    yield path + node.name, node
                    continue
                for i, body in enumerate(bodies):
                    yield from self.uses(body, body.arguments[index], f"{path}{node.name}.{i}/")
                if node.op in _LOOPS:
                    waiting.append(view.outputs(node)[use.index])

    def writers(self, view: GraphView, resource: str) -> list[str]:
        """Return the paths of the nodes that do more with a variable than to read it."""
        harmless = _READS | _READS_SHAPE
        return sorted(
            {
                path
                for path, node in self.uses(view, resource)
                # (Collectives take tokens, which no collective of ours needs.)
                if node.op not in harmless and not self.has_collective(node)
            }
        )

    def handles(self, view: GraphView, shared_name: str) -> Sequence[tuple[GraphView, Any]]:
        """Return the nodes that make a handle of a variable, here and in called functions.

        A function that is called twice has its nodes there twice.
        """
        return self._all_handles(view).get(shared_name, ())

    def _all_handles(self, view: GraphView) -> dict[str, list[tuple[GraphView, Any]]]:
        """Return what `handles` returns, by shared name: a walk for each variable takes long."""
        name = view.function.signature.name
        if name not in self._handles:
            found: dict[str, list[tuple[GraphView, Any]]] = {}
            for node in view.function.node_def:
                if node.op == "VarHandleOp":
                    found.setdefault(node.attr["shared_name"].s.decode(), []).append((view, node))
                for body in self.called(node):
                    for shared_name, nodes in self._all_handles(self.view(body)).items():
                        found.setdefault(shared_name, []).extend(nodes)
            self._handles[name] = found
        return self._handles[name]

    def _op_def(self, name: str) -> Any:
        from tensorflow.python.framework import op_def_registry

        body = self._function(name)
        found = op_def_registry.get(name) if body is None else body.signature
        if found is None:
            raise WrongError(f"there is no operation {name}")
        return found


def waits_for(view: GraphView, name: str, wanted: set[str]) -> set[str]:
    """Those of some nodes that a node waits for."""
    seen: set[str] = set()
    waiting = list(view.nodes[name].input)
    while waiting:
        one = waiting.pop()
        producer = view.nodes.get(one.lstrip("^").partition(":")[0])
        if one in seen or producer is None:
            continue
        seen.add(one)
        if producer.op == "IdentityN" and not one.startswith("^"):
            # What only travels together does not wait for each other.
            waiting.append(data_inputs(producer)[view.output_index(one)])
            waiting += [f"^{before}" for before in control_inputs(producer)]
        elif (whole := f"^{producer.name}") == one or whole not in seen:
            seen.add(whole)
            waiting += producer.input
    return {tensor[1:] for tensor in seen if tensor.startswith("^")} & wanted
