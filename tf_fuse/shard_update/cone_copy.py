# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A cone as a graph of its own, for Grappler, and what has become of it; see `simplify.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.cones import Cone, is_small_constant
from tf_fuse.shard_update.expressions import Expressions, in_order
from tf_fuse.shard_update.graph_view import (
    ASSIGNS,
    READS,
    GraphView,
    control_inputs,
    data_inputs,
)
from tf_fuse.shard_update.origins import SAME, handed_on, is_constant, is_front, same_as
from tf_fuse.shard_update.outline import results_of
from tf_fuse.shard_update.twins import Twins

_END = "end"
_READ = "ReadVariableOp"
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
OTHER_CPU = "/job:localhost/replica:0/task:0/device:CPU:1"
# The beginning of the names of all other devices.
_ELSEWHERE = "/job:localhost/replica:0/task:0/device:CPU:"
_RESOURCE = 20  # DT_RESOURCE
# Grappler's own nodes have names that begin with one of these.
_MADE = ("ArithmeticOptimizer", "ConstantFolding")


@dataclass
class Simple:
    """A cone as a function of its own.

    Attributes:
      view: of the function.
      nodes: names of its nodes, in an order in which they can run.
      inputs: by argument that is not a variable, the tensor that it is.
      variables: by argument that is a variable, the resource that it is.
      results: its tensors that are read elsewhere.
      outer_results: what they are in the function that the cone is of.
    """

    view: GraphView
    nodes: list[str]
    inputs: dict[str, str]
    variables: dict[str, str]
    results: list[str]
    outer_results: list[str]


class ConeCopy:
    """A cone as a graph, and what is in front of it.

    Attributes:
      graph: the `GraphDef`.
      fetches: names of nodes that have to stay.
      readers: of nodes that stand for those that read the front elsewhere; they have to stay, too.
      fronts: by tensor of the front that the cone reads, the name of its node.
    """

    def __init__(
        self,
        view: GraphView,
        cone: Cone,
        shapes: Mapping[str, Shape | None],
        twins: Twins,
        has_results: bool,
        early: bool = False,
        through: bool = False,
    ):
        from tensorflow.core.framework import graph_pb2

        self.graph = graph_pb2.GraphDef()
        self.graph.versions.producer = _producer()
        self._view, self._shapes, self._has_results = view, shapes, has_results
        self._early, self.has_early_names = early, False
        self._through, self.has_front_behind = through, False
        self._size = cone.size
        self.fronts: dict[str, str] = {}
        # Those of constants alone, of whom it makes no difference who reads them.
        self._constant_fronts: set[str] = set()
        self.readers: list[str] = []
        self._front: set[str] = set()
        self._copy_of: dict[str, Any] = {}
        #: Whether it is not known if others read the front.
        self.is_unclear = False
        self._inside = set(cone.nodes)
        self._taken = set(cone.nodes)
        # By place that is not the cone's, a device of its own.
        self._devices = {view.place_of(view.nodes[cone.nodes[-1]]): ""}
        self._inputs: dict[str, str] = {}
        self._variables: dict[str, str] = {}
        self._outer_results = results_of(view, cone)
        for name in cone.nodes:
            self._add(view.nodes[name])
        end = self.graph.node.add(name=self._new(_END), op="NoOp")
        end.input.extend(f"^{n}" for n in cone.nodes if view.nodes[n].op in ASSIGNS)
        self.fetches = [end.name]
        for tensor in self._outer_results:
            result = self.graph.node.add(name=self._new("result"), op="Identity")
            result.input.append(tensor.partition(":")[0])
            result.attr["T"].type = view.dtype(tensor)
            self.fetches.append(result.name)
        self._add_readers(twins)

    def _add_readers(self, twins: Twins) -> None:
        """Of what others read, too, Grappler leaves more as it is."""
        # (Without the cone, what is the same elsewhere would be read by one less.)
        self.is_unclear = any(set(twins.of(name)) - self._inside for name in self._inside)
        there = self._inside | self._front
        for name in sorted(self._front):
            same = [self._view.nodes[twin] for twin in twins.of(name)]
            tensors = [tensor for node in same for tensor in self._view.outputs(node)]
            users = {user for tensor in tensors for user in self._users(tensor)}
            others, is_result = users - there, bool(set(tensors) & set(self._view.results))
            if others or is_result:
                is_read = others & twins.sure or (is_result and not twins.is_inner)
                self.is_unclear = self.is_unclear or not is_read
                self.readers.append(self._identity(name, self._view.outputs(same[0])[0]))

    def _users(self, tensor: str) -> Iterator[str]:
        for use in self._view.uses(tensor):
            if self._through and self._view.nodes[use.node].op == "IdentityN":
                yield from self._users(f"{use.node}:output:{use.index}")
            else:
                yield use.node

    def _identity(self, name: str, tensor: str) -> str:
        made = self.graph.node.add(name=self._new("reader"), op="Identity", input=[name])
        made.attr["T"].type = self._view.dtype(tensor)
        return str(made.name)

    def front_only(self) -> Any:
        """The graph without the cone: what reads the front of it is not known to Grappler."""
        from tensorflow.core.framework import graph_pb2

        front = graph_pb2.GraphDef(versions=self.graph.versions)
        nodes = {node.name: node for node in self.graph.node}
        needed, waiting = set(), [*self.fronts.values(), *self.readers]
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed.add(name)
                waiting.extend(text.lstrip("^") for text in nodes[name].input)
        front.node.extend(node for node in self.graph.node if node.name in needed)
        for name in sorted(set(self.fronts.values())):
            made = front.node.add(name=_front_fetch(name), op="Identity", input=[name])
            made.attr["T"].type = self._type_of[name]
        return front

    def front_fetches(self) -> list[str]:
        """The names of nodes of `front_only` that have to stay."""
        return [*map(_front_fetch, sorted(set(self.fronts.values()))), *self.readers]

    def make_alike(self) -> None:
        """Gives nodes and sizes names and numbers that alike cones have in common.

        What Grappler makes of it depends on the order of names, and on which shapes are equal.
        """
        names = sorted(node.name for node in self.graph.node)
        width = len(str(len(names)))
        new = {
            name: f"{'ABn'[sum(name > made for made in _MADE)]}{i:0{width}}"
            for i, name in enumerate(names)
        }
        for node in self.graph.node:
            node.name = new[node.name]
            for i, text in enumerate(node.input):
                node.input[i] = f"^{new[text[1:]]}" if text.startswith("^") else new[text]
            if node.op == "VarHandleOp":
                node.attr["shared_name"].s = node.name.encode()
            # (Of some operations it makes something else on a CPU.)
            node.device = node.device or CPU
        self.fetches = [new[name] for name in self.fetches]
        self.readers = [new[name] for name in self.readers]
        self._type_of = {new[n]: self._view.dtype(t) for t, n in self.fronts.items()}
        self.fronts = {tensor: new[name] for tensor, name in self.fronts.items()}
        self._inputs = {tensor: new[name] for tensor, name in self._inputs.items()}
        self._variables = {variable: new[name] for variable, name in self._variables.items()}
        handles = [node for node in self.graph.node if node.op == "VarHandleOp"]
        shapes = {tuple(d.size for d in h.attr["shape"].shape.dim) for h in handles} - {()}
        constants = [node for node in self.graph.node if node.op == "Const"]
        # (What a tensor is reshaped to is among the constants.)
        self._is_sized = (
            len(shapes) > 1
            or any(handle.attr["shape"].shape.unknown_rank for handle in handles)
            or any(size < 0 for shape in shapes for size in shape)
            or any(node.op in ("EnsureShape", "Reshape") for node in self.graph.node)
            or any(_elements(node) > 1 for node in constants)
        )
        if not self._is_sized:
            for handle in handles:
                for i, dim in enumerate(handle.attr["shape"].shape.dim):
                    dim.size = dim.size if dim.size == 1 else i + 2

    def _new(self, name: str) -> str:
        """A name that no node has."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def _add(self, node: Any) -> None:
        copy = self._copy_of[node.name] = self.graph.node.add()
        copy.CopyFrom(node)
        copy.device = self._device_of(node)
        copy.ClearField("experimental_debug_info")
        for key in [key for key in copy.attr if key.startswith("_")]:
            del copy.attr[key]
        del copy.input[:]
        tensors = data_inputs(node)
        if node.op in READS | ASSIGNS:
            variable = str(self._view.variable_of(node))
            inputs = [self._variable(variable, node)]
            inputs += [self._input(tensor, node.name) for tensor in tensors[1:]]
        else:
            inputs = [self._input(tensor, node.name) for tensor in tensors]
        copy.input.extend(inputs)
        before = [name for name in control_inputs(node) if name in self._inside]
        copy.input.extend(f"^{name}" for name in sorted(before))

    def _device_of(self, node: Any) -> str:
        """The device for a node; "" for where the cone is."""
        place = self._view.place_of(node)
        if place not in self._devices:
            self._devices[place] = f"{_ELSEWHERE}{len(self._devices) + 1}"
        return self._devices[place]

    def _input(self, tensor: str, reader: str) -> str:
        """What stands for a tensor."""
        if is_front(self._view, self._view.producer(source := same_as(self._view, tensor))):
            behind = self._view.producer(tensor)
            if behind is not None and behind.op == "IdentityN":
                self.has_front_behind = True
                tensor = source if self._through else tensor
        name = tensor.partition(":")[0]
        if name in self._inside:
            return name
        if is_front(self._view, self._view.producer(tensor)):
            if name not in self._front:
                self._front.add(name)
                self._taken.add(name)
                self._add(self._view.nodes[name])
                if not self._has_results and is_constant(self._view, tensor):
                    self._copy_of[name].device = OTHER_CPU  # (So is what Grappler makes of it.)
            if reader in self._inside:
                self.fronts[tensor] = name
            return name
        if tensor not in self._inputs:
            if is_small_constant(self._view, tensor):
                made = self.graph.node.add(name=self._new(name), op="Const")
                for key in ("dtype", "value"):
                    made.attr[key].CopyFrom(self._view.nodes[name].attr[key])
                made.device = self._device_of(self._view.nodes[name])
                if not self._has_results:
                    made.device = OTHER_CPU
            else:
                # (The shape of a placeholder would not be looked at.)
                source = self._source(tensor).partition(":")[0]
                made = self.graph.node.add(name=self._new(source), op=_READ)
                dtype = self._view.dtype(tensor)
                made.attr["dtype"].type = dtype
                made.input.append(self._handle("input", dtype, self._shapes.get(tensor)))
                producer = self._view.producer(tensor)
                made.device = "" if producer is None else self._device_of(producer)
            self._inputs[tensor] = made.name
        return self._inputs[tensor]

    def _source(self, tensor: str) -> str:
        """The tensor that one is the same as."""
        while (node := self._view.producer(tensor)) is not None and node.op in SAME:
            if node.op == "IdentityN":
                self.has_early_names = True
                if self._early:
                    break
            tensor = handed_on(node, tensor)
        return tensor

    def _variable(self, variable: str, user: Any) -> str:
        if variable not in self._variables:
            dtype, shape = user.attr["dtype"].type, self._shape_of(variable)
            name = variable.partition(":")[0]
            self._variables[variable] = self._handle(name, dtype, shape)
        return self._variables[variable]

    def _handle(self, name: str, dtype: int, shape: Shape | None) -> str:
        made = self.graph.node.add(name=self._new(name), op="VarHandleOp")
        made.attr["dtype"].type = dtype
        made.attr["shared_name"].s = made.name.encode()
        if shape is None:
            made.attr["shape"].shape.unknown_rank = True
        for size in shape or ():
            made.attr["shape"].shape.dim.add(size=size)
        made.attr["shape"].shape.SetInParent()
        return str(made.name)

    def _shape_of(self, variable: str) -> Shape | None:
        producer = self._view.producer(variable)
        if producer is not None and producer.op == "VarHandleOp":
            return tuple(dim.size for dim in producer.attr["shape"].shape.dim)
        return self._shapes[variable]

    def read_back(self, graph: Any, front: Any) -> Simple | None:
        """Makes a function of what the graph has become.

        Args:
          graph: with the cone.
          front: without it; None if there is nothing in front of it.

        Returns:
          The function; None if it reads what there will not be.
        """
        from tensorflow.core.framework import function_pb2

        function = function_pb2.FunctionDef()
        function.signature.name = "cone"
        nodes = {node.name: node for node in graph.node}
        inputs = {n: t for t, n in self._inputs.items() if n in nodes and nodes[n].op == _READ}
        variables = {name: variable for variable, name in self._variables.items()}
        inputs.update(self._cut(graph, front))
        order = in_order(graph, self.fetches, inputs)
        read = {text.partition(":")[0] for name in order for text in data_inputs(nodes[name])}
        if not self._can_read(read, inputs):
            return None
        inputs = {name: tensor for name, tensor in inputs.items() if name in read}
        for name in sorted({*inputs, *variables}):
            dtype = _RESOURCE if name in variables else self._view.dtype(inputs[name])
            function.signature.input_arg.add(name=name, type=dtype)

        def tensor_of(text: str) -> str:
            name = text.partition(":")[0]
            if name in inputs or name in variables:
                return name
            return f"{name}:{self._view.op_def(nodes[name].op).output_arg[0].name}:0"

        kept = [name for name in order if nodes[name].op not in ("NoOp", "VarHandleOp")]
        for name in kept:
            copy = function.node_def.add()
            copy.CopyFrom(nodes[name])
            copy.device = ""
            if copy.op == "Const" and not self._set_constant(copy):
                return None
            if copy.op == "Const" and self._is_moved(nodes[name]):
                return None
            del copy.input[:]
            copy.input.extend(tensor_of(text) for text in data_inputs(nodes[name]))
        view = GraphView(function, self._view.op_def)
        results = [f"{name}:output:0" for name in self.fetches[1:]]
        return Simple(view, kept, inputs, variables, results, self._outer_results)

    def _cut(self, graph: Any, front: Any) -> dict[str, str]:
        """The nodes that compute what a tensor of the front is without the cone; the tensors."""
        if front is None:
            return {}
        made = {node.name: node for node in front.node}
        of = Expressions(front)
        found: dict[object, str] = {}
        for tensor, name in sorted(self.fronts.items()):
            end = made[_front_fetch(name)]
            if end.op == "Identity":
                found[of.get(end.input[0])] = tensor
            elif end.op == "Const":
                self._constant_fronts.add(tensor)
        mine = Expressions(graph)
        cut = {}
        for node in graph.node:
            if node.op not in ("Const", "NoOp", *READS, *ASSIGNS):
                outer = found.get(mine.get(node.name))
                if outer is not None:
                    cut[str(node.name)] = outer
        return cut

    def _can_read(self, read: set[str], inputs: Mapping[str, str]) -> bool:
        """Whether all that a function reads is there, and no one else sees that it reads it."""
        tensors = {inputs[name] for name in read if name in inputs}
        for tensor in tensors:
            shape = self._shapes.get(tensor)
            elements = 1
            for size in shape or ():
                elements *= size
            if shape is None or elements not in (1, self._size):
                return False
        # Who reads the front, too, would be alone with it, and become something else.
        seen = {node.input[0] for node in self.graph.node if node.name in self.readers}
        known = tensors | self._constant_fronts
        return all(t in known for t, name in self.fronts.items() if name in seen)

    def _is_moved(self, constant: Any) -> bool:
        """Whether a constant may be where Grappler would not have it in a function without results.

        One that Grappler made of others is not on the device that has it stay.
        """
        return not self._has_results and constant.device != OTHER_CPU

    def _set_constant(self, node: Any) -> bool:
        """Makes a constant a scalar if its elements are one; whether the operation can read it."""
        from tensorflow.python.framework import tensor_util

        value = tensor_util.MakeNdarray(node.attr["value"].tensor)
        if value.size == 1:
            return True
        first = value.reshape(-1)[:1]
        if value.size and value.tobytes() == first.tobytes() * value.size:
            node.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(first.reshape(())))
            return True
        return self._is_sized and value.size == self._size


def _elements(constant: Any) -> int:
    elements = 1
    for dim in constant.attr["value"].tensor.tensor_shape.dim:
        elements *= dim.size
    return elements


def _front_fetch(name: str) -> str:
    return f"{name}_front"


def _producer() -> int:
    from tensorflow.python.framework import versions

    return int(versions.GRAPH_DEF_VERSION)
