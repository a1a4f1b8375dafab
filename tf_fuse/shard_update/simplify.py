# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes of a cone what TensorFlow's graph optimizer, Grappler, would make of it.

Grappler changes arithmetic when a function is first run: a division by a square root becomes a
product with `Rsqrt`, factors change places. The last bits change with it. It does not look into an
operation of ours, so what is in there has to be simplified before, by the same optimizer.

It sorts factors by the names of nodes, too. So nodes keep theirs, and what stands for a tensor from
outside has the name of the node that Grappler would find there. In a function that returns nothing
it leaves constants where they are in a chain of sums or products; they are on a device of their own
here then, which has it leave them, too.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.cones import Cone, is_small_constant
from tf_fuse.shard_update.graph_view import (
    ASSIGNS,
    READS,
    GraphView,
    control_inputs,
    data_inputs,
)
from tf_fuse.shard_update.outline import results_of

_END = "end"
_READ = "ReadVariableOp"
_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
_RESOURCE = 20  # DT_RESOURCE


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


def simplify(
    view: GraphView, cone: Cone, shapes: Mapping[str, Shape | None], config: Any
) -> Simple:
    """Makes a function of a cone, as Grappler leaves it.

    Args:
      view: of the function that it is of.
      cone: whose tensors all have known shapes.
      shapes: of the function's tensors.
      config: the `ConfigProto` with which the function is called.

    Returns:
      The function. Constants are nodes of it.
    """
    copy = _Copy(view, cone, shapes)
    copy.make_alike()
    graph = copy.graph.SerializeToString(deterministic=True)
    options = config.graph_options.SerializeToString(deterministic=True)
    return copy.read_back(_optimize(graph, tuple(copy.fetches), options))


# Weights of one layer after another have the same cone, but for names and sizes.
@functools.lru_cache(maxsize=256)
def _optimize(graph: bytes, fetches: tuple[str, ...], graph_options: bytes) -> Any:
    """Runs Grappler.

    Args:
      graph: a serialized `GraphDef`.
      fetches: names of nodes that have to stay.
      graph_options: serialized `GraphOptions`.

    Returns:
      The new `GraphDef`.
    """
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
    from tensorflow.python.grappler import cluster, tf_optimizer

    wanted = config_pb2.ConfigProto()
    wanted.graph_options.ParseFromString(graph_options)
    options = wanted.graph_options.rewrite_options
    # Ours are for whole programs. The graph is small, but what it is a part of is not.
    del options.custom_optimizers[:]
    options.min_graph_nodes = -1
    # (It would look at the number of nodes again.)
    options.meta_optimizer_iterations = (
        options.meta_optimizer_iterations or rewriter_config_pb2.RewriterConfig.TWO
    )
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.ParseFromString(graph)
    meta.collection_def["train_op"].node_list.value.extend(fetches)
    machine = cluster.Cluster(devices=[_cpu()])
    try:
        return tf_optimizer.OptimizeGraph(wanted, meta, verbose=False, cluster=machine)
    finally:
        machine.Shutdown()


def _cpu() -> Any:
    from tensorflow.core.protobuf import device_properties_pb2

    properties = device_properties_pb2.DeviceProperties(type="CPU", num_cores=1, frequency=1000)
    return device_properties_pb2.NamedDevice(name=_CPU, properties=properties)


class _Copy:
    """A cone as a graph.

    Attributes:
      graph: the `GraphDef`.
      fetches: names of nodes that have to stay.
    """

    def __init__(self, view: GraphView, cone: Cone, shapes: Mapping[str, Shape | None]):
        from tensorflow.core.framework import graph_pb2

        self.graph = graph_pb2.GraphDef()
        self.graph.versions.producer = _producer()
        self._view, self._shapes = view, shapes
        self._inside = set(cone.nodes)
        self._taken = set(cone.nodes)
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

    def make_alike(self) -> None:
        """Gives nodes and sizes names and numbers that alike cones have in common.

        What Grappler makes of it depends on the order of names, and on which shapes are equal.
        """
        names = sorted(node.name for node in self.graph.node)
        width = len(str(len(names)))
        new = {name: f"n{i:0{width}}" for i, name in enumerate(names)}
        for node in self.graph.node:
            node.name = new[node.name]
            for i, text in enumerate(node.input):
                node.input[i] = f"^{new[text[1:]]}" if text.startswith("^") else new[text]
            if node.op == "VarHandleOp":
                node.attr["shared_name"].s = node.name.encode()
        self.fetches = [new[name] for name in self.fetches]
        self._inputs = {tensor: new[name] for tensor, name in self._inputs.items()}
        self._variables = {variable: new[name] for variable, name in self._variables.items()}
        handles = [node for node in self.graph.node if node.op == "VarHandleOp"]
        shapes = {tuple(d.size for d in h.attr["shape"].shape.dim) for h in handles} - {()}
        # (What a tensor is reshaped to is among the constants.)
        if len(shapes) == 1 and all(node.op != "Reshape" for node in self.graph.node):
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
        copy = self.graph.node.add()
        copy.CopyFrom(node)
        copy.device = ""
        copy.ClearField("experimental_debug_info")
        for key in [key for key in copy.attr if key.startswith("_")]:
            del copy.attr[key]
        del copy.input[:]
        tensors = data_inputs(node)
        if node.op in READS | ASSIGNS:
            variable = str(self._view.variable_of(node))
            inputs = [self._variable(variable, node), *map(self._input, tensors[1:])]
        else:
            inputs = [self._input(tensor) for tensor in tensors]
        copy.input.extend(inputs)
        before = [name for name in control_inputs(node) if name in self._inside]
        copy.input.extend(f"^{name}" for name in sorted(before))

    def _input(self, tensor: str) -> str:
        """What stands for a tensor."""
        name = tensor.partition(":")[0]
        if name in self._inside:
            return name
        if tensor not in self._inputs:
            if is_small_constant(self._view, tensor):
                made = self.graph.node.add(name=self._new(name), op="Const")
                for key in ("dtype", "value"):
                    made.attr[key].CopyFrom(self._view.nodes[name].attr[key])
                if not self._view.results:
                    made.device = _CPU
            else:
                # (The shape of a placeholder would not be looked at.)
                source = self._source(tensor).partition(":")[0]
                made = self.graph.node.add(name=self._new(source), op=_READ)
                dtype = self._view.dtype(tensor)
                made.attr["dtype"].type = dtype
                made.input.append(self._handle("input", dtype, self._shapes[tensor]))
            self._inputs[tensor] = made.name
        return self._inputs[tensor]

    def _source(self, tensor: str) -> str:
        """The tensor that one is the same as."""
        while (node := self._view.producer(tensor)) is not None:
            if node.op not in ("Identity", "IdentityN", "StopGradient"):
                break
            tensor = data_inputs(node)[int(tensor.rpartition(":")[2])]
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
        for size in shape or ():
            made.attr["shape"].shape.dim.add(size=size)
        made.attr["shape"].shape.SetInParent()
        return str(made.name)

    def _shape_of(self, variable: str) -> Shape | None:
        producer = self._view.producer(variable)
        if producer is not None and producer.op == "VarHandleOp":
            return tuple(dim.size for dim in producer.attr["shape"].shape.dim)
        return self._shapes[variable]

    def read_back(self, graph: Any) -> Simple:
        """Makes a function of what the graph has become."""
        from tensorflow.core.framework import function_pb2

        function = function_pb2.FunctionDef()
        function.signature.name = "cone"
        nodes = {node.name: node for node in graph.node}
        inputs = {n: t for t, n in self._inputs.items() if n in nodes and nodes[n].op == _READ}
        variables = {name: variable for variable, name in self._variables.items()}
        for name in sorted({*inputs, *variables}):
            dtype = _RESOURCE if name in variables else nodes[name].attr["dtype"].type
            function.signature.input_arg.add(name=name, type=dtype)

        def tensor_of(text: str) -> str:
            name = text.partition(":")[0]
            if name in inputs or name in variables:
                return name
            return f"{name}:{self._view.op_def(nodes[name].op).output_arg[0].name}:0"

        order = []
        for node in _in_order(graph):
            if node.op in ("NoOp", "VarHandleOp") or node.name in inputs:
                continue
            copy = function.node_def.add()
            copy.CopyFrom(node)
            copy.device = ""
            del copy.input[:]
            copy.input.extend(tensor_of(text) for text in data_inputs(node))
            order.append(node.name)
        view = GraphView(function, self._view.op_def)
        results = [f"{name}:output:0" for name in self.fetches[1:]]
        return Simple(view, order, inputs, variables, results, self._outer_results)


def _in_order(graph: Any) -> list[Any]:
    """The nodes, each behind those that it reads or waits for."""
    nodes = {node.name: node for node in graph.node}
    done: dict[str, Any] = {}
    waiting = [(name, False) for name in sorted(nodes, reverse=True)]
    while waiting:
        name, is_ready = waiting.pop()
        if name in done:
            continue
        if is_ready:
            done[name] = nodes[name]
            continue
        waiting.append((name, True))
        before = {text.lstrip("^").partition(":")[0] for text in nodes[name].input}
        waiting.extend((one, False) for one in sorted(before) if one not in done)
    return list(done.values())


def _producer() -> int:
    from tensorflow.python.framework import versions

    return int(versions.GRAPH_DEF_VERSION)
