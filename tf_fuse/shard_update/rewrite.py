# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes the function in which a replica updates its part of the weights.

Section 4.2 of Xu et al. (2020). The all-reduce of a pack becomes a reduce-scatter; the families'
nodes stay, with the same names, and compute vectors of this replica's elements; slots are read from
and assigned to variables that have no more elements than that; new weights are gathered from all
replicas and assigned. What is left alone gets its whole gradient by the same gather.

Nodes that wait for others, by name, wait for the same ones as before.

Vectorized kernels compute a tensor's last elements, which do not fill a vector register, by other
instructions than the rest, and some functions (a reciprocal square root) then differ in the last
bit. So what is computed is a `window`: as many elements more than the replica's own ones, zeros of
the gradient, as it takes for each element to be computed as it is in the whole tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse.shard_update.clusters import Family, Pack, Shape, depends_on, imports
from tf_fuse.shard_update.graph_view import READS, GraphView, control_inputs, data_inputs

SCOPE = "tf_fuse_shard"
_INT64 = 9  # DT_INT64
# A multiple of what fills a vector register, of any type.
_REGISTER = 64
_OP_OF_ASSIGN = {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}


@dataclass(frozen=True)
class Slot:
    """A variable of which this replica has its part.

    Attributes:
      argument: of the function: the handle of the whole variable.
      shared_name: of the variable that has the part.
      begin: first element of the window that the part holds.
      end: the one behind the last.
      own: the elements of it that are this replica's; the others mean nothing.
      shape: of the whole.
      dtype: number of the type.
      owns: as `own`, of each replica.
    """

    argument: str
    shared_name: str
    begin: int
    end: int
    own: tuple[int, int]
    shape: Shape
    dtype: int
    owns: tuple[tuple[int, int], ...] = ()


def window(own: tuple[int, int], size: int) -> tuple[int, int]:
    """The elements to compute so that each of a replica's own ones is computed as in the whole.

    Args:
      own: first element, and the one behind the last.
      size: of the tensor.

    Returns:
      A range around it, as `own`; nothing around nothing.
    """
    begin, end = own
    if begin == end:
        return own
    return begin // _REGISTER * _REGISTER, min(-(-end // _REGISTER) * _REGISTER, size)


def is_sharded(pack: Pack) -> bool:
    """Whether anything of a pack can be cut."""
    return pack.reason is None and any(family.reason is None for family in pack.families)


def waits_for_itself(view: GraphView, pack: Pack) -> str | None:
    """A family whose cut nodes wait for what comes by the gather.

    Whole gradients come by the gather that also has the new weights, and it waits for all slots, so
    nothing in front of it may need them.
    """
    cut = [family for family in pack.families if family.reason is None]
    origins = {
        use.node
        for family in pack.families
        if family.reason is not None
        for use in view.uses(family.root)
    }
    sinks = {family.root: slot_sinks(view, family) for family in cut}
    origins |= {sink for family in cut for sink in family.sinks if sink not in sinks[family.root]}
    for family in cut:
        outside = {
            tensor
            for name in [*sorted(family.nodes), *sinks[family.root]]
            for tensor in view.nodes[name].input
            if tensor not in family.members
        }
        if depends_on(view, outside, origins):
            return family.root
    return None


def slot_sinks(view: GraphView, family: Family) -> list[str]:
    """The assignments of a family that are of slots."""
    return [
        sink for sink in family.sinks if view.variable_of(view.nodes[sink]) in set(family.slots)
    ]


class Rewriter:
    """Changes a copy of a function, pack by pack.

    Attributes:
      function: the copy.
      slots: variables that have parts from now on.
    """

    def __init__(self, view: GraphView, shapes: Mapping[str, Shape | None], prefix: str):
        """Starts with the function as it is.

        Args:
          view: of the function.
          shapes: of its tensors, and, by argument, of its variables.
          prefix: of the shared names of the parts.
        """
        from tensorflow.core.framework import function_pb2

        self._view = view
        self._shapes = shapes
        self._prefix = prefix
        self.function = function_pb2.FunctionDef()
        self.function.CopyFrom(view.function)
        self._nodes = {node.name: node for node in self.function.node_def}
        self.slots: list[Slot] = []

    def shard(self, pack: Pack, rank: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Rewrites one pack.

        Args:
          pack: of the function; `is_sharded`, and does not wait for itself.
          rank: of this replica.
          ranges: of each part of the pack, the first element that is this replica's, and the one
            behind the last.
        """
        whole = self._view.nodes[pack.node]
        self._reduce_scatter(pack, whole, rank)
        gathered, shapes = [], []
        for index, family in enumerate(pack.families):
            part = f"{pack.node}:shards:{index}"
            shape: Shape = (family.size,)
            if family.reason is None:
                scope = f"{pack.node}/{SCOPE}_{index}"
                own = ranges[index]
                self._replace(family.root, self._padded(scope, whole, part, family, own))
                self._cut(scope, family, own)
                if family.weights:
                    shape = self._shape(family.weights[0])
                    part = self._new_weight(scope, family, own)
            gathered.append(part)
            shapes.append(shape)
        outputs = self._gather(pack, whole, gathered, shapes)
        for family, output in zip(pack.families, outputs, strict=True):
            if family.reason is not None:
                self._replace(family.root, output)
            elif family.weights:
                self._assign_weight(family, output)

    def _reduce_scatter(self, pack: Pack, whole: Any, rank: int) -> None:
        """Puts it in the place of the all-reduce. What packs and unpacks goes."""
        (reduced,) = self._view.outputs(whole)
        for use in self._view.uses(reduced):
            if self._view.nodes[use.node].op == "SplitV":
                self._remove(use.node)
        packed = data_inputs(whole)[0]
        if pack.parts != [packed]:
            self._remove(packed.partition(":")[0])
        node = self._nodes[pack.node]
        group = data_inputs(whole)[1:4]
        node.Clear()
        self._collective(node, "TfFuse>ReduceScatter", whole, [*pack.parts, *group])
        node.name = pack.node
        node.input.extend(f"^{before}" for before in control_inputs(whole))
        node.attr["N"].i = len(pack.parts)
        node.attr["rank"].i = rank

    def _padded(
        self, scope: str, whole: Any, part: str, family: Family, own: tuple[int, int]
    ) -> str:
        """The window of a gradient, with zeros around what is this replica's."""
        begin, end = window(own, family.size)
        if (begin, end) == own:
            return part
        around = self._constant(f"{scope}/around", [[own[0] - begin, end - own[1]]], whole.device)
        node = self._add(f"{scope}/window", "Pad", [part, around], whole.device)
        node.attr["T"].type = whole.attr["T"].type
        node.attr["Tpaddings"].type = _INT64
        return f"{node.name}:output:0"

    def _cut(self, scope: str, family: Family, own: tuple[int, int]) -> None:
        """Has the nodes of a family compute this replica's window."""
        range_ = window(own, family.size)
        for variable in family.slots:
            self._hold(variable, range_, own)
        cut = {
            tensor: self._slice(f"{scope}/{number}", tensor, range_)
            for number, (tensor, variable) in enumerate(sorted(imports(self._view, family).items()))
            if variable not in family.slots and self._shape(tensor) != ()
        }
        for name in sorted(family.nodes):
            node = self._nodes[name]
            node.attr.pop("_output_shapes", None)
            if node.op == "Reshape":
                _make_identity(node)
            elif node.op != "IdentityN":
                for position, tensor in enumerate(node.input):
                    node.input[position] = cut.get(tensor, tensor)

    def _hold(self, variable: str, range_: tuple[int, int], own: tuple[int, int]) -> None:
        """Has a slot's reads and assignments go to the variable of this replica's part."""
        users = [self._view.nodes[use.node] for use in self._view.uses(variable)]
        read = next(node for node in users if node.op in READS)
        dtype = read.attr["dtype"].type
        name = f"{self._prefix}{len(self.slots)}"
        slot = Slot(variable, name, *range_, own, self._shape(variable), dtype)
        self.slots.append(slot)
        handle = self._add(f"{SCOPE}/{variable}", "VarHandleOp", [], read.device)
        handle.attr["dtype"].type = dtype
        handle.attr["shape"].shape.dim.add(size=slot.end - slot.begin)
        handle.attr["shared_name"].s = slot.shared_name.encode()
        for user in users:
            node = self._nodes[user.name]
            node.attr.pop("_output_shapes", None)
            for position, tensor in enumerate(node.input):
                if tensor == variable:
                    node.input[position] = f"{handle.name}:resource:0"

    def _slice(self, scope: str, tensor: str, range_: tuple[int, int]) -> str:
        """Some elements of a whole tensor of the function."""
        producer = self._view.producer(tensor)
        device = "" if producer is None else producer.device
        return self._slice_of(scope, tensor, self._view.dtype(tensor), range_, device)

    def _slice_of(
        self, scope: str, tensor: str, dtype: int, range_: tuple[int, int], device: str
    ) -> str:
        begin, end = range_
        everything = self._constant(f"{scope}/shape", [-1], device)
        flat = self._add(f"{scope}/flat", "Reshape", [tensor, everything], device)
        flat.attr["T"].type = dtype
        flat.attr["Tshape"].type = _INT64
        begins = self._constant(f"{scope}/begin", [begin], device)
        sizes = self._constant(f"{scope}/size", [end - begin], device)
        part = self._add(f"{scope}/part", "Slice", [f"{flat.name}:output:0", begins, sizes], device)
        part.attr["T"].type = dtype
        part.attr["Index"].type = _INT64
        return f"{part.name}:output:0"

    def _new_weight(self, scope: str, family: Family, own: tuple[int, int]) -> str:
        """This replica's part of the weight that is assigned."""
        sink = self._sink(family)
        value: str = sink.input[1]
        op = _OP_OF_ASSIGN.get(sink.op)
        range_ = window(own, family.size)
        if op is None:
            return self._own(scope, value, sink, own, range_)
        # As it is when the assignment runs.
        before = [f"^{name}" for name in control_inputs(sink)]
        read = self._add(f"{scope}/weight", "ReadVariableOp", [sink.input[0], *before], sink.device)
        dtype = sink.attr["dtype"].type
        read.attr["dtype"].type = dtype
        old = self._slice_of(f"{scope}/old", f"{read.name}:value:0", dtype, range_, sink.device)
        new = self._add(f"{scope}/new", op, [old, value], sink.device)
        new.attr["T"].type = dtype
        return self._own(scope, f"{new.name}:z:0", sink, own, range_)

    def _own(
        self, scope: str, tensor: str, sink: Any, own: tuple[int, int], range_: tuple[int, int]
    ) -> str:
        """This replica's own elements of a window."""
        if own == range_:
            return tensor
        dtype = sink.attr["dtype"].type
        begin = own[0] - range_[0]
        inner = (begin, begin + own[1] - own[0])
        return self._slice_of(f"{scope}/own", tensor, dtype, inner, sink.device)

    def _assign_weight(self, family: Family, value: str) -> None:
        sink = self._sink(family)
        sink.op = "AssignVariableOp"
        sink.input[1] = value
        sink.attr.pop("_output_shapes", None)

    def _sink(self, family: Family) -> Any:
        """The assignment of a family's weight."""
        for name in family.sinks:
            if self._view.variable_of(self._view.nodes[name]) == family.weights[0]:
                return self._nodes[name]
        raise AssertionError(f"{family.weights[0]} is not assigned")

    def _gather(
        self, pack: Pack, whole: Any, parts: Sequence[str], shapes: Sequence[Shape]
    ) -> list[str]:
        scope = f"{pack.node}/{SCOPE}_gather"
        wanted = [
            self._constant(f"{scope}/shape_{i}", list(shape), whole.device)
            for i, shape in enumerate(shapes)
        ]
        node = self._add(scope, "", [], whole.device)
        group = data_inputs(whole)[1:4]
        self._collective(node, "TfFuse>AllGather", whole, [*parts, *wanted, *group])
        node.attr["N"].i = len(parts)
        # A replica that has the new weights knows that all others have written their slots.
        written = {
            sink
            for family in pack.families
            if family.reason is None
            for sink in slot_sinks(self._view, family)
        }
        node.input.extend(f"^{sink}" for sink in sorted(written))
        return [f"{scope}:outputs:{i}" for i in range(len(parts))]

    # --- Nodes -----------------------------------------------------------------------------------

    def _collective(self, node: Any, op: str, whole: Any, inputs: Sequence[str]) -> None:
        node.op, node.device = op, whole.device
        node.input.extend(inputs)
        node.attr["T"].type = whole.attr["T"].type
        node.attr["packed"].b = True
        node.attr["timeout_seconds"].f = whole.attr["timeout_seconds"].f

    def _add(self, name: str, op: str, inputs: Sequence[str], device: str) -> Any:
        if name in self._nodes:
            raise ValueError(f"{self.function.signature.name} has a node {name} already")
        node = self.function.node_def.add(name=name, op=op, device=device)
        node.input.extend(inputs)
        self._nodes[name] = node
        return node

    def _constant(self, name: str, values: Any, device: str) -> str:
        import numpy as np
        from tensorflow.python.framework import tensor_util

        node = self._add(name, "Const", [], device)
        node.attr["dtype"].type = _INT64
        proto = tensor_util.make_tensor_proto(np.asarray(values, np.int64))
        node.attr["value"].tensor.CopyFrom(proto)
        return f"{name}:output:0"

    def _remove(self, name: str) -> None:
        node = self._nodes.pop(name)
        self.function.node_def.remove(node)
        # Removing moves the others.
        self._nodes = {node.name: node for node in self.function.node_def}

    def _replace(self, tensor: str, by: str) -> None:
        for use in self._view.uses(tensor):
            self._nodes[use.node].input[use.index] = by

    def _shape(self, tensor: str) -> Shape:
        shape = self._shapes[tensor]
        assert shape is not None, tensor  # Of what is cut, all are known.
        return shape


def _make_identity(node: Any) -> None:
    node.op = "Identity"
    del node.input[1]
    node.attr.pop("Tshape", None)
