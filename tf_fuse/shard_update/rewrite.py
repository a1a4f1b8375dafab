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
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tf_fuse.shard_update import reductions
from tf_fuse.shard_update.builder import Builder, Range, Shape
from tf_fuse.shard_update.cut import SCOPE, Cutter, scope_of
from tf_fuse.shard_update.early_gather import batches, bounds_of, free_group, hand_out
from tf_fuse.shard_update.families import Pack
from tf_fuse.shard_update.graph_view import GraphView, control_inputs, data_inputs
from tf_fuse.shard_update.new_weights import NewWeights
from tf_fuse.shard_update.reductions import Place, Reduction
from tf_fuse.shard_update.slot import Slot, window
from tf_fuse.shard_update.waiting import early_gradients, slot_sinks

_FLOATS = frozenset({1, 2, 14, 19})  # DT_FLOAT, DT_DOUBLE, DT_BFLOAT16, DT_HALF


class Rewriter:
    """Changes a copy of a function, pack by pack."""

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
        self._place = Place(1, 0)
        self._builder = Builder(view, shapes)
        self._cutter = Cutter(self._builder, prefix, first)
        self._weights = NewWeights(self._builder)

    @property
    def function(self) -> Any:
        """The copy."""
        return self._builder.function

    @property
    def slots(self) -> list[Slot]:
        """Variables that have parts from now on."""
        return self._cutter.slots

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
                self._cutter.cut(pack, index, ranges[index])
        self._reduce(pack, ranges, summed, levels)
        if any(family.branches for family in pack.families if family.reason is None):
            return  # What is behind it is another function's.
        early = early_gradients(self._view, pack)
        self._bring_early(pack, ranges, summed, sorted(early))
        first = self._gather_first(pack, everyone)
        gathered = {}
        for index, family in enumerate(pack.families):
            if family.reason is None and family.weights and index not in first:
                gathered[index] = self._weights.part(scope_of(pack, index), family, ranges[index])
            elif not first or (family.reason is not None and index not in early):
                gathered[index] = f"{pack.node}:shards:{index}"
        outputs = self._gather_last(pack, gathered, everyone)
        for index, output in outputs.items():
            family = pack.families[index]
            if family.reason is not None and index not in early:
                self._builder.replace(family.root, output)
            elif family.reason is None and family.weights:
                self._weights.assign(family, output)

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
        tensor = self._builder.own(scope, tensor, reduction.dtype, summed, range_, old.device)
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
            name, part = f"{scope_of(pack, index)}/whole", f"{pack.node}:shards:{index}"
            part = self._builder.own(name, part, dtype, summed[index], ranges[index], whole.device)
            parts.append(self._builder.padded(name, part, dtype, around, 1, zero, whole.device))
        outputs = self._all_reduce(pack, f"{pack.node}/{SCOPE}_early", parts, dtype)
        for index, output in zip(indices, outputs, strict=True):
            self._builder.replace(pack.families[index].root, output)

    # --- Gathers ---------------------------------------------------------------------------------

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
        family, scope = pack.families[index], f"{scope_of(pack, index)}/first"
        part = self._cutter.read_part(f"{scope}/part", family)
        dtype, device = pack.reduce.attr["T"].type, self._builder.nodes[family.chain[0]].device
        part = self._builder.own(scope, part, dtype, own, window(own, family.size), device)
        if not family.gather.dtype:
            return part
        cast = self._builder.add(
            f"{scope}/narrow", "Cast", [part], device, SrcT=dtype, DstT=family.gather.dtype
        )
        return f"{cast.name}:y:0"

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
