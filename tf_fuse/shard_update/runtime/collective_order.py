# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""List the collectives of a function in the order in which all replicas have to run them.

Replicas that run the same collectives in different orders wait for each other for ever. So what
they compare has each collective after those that it waits for, by tensors and by control edges.
Of those that may run in any order, what tells them apart decides, never their names: names depend
on what else a process has made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tf_fuse.function_graph.function_lookup import op_defs
from tf_fuse.function_graph.view import GraphView, data_inputs
from tf_fuse.shard_update.analysis.replication import called_functions
from tf_fuse.shard_update.plan import ShardedUpdate

_COLLECTIVES = ("Collective", "TfFuse>AllGather", "TfFuse>AllReduce", "TfFuse>ReduceScatter")
_GATHER = "TfFuse>AllGather"
_KEYS = ("group_size", "group_key", "instance_key")
_ARGUMENT, _CONSTANT = "argument", "constant"


class Source(NamedTuple):
    """Where a key of a collective comes from.

    Attributes:
      kind: "constant", or "argument" of the function that is planned, or the operation that makes
        it.
      value: of the constant; the argument's place among all; else 0.
    """

    kind: str
    value: int


class OrderedCollective(NamedTuple):
    """A collective, without what differs from replica to replica.

    Attributes:
      place: of the function that it is in: the operations that call it, from the outermost one on,
        and which of their functions it is.
      op: its operation.
      types: numbers of its types.
      elements: of each of its tensors; empty if they are not known.
      how: attributes that all members have to share, as text.
      keys: of its group, and its own, by name, as far as it has some.
      name: of the node, for people; not to be compared.
    """

    place: tuple[str, ...]
    op: str
    types: tuple[int, ...]
    elements: tuple[int, ...]
    how: tuple[str, ...]
    keys: tuple[tuple[str, Source], ...]
    name: str


def collectives_in_order(
    plan: ShardedUpdate, called: Callable[[str], Any | None]
) -> list[OrderedCollective]:
    """Return the collectives that replicas with a plan take part in, in order.

    Args:
      plan: with a function to run.
      called: the `FunctionDef` of a function that is called and that the plan has not made, or
        None.
    """
    made = {function.signature.name: function for function in plan.functions}
    walk = _Walk(lambda name: made[name] if name in made else called(name), _elements(plan))
    assert plan.function is not None
    arguments = [argument.name for argument in plan.function.signature.input_arg]
    given = {name: Source(_ARGUMENT, place) for place, name in enumerate(arguments)}
    return walk.found((), plan.function, given)


def lines(found: list[OrderedCollective]) -> list[tuple[str, str]]:
    """Of each collective what has to be equal on all replicas, and words for people."""
    # One replica may have more arguments than another one; those that are keys are as many.
    used = {source for one in found for _, source in one.keys if source.kind == _ARGUMENT}
    numbers = {source: number for number, source in enumerate(sorted(used))}
    told = []
    for number, one in enumerate(found):
        what = [_types(one.types)]
        if one.elements:
            what.append(f"of {' + '.join(map(str, one.elements))} elements")
        keys = [f"{name} {_key(source, numbers)}" for name, source in one.keys]
        rest = ", ".join([" ".join(what), *one.how, *keys])
        where = "".join(f"in {place}: " for place in one.place)
        told.append(
            (
                f"{number} {where}{one.op} {rest}",
                f"collective {number}: {where}{one.op} {one.name}: {rest}",
            )
        )
    return told


class _Walk:
    """Goes through a function and those that it calls."""

    def __init__(
        self, function: Callable[[str], Any | None], elements: Mapping[str, tuple[int, ...]]
    ):
        self._function, self._elements = function, elements
        self._op_def = op_defs(function)

    def found(
        self, place: tuple[str, ...], definition: Any, given: Mapping[str, Source]
    ) -> list[OrderedCollective]:
        """Return the collectives of a function, in order.

        Args:
          place: as of `OrderedCollective`.
          definition: its `FunctionDef`.
          given: where its arguments come from.
        """
        view = GraphView(definition, self._op_def)
        depths: dict[str, int] = {}
        groups = []
        for node in view.in_order():
            met = self._collectives_of(place, view, node, given)
            # After all collectives that it waits for, however far away they are.
            before = (one.lstrip("^").partition(":")[0] for one in node.input)
            depth = max((depths.get(name, 0) for name in before), default=0)
            depths[node.name] = depth + bool(met)
            if met:
                groups.append((depth, [one[:-1] for one in met], met))
        return [one for _, _, met in sorted(groups) for one in met]

    def _collectives_of(
        self, place: tuple[str, ...], view: GraphView, node: Any, given: Mapping[str, Source]
    ) -> list[OrderedCollective]:
        """Return the collectives that a node is, or runs."""
        if node.op.startswith(_COLLECTIVES):
            return [self._collective_of(place, view, node, given)]
        met = []
        for number, name in enumerate(called_functions(node)):
            body = self._function(name)
            if body is None:
                continue
            arguments = [argument.name for argument in body.signature.input_arg]
            inputs = data_inputs(node)
            outer = inputs[len(inputs) - len(arguments) :]  # (A predicate is in front of them.)
            sources = {
                inner: _source(view, tensor, given)
                for inner, tensor in zip(arguments, outer, strict=False)
            }
            met += self.found((*place, f"{node.op} {number}"), body, sources)
        return met

    def _collective_of(
        self, place: tuple[str, ...], view: GraphView, node: Any, given: Mapping[str, Source]
    ) -> OrderedCollective:
        types = tuple(node.attr[key].type for key in ("T", "dtype") if key in node.attr)
        keys = _keys(view, node, given)
        elements = self._elements.get(node.name, ())
        if node.op == _GATHER:
            elements = _gathered(view, node)
        return OrderedCollective(place, node.op, types, elements, _how(node), keys, node.name)


def _elements(plan: ShardedUpdate) -> dict[str, tuple[int, ...]]:
    """By all-reduce or what is there instead, the elements of its tensors, where that is certain.

    (Functions may have all-reduces of the same name.)
    """
    found: dict[str, set[tuple[int, ...]]] = {}
    for bucket in plan.buckets:
        found.setdefault(bucket.node, set()).add(tuple(cluster.size for cluster in bucket.clusters))
    return {name: next(iter(sizes)) for name, sizes in found.items() if len(sizes) == 1}


def _gathered(view: GraphView, node: Any) -> tuple[int, ...]:
    """Return elements of the whole tensors that are gathered, where their shapes are constants."""
    count = node.attr["N"].i
    found = []
    for tensor in data_inputs(node)[count : 2 * count]:
        shape = _constant(view, tensor)
        if shape is None:
            return ()
        found.append(math.prod(shape))
    return tuple(found)


def _how(node: Any) -> tuple[str, ...]:
    """Return attributes that all members of a collective have to share."""
    words = []
    if "N" in node.attr:
        words.append(f"{node.attr['N'].i} tensors")
    for key in ("merge_op", "final_op", "tag"):
        if node.attr[key].s if key in node.attr else b"":
            words.append(f"{key} {node.attr[key].s.decode()}")
    if "packed" in node.attr and node.op.startswith("TfFuse>"):
        words.append("sharded as one" if node.attr["packed"].b else "each sharded alone")
    if "groups" in node.attr:
        words.append(f"in {node.attr['groups'].i} groups")
    if "bounds" in node.attr and node.attr["bounds"].list.i:
        words.append(f"bounds {list(node.attr['bounds'].list.i)}")
    return tuple(words)


def _keys(
    view: GraphView, node: Any, given: Mapping[str, Source]
) -> tuple[tuple[str, Source], ...]:
    inputs, found, position = data_inputs(node), [], 0
    for argument in view.op_def(node.op).input_arg:
        if argument.name in _KEYS and position < len(inputs):
            found.append((argument.name, _source(view, inputs[position], given)))
        position += node.attr[argument.number_attr].i if argument.number_attr else 1
    if not found:
        # The first version has them as attributes.
        found = [(key, Source(_CONSTANT, node.attr[key].i)) for key in _KEYS if key in node.attr]
    return tuple(found)


def _source(view: GraphView, tensor: str, given: Mapping[str, Source]) -> Source:
    tensor = view.resource(tensor)
    if tensor in given:
        return given[tensor]
    producer, value = view.producer(tensor), _constant(view, tensor)
    if value is not None and len(value) == 1:
        return Source(_CONSTANT, value[0])
    return Source("" if producer is None else str(producer.op), 0)


def _constant(view: GraphView, tensor: str) -> list[int] | None:
    """Return the whole numbers of a constant; None for others."""
    from tensorflow.python.framework import tensor_util

    node = view.producer(view.resource(tensor))
    if node is None or node.op != "Const":
        return None
    values = tensor_util.MakeNdarray(node.attr["value"].tensor)
    return [int(value) for value in values.flat] if values.dtype.kind in "iu" else None


def _key(source: Source, numbers: Mapping[Source, int]) -> str:
    if source.kind == _CONSTANT:
        return str(source.value)
    if source.kind == _ARGUMENT:
        return f"of argument {numbers[source]}"
    return f"made by {source.kind}"


def _types(numbers: tuple[int, ...]) -> str:
    from tensorflow.python.framework import dtypes

    return ", ".join(str(dtypes.as_dtype(number).name) for number in numbers) or "unknown type"
