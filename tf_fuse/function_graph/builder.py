# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Add nodes to a copy of a function."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import INT64
from tf_fuse.function_graph.view import GraphView, Use

Shape = tuple[int, ...]
Range = tuple[int, int]


class Builder:
    """A copy of a function that is being changed.

    Attributes:
      function: the copy.
      nodes: of it, by name.
      view: of the original function.
    """

    def __init__(self, view: GraphView, shapes: Mapping[str, Shape | None]):
        """Copy the function.

        Args:
          view: of the function.
          shapes: of its tensors, and, by argument, of its variables.
        """
        from tensorflow.core.framework import function_pb2

        self.view = view
        self._shapes = shapes
        self.function = function_pb2.FunctionDef()
        self.function.CopyFrom(view.function)
        self.nodes = {node.name: node for node in self.function.node_def}
        # The replacement of each replaced tensor, and the added nodes that read each tensor.
        self._replaced: dict[str, str] = {}
        self._uses: dict[str, list[Use]] = defaultdict(list)

    # --- Nodes -----------------------------------------------------------------------------------

    def add(self, name: str, op: str, inputs: Sequence[str], device: str, **types: int) -> Any:
        """Add a node; `types` are attributes that are types, by number."""
        if name in self.nodes:
            raise ValueError(f"{self.function.signature.name} has a node {name} already")
        node = self.function.node_def.add(name=name, op=op, device=device)
        node.input.extend(self._replaced.get(tensor, tensor) for tensor in inputs)
        for index, tensor in enumerate(inputs):
            self._uses[tensor].append(Use(name, index))
        for attribute, dtype in types.items():
            node.attr[attribute].type = dtype
        self.nodes[name] = node
        return node

    def constant(self, name: str, values: Any, device: str, dtype: int = INT64) -> str:
        """Return a constant's tensor."""
        import numpy as np
        from tensorflow.python.framework import dtypes, tensor_util

        node = self.add(name, "Const", [], device, dtype=dtype)
        array = np.asarray(values, dtypes.as_dtype(dtype).as_numpy_dtype)
        node.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(array))
        return f"{name}:output:0"

    def remove(self, name: str) -> None:
        """Remove a node that has no control successors."""
        node = self.nodes.pop(name)
        self.function.node_def.remove(node)
        # Removing moves the others.
        self.nodes = {node.name: node for node in self.function.node_def}

    def replace(self, tensor: str, by: str) -> None:
        """Redirect every consumer of `tensor` to `by`, except the node that produces `by`."""
        self._replaced[tensor] = by
        maker = by.partition(":")[0]
        for use in self.view.uses(tensor) + self._uses[tensor]:
            node = self.nodes.get(use.node)
            # (The input may have been changed already.)
            if (
                node is not None
                and use.node != maker
                and list(node.input[use.index : use.index + 1]) == [tensor]
            ):
                node.input[use.index] = by

    def now(self, tensor: str) -> str:
        """Return the tensor that replaces `tensor`, or `tensor` itself."""
        return self._replaced.get(tensor, tensor)

    def idle(self, name: str) -> None:
        """Turn a node into a NoOp that keeps its control edges and waits for its former inputs."""
        node = self.nodes[name]
        before = {tensor.lstrip("^").partition(":")[0] for tensor in node.input}
        before &= self.nodes.keys()  # (An argument is not a node.)
        device = node.device
        node.Clear()
        node.name, node.op, node.device = name, "NoOp", device
        node.input.extend(f"^{one}" for one in sorted(before))

    # --- Parts of tensors ------------------------------------------------------------------------

    def reshape(self, name: str, tensor: str, dtype: int, shape: Sequence[int], device: str) -> str:
        """Return a tensor in another shape."""
        wanted = self.constant(f"{name}/shape", list(shape), device)
        self.add(name, "Reshape", [tensor, wanted], device, T=dtype, Tshape=INT64)
        return f"{name}:output:0"

    def part(self, scope: str, tensor: str, dtype: int, range_: Range, device: str) -> str:
        """Add nodes that take a range of a tensor's elements, as a vector."""
        flat = self.reshape(f"{scope}/flat", tensor, dtype, [-1], device)
        return self.rows(scope, flat, dtype, range_, (range_[1],), device)

    def rows(
        self, scope: str, tensor: str, dtype: int, range_: Range, shape: Shape, device: str
    ) -> str:
        """Add nodes that take a range of rows; the first dimension of `shape` does not matter."""
        begin, end = range_
        rest = [0] * (len(shape) - 1)
        begins = self.constant(f"{scope}/begin", [begin, *rest], device)
        sizes = self.constant(f"{scope}/size", [end - begin, *shape[1:]], device)
        node = self.add(
            f"{scope}/part", "Slice", [tensor, begins, sizes], device, T=dtype, Index=INT64
        )
        return f"{node.name}:output:0"

    def padded(
        self, name: str, tensor: str, dtype: int, around: Range, rank: int, value: Any, device: str
    ) -> str:
        """Pad a tensor with rows of a value before and after it."""
        if around == (0, 0):
            return tensor
        rest = [[0, 0]] * (rank - 1)
        paddings = self.constant(f"{name}/around", [list(around), *rest], device)
        filler = self.constant(f"{name}/value", value, device, dtype)
        self.add(name, "PadV2", [tensor, paddings, filler], device, T=dtype, Tpaddings=INT64)
        return f"{name}:output:0"

    def own(
        self, scope: str, tensor: str, dtype: int, own: Range, range_: Range, device: str
    ) -> str:
        """Take this replica's own elements from a window."""
        if own == range_:
            return tensor
        begin = own[0] - range_[0]
        inner = (begin, begin + own[1] - own[0])
        return self.part(f"{scope}/own", tensor, dtype, inner, device)

    def sized(self, name: str, tensor: str, dtype: int, range_: Range, device: str) -> str:
        """Give a vector the static size of a range."""
        node = self.add(name, "EnsureShape", [tensor], device, T=dtype)
        node.attr["shape"].shape.dim.add(size=range_[1] - range_[0])
        return f"{name}:output:0"

    def broadcast_part(self, scope: str, tensor: str, to: Shape, range_: Range, device: str) -> str:
        """Take a range of the elements of a tensor after it is broadcast to a shape."""
        dtype, shape = self.dtype(tensor), self.shape(tensor)
        begin, end = range_
        row = math.prod(to[1:])
        rows = (begin // row, -(-end // row)) if end > begin else (0, 0)
        if len(shape) == len(to) and shape[0] == to[0]:
            tensor = self.rows(f"{scope}/rows", tensor, dtype, rows, shape, device)
        wanted = self.constant(f"{scope}/to", [rows[1] - rows[0], *to[1:]], device)
        node = self.add(
            f"{scope}/broadcast", "BroadcastTo", [tensor, wanted], device, T=dtype, Tidx=INT64
        )
        inner = (begin - rows[0] * row, end - rows[0] * row) if end > begin else (0, 0)
        return self.part(scope, f"{node.name}:output:0", dtype, inner, device)

    # --- Variables -------------------------------------------------------------------------------

    def variable(self, name: str, shared_name: str, range_: Range, dtype: int, device: str) -> str:
        """Add the handle of a variable that the function owns, a vector of a range's size."""
        handle = self.add(name, "VarHandleOp", [], device, dtype=dtype)
        handle.attr["shape"].shape.dim.add(size=range_[1] - range_[0])
        handle.attr["shared_name"].s = shared_name.encode()
        return f"{name}:resource:0"

    # --- The original function -------------------------------------------------------------------

    def dtype(self, tensor: str) -> int:
        """Return the number of the type of a tensor of the function."""
        producer = self.view.producer(tensor)
        if producer is None:
            index = self.view.arguments.index(tensor)
            return int(self.function.signature.input_arg[index].type)
        for argument in self.view.op_def(producer.op).output_arg:
            if argument.type_list_attr:
                types = producer.attr[argument.type_list_attr].list.type
                return int(types[self.view.output_index(tensor)])
            if tensor.split(":")[1] == argument.name:
                return int(
                    producer.attr[argument.type_attr].type if argument.type_attr else argument.type
                )
        raise ValueError(f"{producer.op} has no output {tensor}")

    def device(self, tensor: str) -> str:
        """Return where a tensor of the function is made; "" for an argument."""
        producer = self.view.producer(tensor)
        return "" if producer is None else str(producer.device)

    def shape(self, tensor: str) -> Shape:
        """Return the shape of a tensor of the function; the shapes of cut tensors are all known."""
        shape = self._shapes[tensor]
        assert shape is not None, tensor
        return shape
