# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Has the nodes of a family compute the window of a tensor that is a replica's own part.

They stay, with the same names. Slots are read from and assigned to variables that have no more
elements than the window.
"""

from __future__ import annotations

import math
from typing import Any

from tf_fuse.shard_update.builder import Builder, Range, Shape
from tf_fuse.shard_update.families import Family, Pack
from tf_fuse.shard_update.graph_view import READS, control_inputs, data_inputs
from tf_fuse.shard_update.ops import RESOURCE_APPLY, SAME_ELEMENTS, type_of
from tf_fuse.shard_update.slot import Slot, window

# Beginning of the names of what is added.
SCOPE = "tf_fuse_shard"


class Cutter:
    """Cuts families of a function.

    Attributes:
      slots: variables that have parts from now on.
    """

    def __init__(self, builder: Builder, prefix: str, first: int):
        """Takes the function.

        Args:
          builder: of the copy that is changed.
          prefix: of the shared names of the parts.
          first: number of the first part.
        """
        self._builder, self._prefix, self._first = builder, prefix, first
        self.slots: list[Slot] = []
        # By variable that has a part, the handle of that.
        self._handles: dict[str, str] = {}

    def cut(self, pack: Pack, index: int, own: Range) -> None:
        """Has the nodes of a family compute this replica's window."""
        family, scope = pack.families[index], scope_of(pack, index)
        whole = pack.reduce
        part = f"{pack.node}:shards:{index}"
        range_ = window(own, family.size)
        dtype = whole.attr["T"].type
        if family.root in self._builder.view.arguments:
            part = family.root  # A branch gets the window.
        else:
            # Zeros are around what is this replica's.
            around = (own[0] - range_[0], range_[1] - own[1])
            part = self._builder.padded(f"{scope}/window", part, dtype, around, 1, 0, whole.device)
        # Grappler reorders products by what it knows of their shapes.
        sized = self._builder.sized(f"{scope}/sized", part, dtype, range_, whole.device)
        self._builder.replace(family.root, sized)
        self._cut_nodes(scope, family, range_, own)

    def read_part(self, name: str, family: Family) -> str:
        """The window of a weight that has a part, as it is before the update."""
        if name not in self._builder.nodes:
            sink = self._builder.nodes[family.chain[0]]
            handle = self._handles[family.weights[0]]
            self._builder.add(name, "ReadVariableOp", [handle], sink.device, dtype=type_of(sink))
            sink.input.append(f"^{name}")
        return f"{name}:value:0"

    def _cut_nodes(self, scope: str, family: Family, range_: Range, own: Range) -> None:
        for variable in family.held:
            self._hold(variable, range_, own, variable in family.weights)
        cut: dict[tuple[str, Shape], str] = {}
        for name in sorted(family.nodes):
            self._cut_node(scope, family, name, range_, cut)
        for name in sorted(family.sinks):
            old, node = self._builder.view.nodes[name], self._builder.nodes[name]
            if node.op not in RESOURCE_APPLY and self._is_whole(family, node, old, 1):
                shape = self._builder.shape(old.input[1])
                node.input[1] = self._cut_input(scope, family, old.input[1], shape, range_, cut)

    def _cut_node(
        self, scope: str, family: Family, name: str, range_: Range, cut: dict[Any, str]
    ) -> None:
        old, node = self._builder.view.nodes[name], self._builder.nodes[name]
        node.attr.pop("_output_shapes", None)
        if node.op in SAME_ELEMENTS:
            if self._is_whole(family, node, old, 0):
                shape = self._builder.shape(old.input[0])
                node.input[0] = self._cut_input(scope, family, old.input[0], shape, range_, cut)
            _make_identity(node)
            if data_inputs(old)[0] == family.root:
                # Grappler would drop an identity, and then see another name: it has products of
                # tensors of the same size in an order that depends on their names.
                _make_sized(node, range_)
        else:
            shape = self._builder.shape(self._builder.view.outputs(old)[0])
            for position, tensor in enumerate(data_inputs(old)):
                if self._is_whole(family, node, old, position):
                    new = self._cut_input(scope, family, tensor, shape, range_, cut)
                    node.input[position] = new

    def _is_whole(self, family: Family, node: Any, old: Any, position: int) -> bool:
        """Whether a node reads a tensor that is no member as it read it in the function."""
        tensor = old.input[position]
        return tensor not in family.members and node.input[position] == self._builder.now(tensor)

    def _cut_input(
        self,
        scope: str,
        family: Family,
        tensor: str,
        shape: Shape,
        range_: Range,
        cut: dict[Any, str],
    ) -> str:
        """The window of a tensor, broadcast to a shape; a tensor of one element as it is."""
        if tensor in family.members:
            return tensor
        if tensor in {f"{read}:value:0" for read in family.gather.reads or ()}:
            return self.read_part(f"{scope}/held", family)
        builder = self._builder
        its = builder.shape(tensor)
        size = math.prod(its)
        if its == () and shape != ():
            return tensor  # Grappler must see a scalar where there was one.
        key = (tensor, shape if size != family.size else ())
        if key not in cut:
            here, device = f"{scope}/{len(cut)}", builder.device(tensor)
            if size == family.size:
                new = builder.part(here, tensor, builder.dtype(tensor), range_, device)
            elif size == 1:
                new = builder.reshape(here, tensor, builder.dtype(tensor), [], device)
            else:
                new = builder.broadcast_part(here, tensor, shape, range_, device)
            cut[key] = new
        return cut[key]

    def _hold(self, variable: str, range_: Range, own: Range, is_weight: bool) -> None:
        """Has a variable's reads and assignments go to the variable of this replica's part."""
        users = self._builder.view.users(variable)
        user = next((node for node in users if node.op in READS), users[0])
        dtype = type_of(user)
        name = f"{self._prefix}{self._first + len(self.slots)}"
        shape = self._builder.shape(variable)
        slot = Slot(variable, name, *range_, own, shape, dtype, is_weight=is_weight)
        self.slots.append(slot)
        handle = self._builder.variable(
            f"{SCOPE}/{variable}", slot.shared_name, range_, dtype, user.device
        )
        self._handles[variable] = handle
        for user in users:
            node = self._builder.nodes[user.name]
            node.attr.pop("_output_shapes", None)
            for position, tensor in enumerate(data_inputs(node)):
                if self._builder.view.resource(tensor) == variable:
                    node.input[position] = handle


def scope_of(pack: Pack, index: int) -> str:
    """Beginning of the names of what is added for a family."""
    return f"{pack.node}/{SCOPE}_{index}"


def _make_identity(node: Any) -> None:
    kept = [node.input[0], *(f"^{before}" for before in control_inputs(node))]
    del node.input[:]
    node.input.extend(kept)
    dtype = node.attr["T"].type
    node.attr.clear()
    node.op = "Identity"
    node.attr["T"].type = dtype


def _make_sized(node: Any, range_: Range) -> None:
    """Has an identity say how many elements there are."""
    node.op = "EnsureShape"
    node.attr["shape"].shape.dim.add(size=range_[1] - range_[0])
