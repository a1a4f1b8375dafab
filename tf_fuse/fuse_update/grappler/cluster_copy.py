# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Copy a fusion cluster and its producers to a graph of their own, for Grappler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import ASSIGNS, READS, GraphView, control_inputs, data_inputs
from tf_fuse.fuse_update.analysis.fusion_clusters import (
    FusionCluster,
    is_small_constant,
    results_of,
)
from tf_fuse.fuse_update.analysis.grappler_inputs import (
    SAME,
    handed_on,
    is_constant,
    is_front,
    same_as,
)
from tf_fuse.fuse_update.grappler.predict_common_subexpressions import CommonSubexpressions

_END = "end"
_READ = "ReadVariableOp"
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
OTHER_CPU = "/job:localhost/replica:0/task:0/device:CPU:1"
# The beginning of the names of all other devices.
_ELSEWHERE = "/job:localhost/replica:0/task:0/device:CPU:"
# Grappler's own nodes have names that begin with one of these.
_MADE = ("ArithmeticOptimizer", "ConstantFolding")


class ClusterCopy:
    """A graph with a cluster and its *front*: the elementwise operations that produce its inputs.

    Attributes:
      graph: the `GraphDef`.
      fetches: names of nodes that Grappler must keep.
      readers: names of nodes that stand for other consumers of the front; Grappler must keep them.
      fronts: the node of each tensor of the front that the cluster reads.
      inputs: the node of each input tensor.
      variables: the node of each variable's resource.
      outer_results: tensors of the cluster that other nodes of the function read.
      is_sized: whether Grappler's result may depend on the variables' sizes.
    """

    def __init__(
        self,
        view: GraphView,
        cluster: FusionCluster,
        shapes: Mapping[str, Shape | None],
        subexpressions: CommonSubexpressions,
        has_results: bool,
        early: bool = False,
        through: bool = False,
        alone: bool = False,
    ):
        """Copy a cluster.

        Args:
          view: of the function that it is of.
          cluster: whose tensors all have known shapes.
          shapes: of the function's tensors; below -1, sizes that are not known, by number.
          subexpressions: of the function.
          has_results: whether the program's call returns anything.
          early: whether an input from an IdentityN is named after the IdentityN.
          through: whether the front continues beyond an IdentityN.
          alone: whether to leave the front out.
        """
        from tensorflow.core.framework import graph_pb2

        self.graph = graph_pb2.GraphDef()
        self.graph.versions.producer = _producer()
        self.view, self.shapes, self.has_results = view, shapes, has_results
        self._early, self.has_early_names, self._alone = early, False, alone
        self._through, self.has_front_behind = through, False
        self.size = cluster.size
        self.fronts: dict[str, str] = {}
        self.readers: list[str] = []
        self._front: set[str] = set()
        self._copy_of: dict[str, Any] = {}
        #: Whether it is unknown if other nodes read the front.
        self.is_unclear = False
        self._inside = set(cluster.nodes)
        self._taken = set(cluster.nodes)
        # By device key, a device name of its own; "" for the cluster's device.
        self._devices = {view.device_of(view.nodes[cluster.nodes[-1]]): ""}
        self.inputs: dict[str, str] = {}
        self.variables: dict[str, str] = {}
        self._of_rows: dict[tuple[int, Shape], str] = {}
        self._read_as: dict[str, str] = {}
        self.outer_results = results_of(view, cluster)
        for name in cluster.nodes:
            self._add(view.nodes[name])
        end = self.graph.node.add(name=self._new(_END), op="NoOp")
        end.input.extend(f"^{n}" for n in cluster.nodes if view.nodes[n].op in ASSIGNS)
        self.fetches = [end.name]
        for tensor in self.outer_results:
            result = self.graph.node.add(name=self._new("result"), op="Identity")
            result.input.append(tensor.partition(":")[0])
            result.attr["T"].type = view.dtype(tensor)
            self.fetches.append(result.name)
        if not alone:
            self._add_readers(subexpressions)

    def _add_readers(self, subexpressions: CommonSubexpressions) -> None:
        """Add readers: Grappler changes fewer nodes if other nodes read them, too."""
        # (Outside, an equal node would have one consumer less without the cluster.)
        self.is_unclear = any(
            set(subexpressions.equal_to(name)) - self._inside for name in self._inside
        )
        there = self._inside | self._front
        for name in sorted(self._front):
            others = subexpressions.users(name, self._through) - there
            is_result = subexpressions.is_result(name)
            if others or is_result:
                is_read = others & subexpressions.sure or (
                    is_result and not subexpressions.is_inner
                )
                self.is_unclear = self.is_unclear or not is_read
                tensor = self.view.outputs(self.view.nodes[name])[0]
                self.readers.append(self._identity(name, tensor))

    def _identity(self, name: str, tensor: str) -> str:
        made = self.graph.node.add(name=self._new("reader"), op="Identity", input=[name])
        made.attr["T"].type = self.view.dtype(tensor)
        return str(made.name)

    def front_only(self) -> Any:
        """Return the graph without the cluster: Grappler does not look into our operation."""
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
            made = front.node.add(name=front_fetch(name), op="Identity", input=[name])
            made.attr["T"].type = self._type_of[name]
        return front

    def front_fetches(self) -> list[str]:
        """Return the names of nodes of `front_only` that Grappler must keep."""
        return [*map(front_fetch, sorted(set(self.fronts.values()))), *self.readers]

    def make_alike(self) -> None:
        """Rename nodes and sizes so that clusters that differ only in these become equal.

        Grappler's result depends on the order of names and on which shapes are equal.
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
            # (Grappler rewrites some operations on CPUs only.)
            node.device = node.device or CPU
        self.fetches = [new[name] for name in self.fetches]
        self.readers = [new[name] for name in self.readers]
        self._type_of = {new[n]: self.view.dtype(t) for t, n in self.fronts.items()}
        self.fronts = {tensor: new[name] for tensor, name in self.fronts.items()}
        self.inputs = {tensor: new[name] for tensor, name in self.inputs.items()}
        self.variables = {variable: new[name] for variable, name in self.variables.items()}
        handles = [node for node in self.graph.node if node.op == "VarHandleOp"]
        shapes = {tuple(d.size for d in h.attr["shape"].shape.dim) for h in handles} - {()}
        constants = [node for node in self.graph.node if node.op == "Const"]
        # (What a tensor is reshaped to is among the constants.)
        self.is_sized = (
            len(shapes) > 1
            or any(handle.attr["shape"].shape.unknown_rank for handle in handles)
            or any(size < 0 for shape in shapes for size in shape)
            or any(node.op in ("EnsureShape", "Reshape") for node in self.graph.node)
            or any(_elements(node) > 1 for node in constants)
        )
        if not self.is_sized:
            for handle in handles:
                for i, dim in enumerate(handle.attr["shape"].shape.dim):
                    dim.size = dim.size if dim.size == 1 else i + 2

    def _new(self, name: str) -> str:
        """Return a new, unique name."""
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
            variable = str(self.view.variable_of(node))
            inputs = [self._variable(variable, node)]
            inputs += [self._input(tensor, node.name) for tensor in tensors[1:]]
        else:
            inputs = [self._input(tensor, node.name) for tensor in tensors]
        copy.input.extend(inputs)
        before = [name for name in control_inputs(node) if name in self._inside]
        copy.input.extend(f"^{name}" for name in sorted(before))

    def _device_of(self, node: Any) -> str:
        """Return the device for a node; "" for the cluster's device."""
        place = self.view.device_of(node)
        if place not in self._devices:
            self._devices[place] = f"{_ELSEWHERE}{len(self._devices) + 1}"
        return self._devices[place]

    def _input(self, tensor: str, reader: str) -> str:
        """Return the input that stands for a tensor."""
        name = tensor.partition(":")[0]
        if name in self._inside:
            return name
        if (read := self._read_behind(tensor)) is not None:
            # (Not the read itself: another cluster may contain it, and return its Identity.)
            return self._outside(self._read_as.setdefault(read, tensor))
        if self._is_front(source := same_as(self.view, tensor)):
            behind = self.view.producer(tensor)
            if behind is not None and behind.op == "IdentityN":
                self.has_front_behind = True
                tensor = source if self._through else tensor
        name = tensor.partition(":")[0]
        if name in self._inside:
            return name
        if self._is_front(tensor):
            if name not in self._front:
                self._front.add(name)
                self._taken.add(name)
                self._add(self.view.nodes[name])
                if not self.has_results and is_constant(self.view, tensor):
                    self._copy_of[name].device = OTHER_CPU  # (Folded constants keep the device.)
            if reader in self._inside:
                self.fronts[tensor] = name
            return name
        return self._outside(tensor)

    def _outside(self, tensor: str) -> str:
        """Return the input that stands for a tensor that neither cluster nor front produce."""
        name = tensor.partition(":")[0]
        if tensor not in self.inputs:
            if is_small_constant(self.view, tensor):
                made = self.graph.node.add(name=self._new(name), op="Const")
                for key in ("dtype", "value"):
                    made.attr[key].CopyFrom(self.view.nodes[name].attr[key])
                made.device = self._device_of(self.view.nodes[name])
                if not self.has_results:
                    made.device = OTHER_CPU
            else:
                # (Grappler ignores the shape of a placeholder.)
                source = self._source(tensor).partition(":")[0]
                made = self.graph.node.add(name=self._new(source), op=_READ)
                dtype = self.view.dtype(tensor)
                made.attr["dtype"].type = dtype
                made.input.append(self._handle_of_input(dtype, self.shapes.get(tensor)))
                producer = self.view.producer(tensor)
                made.device = "" if producer is None else self._device_of(producer)
            self.inputs[tensor] = made.name
        return self.inputs[tensor]

    def _read_behind(self, tensor: str) -> str | None:
        """Return what a read returns if a tensor is a copy of that, else None."""
        # (It is unknown when Grappler removes an IdentityN.)
        forwards = SAME - {"IdentityN"}
        while (node := self.view.producer(tensor)) is not None and node.op in forwards:
            tensor = data_inputs(node)[0]
        return tensor if node is not None and node.op in READS else None

    def _is_front(self, tensor: str) -> bool:
        return not self._alone and is_front(self.view, self.view.producer(tensor))

    def _source(self, tensor: str) -> str:
        """Return the source of a tensor, looking through nodes that forward it."""
        while (node := self.view.producer(tensor)) is not None and node.op in SAME:
            if node.op == "IdentityN":
                self.has_early_names = True
                if self._early:
                    break
            tensor = handed_on(node, tensor)
        return tensor

    def _variable(self, variable: str, user: Any) -> str:
        if variable not in self.variables:
            dtype, shape = user.attr["dtype"].type, self._shape_of(variable)
            name = variable.partition(":")[0]
            self.variables[variable] = self._handle(name, dtype, shape)
        return self.variables[variable]

    def _handle_of_input(self, dtype: int, shape: Shape | None) -> str:
        """Return the handle of an input; tensors with the same unknown number of rows share one."""
        if shape is None or min(shape, default=0) >= -1:
            return self._handle("input", dtype, shape)
        if (dtype, shape) not in self._of_rows:
            self._of_rows[dtype, shape] = self._handle("input", dtype, shape)
        return self._of_rows[dtype, shape]

    def _handle(self, name: str, dtype: int, shape: Shape | None) -> str:
        made = self.graph.node.add(name=self._new(name), op="VarHandleOp")
        made.attr["dtype"].type = dtype
        made.attr["shared_name"].s = made.name.encode()
        if shape is None:
            made.attr["shape"].shape.unknown_rank = True
        for size in shape or ():
            made.attr["shape"].shape.dim.add(size=max(size, -1))
        made.attr["shape"].shape.SetInParent()
        return str(made.name)

    def _shape_of(self, variable: str) -> Shape | None:
        producer = self.view.producer(variable)
        if producer is not None and producer.op == "VarHandleOp":
            return tuple(dim.size for dim in producer.attr["shape"].shape.dim)
        return self.shapes[variable]


def _elements(constant: Any) -> int:
    elements = 1
    for dim in constant.attr["value"].tensor.tensor_shape.dim:
        elements *= dim.size
    return elements


def front_fetch(name: str) -> str:
    """Return the name of the node that keeps a node of the front alive."""
    return f"{name}_front"


def _producer() -> int:
    from tensorflow.python.framework import versions

    return int(versions.GRAPH_DEF_VERSION)
