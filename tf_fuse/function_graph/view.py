# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read a `FunctionDef` as a graph.

Tensors are named as in a `FunctionDef`: "argument", or "node:output:index". Control inputs are
"^node". A view never changes its function.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse.function_graph.operations import RESOURCE_APPLY, apply_inputs

READS = frozenset({"ReadVariableOp"})
ASSIGNS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})
# Operations that forward a resource unchanged.
_ALIASES = frozenset({"Identity", "IdentityN"})
# Operations that read only the metadata of the variable in their first input.
_READS_SHAPE_ONLY = frozenset({"VariableShape", "VarIsInitializedOp"})


@dataclass(frozen=True)
class Use:
    """A tensor as an input of a node.

    Attributes:
      node: name of the consumer.
      index: of its data inputs.
    """

    node: str
    index: int


class GraphView:
    """The nodes of a function, what they read, and who reads them.

    Attributes:
      function: the `FunctionDef`.
      nodes: by name.
      arguments: names of the arguments, in order.
      results: the tensors that it returns, in order.
      device_of: returns a key of the device that a node runs on; equal keys mean one device.
    """

    def __init__(self, function: Any, op_def: Callable[[str], Any]):
        """Index a function.

        Args:
          function: a `FunctionDef`.
          op_def: the `OpDef` of an op or function, by name; raises KeyError for others.
        """
        self.function = function
        self.op_def = op_def
        self.nodes = {node.name: node for node in function.node_def}
        self.arguments = [argument.name for argument in function.signature.input_arg]
        self.results = [function.ret[result.name] for result in function.signature.output_arg]
        self.device_of: Callable[[Any], str] = lambda node: ""
        self._outputs: dict[str, list[str]] = {}
        self._argument_types: dict[str, int] = {}
        self._uses: dict[str, list[Use]] = defaultdict(list)
        self._followers: dict[str, list[str]] = defaultdict(list)
        for node in function.node_def:
            name, index = node.name, 0
            for tensor in node.input:
                if tensor.startswith("^"):
                    self._followers[tensor[1:]].append(name)
                else:
                    self._uses[tensor].append(Use(name, index))
                    index += 1

    def uses(self, tensor: str) -> list[Use]:
        """Return the inputs that read a tensor."""
        return list(self._uses.get(tensor, ()))

    def followers(self, node: str) -> list[str]:
        """Return the nodes with a control edge from this one."""
        return list(self._followers.get(node, ()))

    def producer(self, tensor: str) -> Any | None:
        """Return the node that produces a tensor, or None for an argument."""
        return self.nodes.get(tensor.partition(":")[0]) if ":" in tensor else None

    def outputs(self, node: Any) -> list[str]:
        """Return the output tensors of a node, in order."""
        name = node.name
        found = self._outputs.get(name)
        if found is None or self.nodes.get(name) is not node:
            found = [
                f"{name}:{argument.name}:{i}"
                for argument in self.op_def(node.op).output_arg
                for i in range(_number(argument, node))
            ]
            if self.nodes.get(name) is node:
                self._outputs[name] = found
        return list(found)

    def output_index(self, tensor: str) -> int:
        """Return which output of its producer a tensor is."""
        producer = self.producer(tensor)
        if producer is None:
            raise ValueError(f"{tensor} is an argument, not an output of a node")
        return self.outputs(producer).index(tensor)

    def dtype(self, tensor: str) -> int:
        """Return the number of a tensor's type."""
        producer = self.producer(tensor)
        if producer is None:
            if not self._argument_types:
                inputs = self.function.signature.input_arg
                self._argument_types = {one.name: int(one.type) for one in inputs}
            if tensor not in self._argument_types:
                raise ValueError(f"{tensor} is neither an argument nor an output of a node")
            return self._argument_types[tensor]
        _, name, index = tensor.split(":")
        for argument in self.op_def(producer.op).output_arg:
            if argument.name == name:
                if argument.type_list_attr:
                    return int(producer.attr[argument.type_list_attr].list.type[int(index)])
                return int(
                    producer.attr[argument.type_attr].type if argument.type_attr else argument.type
                )
        raise ValueError(f"{producer.op} has no output {tensor}")

    def resource(self, tensor: str) -> str:
        """Return the source of a resource, looking through nodes that forward it."""
        while (node := self.producer(tensor)) is not None and node.op in _ALIASES:
            tensor = data_inputs(node)[self.output_index(tensor)]
        return tensor

    def of_arguments(
        self, node: Any, names: Sequence[str], known: Mapping[str, str]
    ) -> dict[str, str]:
        """Translate knowledge about arguments to a function that a node calls.

        Args:
          node: that calls.
          names: of the arguments of that function.
          known: by argument of this function.
        """
        # (The first input of a conditional is the predicate.)
        tensors = data_inputs(node)[-len(names) :] if names else []
        sources = zip(names, map(self.resource, tensors), strict=False)
        return {name: known[source] for name, source in sources if source in known}

    def variable_of(self, node: Any) -> str | None:
        """Return the variable's resource of a read or an assignment, or None for other nodes."""
        if node.op not in READS | ASSIGNS:
            return None
        return self.resource(data_inputs(node)[0])

    def assigned(self, node: Any) -> list[str]:
        """Return the resources of variables that a node changes, the weight before its slots."""
        if node.op in ASSIGNS:
            return [str(self.variable_of(node))]
        if node.op in RESOURCE_APPLY:
            inputs = data_inputs(node)
            indices = apply_inputs(self.op_def(node.op)).variables
            return [self.resource(inputs[i]) for i in indices]
        return []

    def users(self, resource: str) -> list[Any]:
        """Return the nodes that read or change a variable, in the order of their names."""
        found = set()
        waiting = [resource]
        while waiting:
            for use in self.uses(waiting.pop()):
                node = self.nodes[use.node]
                if node.op in _ALIASES:
                    waiting.append(self.outputs(node)[use.index])
                elif node.op in READS | ASSIGNS | RESOURCE_APPLY:
                    found.add(node.name)
        return [self.nodes[name] for name in sorted(found)]

    def escapes(self, resource: str, but_shape: bool = True) -> list[str]:
        """Return the nodes that use a variable otherwise than to read or assign it.

        The list contains "" if the function returns the variable.

        Args:
          resource: of a variable, as of `resource`.
          but_shape: whether to leave out nodes that read only its shape.
        """
        harmless = READS | ASSIGNS | RESOURCE_APPLY | {"VarIsInitializedOp"}
        if but_shape:
            harmless |= _READS_SHAPE_ONLY
        found = []
        waiting = [resource]
        while waiting:
            tensor = waiting.pop()
            if tensor in self.results:
                found.append("")
            for use in self.uses(tensor):
                node = self.nodes[use.node]
                if node.op in _ALIASES:
                    waiting.append(self.outputs(node)[use.index])
                elif node.op not in harmless:
                    found.append(node.name)
        return sorted(set(found))

    def in_order(self) -> Iterator[Any]:
        """Yield all nodes in topological order; ties are broken by name.

        Raises:
          ValueError: the graph has a cycle; the message names its nodes.
        """
        missing: dict[str, int] = {}
        after: dict[str, list[str]] = defaultdict(list)
        for name, node in self.nodes.items():
            befores = {one for one in _predecessors(node) if one in self.nodes}
            missing[name] = len(befores)
            for before in befores:
                after[before].append(name)
        ready = [name for name, count in missing.items() if count == 0]
        heapq.heapify(ready)
        done = 0
        while ready:
            name = heapq.heappop(ready)
            done += 1
            yield self.nodes[name]
            for follower in after[name]:
                missing[follower] -= 1
                if missing[follower] == 0:
                    heapq.heappush(ready, follower)
        if done < len(self.nodes):
            left = sorted(name for name, count in missing.items() if count > 0)
            raise ValueError(f"{self.function.signature.name} has a cycle in {left[:10]}")


def without_bundles(function: Any) -> Any:
    """Return a copy of a function without `IdentityN` nodes that bundle tensors.

    Optimizers bundle the gradients of all variables in one `IdentityN`; a node that reads one
    gradient from it waits for all of them.
    """
    from tensorflow.core.framework import function_pb2

    copy = function_pb2.FunctionDef()
    copy.CopyFrom(function)
    waited_for = {before for node in function.node_def for before in control_inputs(node)}
    waited_for |= set(function.control_ret.values())
    waited_for |= {tensor.partition(":")[0] for tensor in function.ret.values()}
    bundles = {
        node.name: node
        for node in function.node_def
        if node.op == "IdentityN" and not control_inputs(node) and node.name not in waited_for
    }
    handed_on = {
        f"{name}:output:{i}": tensor
        for name, node in bundles.items()
        for i, tensor in enumerate(data_inputs(node))
    }
    kept = [node for node in copy.node_def if node.name not in bundles]
    del copy.node_def[:]
    copy.node_def.extend(kept)
    for node in copy.node_def:
        for position, tensor in enumerate(node.input):
            while tensor in handed_on:
                tensor = handed_on[tensor]
            node.input[position] = tensor
    return copy


def data_inputs(node: Any) -> list[str]:
    """Return the tensors that a node reads."""
    return [tensor for tensor in node.input if not tensor.startswith("^")]


def value_inputs(node: Any) -> list[str]:
    """Return the tensors that a node reads, without the shape that it reshapes to."""
    return data_inputs(node)[:1] if node.op == "Reshape" else data_inputs(node)


def control_inputs(node: Any) -> list[str]:
    """Return the nodes that a node waits for."""
    return [tensor[1:] for tensor in node.input if tensor.startswith("^")]


def _predecessors(node: Any) -> Iterator[str]:
    for tensor in node.input:
        if tensor.startswith("^"):
            yield tensor[1:]
        elif ":" in tensor:
            yield tensor.partition(":")[0]


def _number(argument: Any, node: Any) -> int:
    if argument.number_attr:
        return int(node.attr[argument.number_attr].i)
    if argument.type_list_attr:
        return len(node.attr[argument.type_list_attr].list.type)
    return 1
