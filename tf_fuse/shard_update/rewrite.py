# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes the function in which a replica updates its part of the weights.

Section 4.2 of Xu et al. (2020). The all-reduce of a pack becomes a reduce-scatter; the families'
nodes stay, with the same names, and compute vectors of this replica's elements; slots are read from
and assigned to variables that have no more elements than that; new weights are gathered from all
replicas and assigned. What is left alone gets its whole gradient by the same gather, or, where an
update that is cut needs that, by a sum of all replicas' parts before it.

Replicas may be in groups, each of which has everything once, and gathers what its own members have.
Of what a replica has, it has summed a part, which no other replica has: the chunk of the ring that
an all-reduce would have summed in the same order. Sums over all replicas are of these parts.

Nodes that wait for others, by name, wait for the same ones as before.

Vectorized kernels compute a tensor's last elements, which do not fill a vector register, by other
instructions than the rest, and some functions (a reciprocal square root) then differ in the last
bit. So what is computed is a `window`: as many elements more than the replica's own ones, zeros of
the gradient, as it takes for each element to be computed as it is in the whole tensor.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse.shard_update import reductions
from tf_fuse.shard_update.builder import Builder, Range, Shape
from tf_fuse.shard_update.early_gather import batches, bounds_of, free_group, hand_out
from tf_fuse.shard_update.families import Family, Pack
from tf_fuse.shard_update.graph_view import READS, GraphView, control_inputs, data_inputs
from tf_fuse.shard_update.ops import RESOURCE_APPLY, SAME_ELEMENTS
from tf_fuse.shard_update.reductions import Place, Reduction
from tf_fuse.shard_update.waiting import early_gradients, slot_sinks

SCOPE = "tf_fuse_shard"
# A multiple of what fills a vector register, of any type.
_REGISTER = 64
_OP_OF_ASSIGN = {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}
# What makes them is never a sum, whatever Grappler does with it.
_NO_SUM = frozenset({"Mul", "Neg", "ReadVariableOp", "RealDiv", "Slice"})
_FLOATS = frozenset({1, 2, 14, 19})  # DT_FLOAT, DT_DOUBLE, DT_BFLOAT16, DT_HALF


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
      rank: of the replica whose part it is.
      groups: of the replicas; each has all elements once.
      is_weight: whether it is a weight, and not of the optimizer.
    """

    argument: str
    shared_name: str
    begin: int
    end: int
    own: tuple[int, int]
    shape: Shape
    dtype: int
    owns: tuple[tuple[int, int], ...] = ()
    rank: int = 0
    groups: int = 1
    is_weight: bool = False


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
    begin, end = begin // _REGISTER * _REGISTER, min(-(-end // _REGISTER) * _REGISTER, size)
    # (Grappler takes a vector of one element for a scalar.)
    return (begin if end - begin > 1 else max(0, begin - _REGISTER)), end


class Rewriter:
    """Changes a copy of a function, pack by pack.

    Attributes:
      slots: variables that have parts from now on.
    """

    def __init__(
        self, view: GraphView, shapes: Mapping[str, Shape | None], prefix: str, first: int = 0
    ):
        """Starts with the function as it is.

        Args:
          view: of the function.
          shapes: of its tensors, and, by argument, of its variables.
          prefix: of the shared names of the parts.
          first: number of the first part.
        """
        self._view = view
        self._prefix = prefix
        self._first = first
        self._place = Place(1, 0)
        self._builder = Builder(view, shapes)
        self.slots: list[Slot] = []
        # By variable that has a part, the handle of that.
        self._handles: dict[str, str] = {}

    @property
    def function(self) -> Any:
        """The copy."""
        return self._builder.function

    def shard(
        self,
        pack: Pack,
        place: Place,
        everyone: Sequence[Sequence[Range]],
        summed: Sequence[Range],
        levels: Mapping[str, int],
    ) -> None:
        """Rewrites one pack.

        Args:
          pack: of the function; `is_sharded`.
          place: of the replica that the pack is of.
          everyone: of each replica and each part of the pack, the first element that is the
            replica's, and the one behind the last.
          summed: of each part of the pack, those of this replica's that no other one sums.
          levels: of the reductions of its families.
        """
        whole, ranges = pack.reduce, everyone[place.rank]
        self._place = place
        if pack.node in self._view.nodes:
            self._reduce_scatter(pack, whole)
        for index, family in enumerate(pack.families):
            if family.reason is None:
                self._cut(pack, index, ranges[index])
        self._reduce(pack, ranges, summed, levels)
        if any(family.branches for family in pack.families if family.reason is None):
            return  # What is behind it is another function's.
        early = early_gradients(self._view, pack)
        self._bring_early(pack, ranges, summed, sorted(early))
        first = self._gather_first(pack, everyone)
        gathered = {}
        for index, family in enumerate(pack.families):
            if family.reason is None and family.weights and index not in first:
                gathered[index] = self._new_weight(_scope(pack, index), family, ranges[index])
            elif not first or (family.reason is not None and index not in early):
                gathered[index] = f"{pack.node}:shards:{index}"
        outputs = self._gather_last(pack, gathered, everyone)
        for index, output in outputs.items():
            family = pack.families[index]
            if family.reason is not None and index not in early:
                self._builder.replace(family.root, output)
            elif family.reason is None and family.weights:
                self._assign_weight(_scope(pack, index), family, output)

    def _reduce_scatter(self, pack: Pack, whole: Any) -> None:
        """Puts it in the place of the all-reduce. What packs and unpacks goes."""
        (reduced,) = self._view.outputs(whole)
        for use in self._view.uses(reduced):
            if self._view.nodes[use.node].op == "SplitV":
                self._builder.remove(use.node)
        packed = data_inputs(whole)[0]
        if pack.parts != [packed]:
            self._builder.remove(packed.partition(":")[0])
        node = self._builder.nodes[pack.node]
        node.Clear()
        self._collective(node, "TfFuse>ReduceScatter", whole, pack.parts)
        node.name = pack.node
        node.input.extend(f"^{before}" for before in control_inputs(whole))

    # --- What is cut -----------------------------------------------------------------------------

    def _cut(self, pack: Pack, index: int, own: Range) -> None:
        """Has the nodes of a family compute this replica's window."""
        family, scope = pack.families[index], _scope(pack, index)
        whole = pack.reduce
        part = f"{pack.node}:shards:{index}"
        range_ = window(own, family.size)
        dtype = whole.attr["T"].type
        if family.root in self._view.arguments:
            part = family.root  # A branch gets the window.
        else:
            # Zeros are around what is this replica's.
            around = (own[0] - range_[0], range_[1] - own[1])
            part = self._builder.padded(f"{scope}/window", part, dtype, around, 1, 0, whole.device)
        # Grappler reorders products by what it knows of their shapes.
        sized = self._builder.sized(f"{scope}/sized", part, dtype, range_, whole.device)
        self._builder.replace(family.root, sized)
        self._cut_nodes(scope, family, range_, own)

    def _cut_nodes(self, scope: str, family: Family, range_: Range, own: Range) -> None:
        for variable in family.held:
            self._hold(variable, range_, own, variable in family.weights)
        cut: dict[tuple[str, Shape], str] = {}
        for name in sorted(family.nodes):
            self._cut_node(scope, family, name, range_, cut)
        for name in sorted(family.sinks):
            old, node = self._view.nodes[name], self._builder.nodes[name]
            if node.op not in RESOURCE_APPLY and self._is_whole(family, node, old, 1):
                shape = self._builder.shape(old.input[1])
                node.input[1] = self._cut_input(scope, family, old.input[1], shape, range_, cut)

    def _cut_node(
        self, scope: str, family: Family, name: str, range_: Range, cut: dict[Any, str]
    ) -> None:
        old, node = self._view.nodes[name], self._builder.nodes[name]
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
            shape = self._builder.shape(self._view.outputs(old)[0])
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
            return self._read_part(f"{scope}/held", family)
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
        users = self._view.users(variable)
        user = next((node for node in users if node.op in READS), users[0])
        dtype = user.attr["T" if user.op in RESOURCE_APPLY else "dtype"].type
        name = f"{self._prefix}{self._first + len(self.slots)}"
        shape = self._builder.shape(variable)
        slot = Slot(variable, name, *range_, own, shape, dtype, is_weight=is_weight)
        self.slots.append(slot)
        handle = self._handle(f"{SCOPE}/{variable}", slot.shared_name, range_, dtype, user.device)
        self._handles[variable] = handle
        for user in users:
            node = self._builder.nodes[user.name]
            node.attr.pop("_output_shapes", None)
            for position, tensor in enumerate(data_inputs(node)):
                if self._view.resource(tensor) == variable:
                    node.input[position] = handle

    def _handle(self, name: str, shared_name: str, range_: Range, dtype: int, device: str) -> str:
        """The handle of a variable of the function's own, a vector."""
        handle = self._builder.add(name, "VarHandleOp", [], device, dtype=dtype)
        handle.attr["shape"].shape.dim.add(size=range_[1] - range_[0])
        handle.attr["shared_name"].s = shared_name.encode()
        return f"{name}:resource:0"

    # --- Reductions ------------------------------------------------------------------------------

    def _reduce(
        self,
        pack: Pack,
        ranges: Sequence[Range],
        summed: Sequence[Range],
        levels: Mapping[str, int],
    ) -> None:
        """Has replicas do the reductions together: those of a level and type in one collective."""
        batches: dict[tuple[int, int], list[tuple[int, Reduction]]] = defaultdict(list)
        for index, family in enumerate(pack.families):
            if family.reason is None:
                for name in sorted(family.reductions):
                    reduction = family.reductions[name]
                    batches[levels[name], reduction.wire_type].append((index, reduction))
        for level, dtype in sorted(batches):
            batch = batches[level, dtype]
            sent = [self._send(pack, i, ranges[i], summed[i], one) for i, one in batch]
            name = f"{pack.node}/{SCOPE}_reduce_{level}_{dtype}"
            totals = self._all_reduce(pack, name, sent, dtype)
            for (_, reduction), total in zip(batch, totals, strict=True):
                self._finish(reduction, total)

    def _send(self, pack: Pack, index: int, own: Range, summed: Range, reduction: Reduction) -> str:
        """What this replica's elements add to a reduction, each of one replica alone."""
        builder, old = self._builder, self._view.nodes[reduction.node]
        scope = f"{reduction.node}/{SCOPE}"
        tensor = data_inputs(old)[0]
        range_ = window(own, pack.families[index].size)
        tensor = self._own(scope, tensor, reduction.dtype, summed, range_, old.device)
        part = reductions.own_part(builder, scope, reduction, tensor, summed, old.device)
        return reductions.placed(builder, scope, reduction, part, self._place, old.device)

    def _finish(self, reduction: Reduction, total: str) -> None:
        """Has a node hand on the result."""
        old, node = self._view.nodes[reduction.node], self._builder.nodes[reduction.node]
        scope = f"{reduction.node}/{SCOPE}"
        total = reductions.finished(self._builder, scope, reduction, total, old.device)
        node.Clear()
        node.name, node.op, node.device = old.name, "Identity", old.device
        node.input.extend([total, *(f"^{before}" for before in control_inputs(old))])
        node.attr["T"].type = reduction.dtype

    def _all_reduce(self, pack: Pack, name: str, tensors: Sequence[str], dtype: int) -> list[str]:
        """The sums of tensors over all replicas, beside the collective of the pack."""
        whole = pack.reduce
        node = self._builder.add(name, "", [], whole.device)
        self._collective(node, "TfFuse>AllReduce", whole, tensors)
        node.attr["T"].type = dtype
        # (Other collectives of the pack have its keys, too.)
        where = "" if pack.node in self._view.nodes else "branch/"
        node.attr["tag"].s = f"{where}{name.rpartition('/')[2]}".encode()
        return [f"{name}:outputs:{i}" for i in range(len(tensors))]

    def _bring_early(
        self,
        pack: Pack,
        ranges: Sequence[Range],
        summed: Sequence[Range],
        indices: Sequence[int],
    ) -> None:
        """Brings whole gradients before the new weights: zeros but for what is a replica's own."""
        if not indices:
            return
        whole = pack.reduce
        dtype = whole.attr["T"].type
        parts = []
        for index in indices:
            begin, end = summed[index]
            around = (begin, pack.families[index].size - end)
            # Adding it changes nothing, not even the sign of a zero.
            zero = -0.0 if dtype in _FLOATS else 0
            name, part = f"{_scope(pack, index)}/whole", f"{pack.node}:shards:{index}"
            part = self._own(name, part, dtype, summed[index], ranges[index], whole.device)
            parts.append(self._builder.padded(name, part, dtype, around, 1, zero, whole.device))
        outputs = self._all_reduce(pack, f"{pack.node}/{SCOPE}_early", parts, dtype)
        for index, output in zip(indices, outputs, strict=True):
            self._builder.replace(pack.families[index].root, output)

    # --- New weights -----------------------------------------------------------------------------

    def _new_weight(self, scope: str, family: Family, own: Range) -> str:
        """This replica's part of the weight, as the last of its assignments makes it."""
        range_ = window(own, family.size)
        value = ""
        for number, name in enumerate(family.chain):
            node = self._builder.nodes[name]
            here = f"{scope}/version_{number}"
            if node.op == "AssignVariableOp":
                value = node.input[1]
            else:
                old = value or self._old_weight(here, node, range_)
                value = self._changed(here, family, node, old, range_)
            for read in sorted(read for read, n in family.versions.items() if n == number):
                self._builder.replace(f"{read}:value:0", value)
                self._builder.idle(read)
            if number < len(family.chain) - 1:
                self._builder.idle(name)
        last = self._builder.nodes[family.chain[-1]]
        return self._own(scope, value, _type(last), own, range_, last.device)

    def _old_weight(self, scope: str, sink: Any, range_: Range) -> str:
        """The window of a weight as it is when an assignment runs."""
        before = [f"^{name}" for name in control_inputs(sink)]
        inputs = [sink.input[0], *before]
        read = self._builder.add(
            f"{scope}/weight", "ReadVariableOp", inputs, sink.device, dtype=_type(sink)
        )
        value = f"{read.name}:value:0"
        return self._builder.part(f"{scope}/old", value, _type(sink), range_, sink.device)

    def _changed(self, scope: str, family: Family, sink: Any, old: str, range_: Range) -> str:
        """What an assignment makes of the window of a weight."""
        builder = self._builder
        if sink.op in _OP_OF_ASSIGN:
            op = _OP_OF_ASSIGN[sink.op]
            terms = [
                self._term(f"{scope}/before", old, sink, range_),
                self._term(f"{scope}/change", sink.input[1], sink, range_),
            ]
            node = builder.add(f"{scope}/new", op, terms, sink.device, T=_type(sink))
            return f"{node.name}:z:0"
        # The operation wants a variable: one that is there as long as it runs.
        dtype, device = _type(sink), sink.device
        name = f"{builder.function.signature.name}/{scope}"
        handle = self._handle(f"{scope}/variable", name, range_, dtype, device)
        assign = builder.add(
            f"{scope}/assign", "AssignVariableOp", [handle, old], device, dtype=dtype
        )
        apply = builder.add(f"{scope}/apply", sink.op, list(sink.input), device)
        for key, value in sink.attr.items():
            apply.attr[key].CopyFrom(value)
        apply.attr.pop("_output_shapes", None)
        apply.input[0] = handle
        apply.input.append(f"^{assign.name}")
        read = builder.add(
            f"{scope}/read", "ReadVariableOp", [handle, f"^{apply.name}"], device, dtype=dtype
        )
        end = builder.add(f"{scope}/end", "DestroyResourceOp", [handle, f"^{read.name}"], device)
        end.attr["ignore_lookup_error"].b = True
        sink.input.append(f"^{end.name}")
        return f"{read.name}:value:0"

    def _term(self, name: str, tensor: str, sink: Any, range_: Range) -> str:
        """What is added or subtracted, as one term.

        Grappler makes one sum of a sum and the sums that are its terms, in an order of its own, and
        adds what is negated and subtracted.
        """
        producer = self._builder.nodes.get(tensor.partition(":")[0])
        op = "" if producer is None else producer.op
        if op in _NO_SUM if sink.op == "AssignAddVariableOp" else op != "Neg":
            return tensor
        return self._builder.sized(name, tensor, _type(sink), range_, sink.device)

    def _own(
        self, scope: str, tensor: str, dtype: int, own: Range, range_: Range, device: str
    ) -> str:
        """Some of a window's elements, which are this replica's own."""
        if own == range_:
            return tensor
        begin = own[0] - range_[0]
        inner = (begin, begin + own[1] - own[0])
        return self._builder.part(f"{scope}/own", tensor, dtype, inner, device)

    def _assign_weight(self, scope: str, family: Family, value: str) -> None:
        sink = self._builder.nodes[family.chain[-1]]
        dtype = _type(sink)
        before = control_inputs(sink)
        weight = self._view.nodes[sink.name].input[0]
        name, device = sink.name, sink.device
        sink.Clear()
        sink.name, sink.op, sink.device = name, "AssignVariableOp", device
        sink.input.extend([weight, value, *(f"^{one}" for one in before)])
        sink.attr["dtype"].type = dtype

    def _gather_last(
        self, pack: Pack, parts: Mapping[int, str], everyone: Sequence[Sequence[Range]]
    ) -> dict[int, str]:
        """Gathers behind the update; returns the whole tensors."""
        if not parts:
            return {}
        name = f"{pack.node}/{SCOPE}_gather"
        outputs = self._gather(pack, name, parts, everyone)
        # A replica that has the new weights knows that all others have written their slots.
        node = self._builder.nodes[name]
        node.input.extend(f"^{written}" for written in sorted(self._written(pack)))
        return outputs

    def _gather_first(self, pack: Pack, everyone: Sequence[Sequence[Range]]) -> set[int]:
        """Has reads in front of the update get what is gathered of the weights' parts.

        Returns:
          The indices of the families whose weights these are.
        """
        first, own, before = batches(pack), everyone[self._place.rank], ""
        for number, (dtype, indices) in enumerate(first):
            name = f"{pack.node}/{SCOPE}_first_{number}"
            parts = {index: self._old_part(pack, index, own[index]) for index in indices}
            outputs = self._gather(pack, name, parts, everyone, dtype)
            node = self._builder.nodes[name]
            free_group(self._builder, node)
            node.attr["tag"].s = name.rpartition("/")[2].encode()
            if before:
                node.input.append(f"^{before}")
            before = name
            # Nobody is in the next step's gather before all have what they wanted of this one's.
            self._builder.nodes[pack.node].input.append(f"^{name}")
            for index, output in outputs.items():
                family = pack.families[index]
                hand_out(self._builder, family, output)
                # What others may read between steps changes when all are in the next one.
                sink = self._builder.nodes[family.chain[0]]
                sink.input.append(f"^{pack.node}")
        return {index for _, indices in first for index in indices}

    def _old_part(self, pack: Pack, index: int, own: Range) -> str:
        """This replica's part of a weight before the update, of the type that travels."""
        family, scope = pack.families[index], f"{_scope(pack, index)}/first"
        part = self._read_part(f"{scope}/part", family)
        dtype, device = pack.reduce.attr["T"].type, self._builder.nodes[family.chain[0]].device
        part = self._own(scope, part, dtype, own, window(own, family.size), device)
        if not family.gather.dtype:
            return part
        cast = self._builder.add(
            f"{scope}/narrow", "Cast", [part], device, SrcT=dtype, DstT=family.gather.dtype
        )
        return f"{cast.name}:y:0"

    def _read_part(self, name: str, family: Family) -> str:
        """The window of a weight that has a part, as it is before the update."""
        if name not in self._builder.nodes:
            sink = self._builder.nodes[family.chain[0]]
            handle = self._handles[family.weights[0]]
            self._builder.add(name, "ReadVariableOp", [handle], sink.device, dtype=_type(sink))
            sink.input.append(f"^{name}")
        return f"{name}:value:0"

    def _gather(
        self,
        pack: Pack,
        name: str,
        parts: Mapping[int, str],
        everyone: Sequence[Sequence[Range]],
        dtype: int = 0,
    ) -> dict[int, str]:
        """Gathers parts of a pack's weights or gradients.

        Args:
          pack: that they are of.
          name: of the node.
          parts: this replica's, by index of the family.
          everyone: of each replica, its elements of each of the families' tensors.
          dtype: number of their type; 0: the pack's.
        """
        whole, shapes = pack.reduce, []
        for index in parts:
            family = pack.families[index]
            is_weight = family.reason is None and family.weights
            shapes.append(self._builder.shape(family.weights[0]) if is_weight else (family.size,))
        wanted = [
            self._builder.constant(f"{name}/shape_{i}", list(shape), whole.device)
            for i, shape in enumerate(shapes)
        ]
        node = self._builder.add(name, "", [], whole.device)
        self._collective(node, "TfFuse>AllGather", whole, [*parts.values(), *wanted])
        node.attr["N"].i = len(parts)
        node.attr["T"].type = dtype or whole.attr["T"].type
        if dtype or len(parts) < len(pack.families):
            # They are cut as the pack is, of which they are a part, or of another type.
            node.attr["packed"].b = False
            for index in parts:
                bounds = bounds_of(everyone, index, pack.families[index].size)
                node.attr["bounds"].list.i.extend(bounds)
        return {index: f"{name}:outputs:{i}" for i, index in enumerate(parts)}

    def _written(self, pack: Pack) -> set[str]:
        """The nodes that assign the parts of a pack's slots."""
        written = set()
        for family in pack.families:
            if family.reason is None:
                # (The new weight waits for an operation that updates it and its slots.)
                written.update(set(slot_sinks(self._view, family)) - set(family.chain))
        return written

    def _collective(self, node: Any, op: str, whole: Any, inputs: Sequence[str]) -> None:
        """Makes a node a collective of the group of an all-reduce."""
        node.op, node.device = op, whole.device
        node.input.extend([*inputs, *data_inputs(whole)[1:4]])
        node.attr["T"].type = whole.attr["T"].type
        node.attr["N"].i = len(inputs)
        node.attr["packed"].b = True
        if self._place.groups > 1 and op != "TfFuse>AllReduce":
            node.attr["groups"].i = self._place.groups
        node.attr["rank"].i = self._place.rank
        node.attr["timeout_seconds"].f = whole.attr["timeout_seconds"].f


def _scope(pack: Pack, index: int) -> str:
    return f"{pack.node}/{SCOPE}_{index}"


def _type(sink: Any) -> int:
    """Number of the type that an assignment is of."""
    return int(sink.attr["T" if sink.op in RESOURCE_APPLY else "dtype"].type)


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
