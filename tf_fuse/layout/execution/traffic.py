# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compute from a graph alone how many bytes devices send each other.

Within a process a tensor that an operation on another device reads is sent once to that device.
Between processes collectives have the bytes of TensorFlow's algorithms on CPU. What is in a loop of
the plan counts as often as its name says that it runs, and both branches of a conditional count.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tf_fuse._tensorflow.graphs.functions import function_of
from tf_fuse.layout.types.errors import LayoutError

# Bytes that each member receives, by the V bytes of its input and p members.
_RECEIVED: Final = {
    "CollectiveReduceV2": lambda v, p: 2 * (p - 1) * v / p,
    "CollectiveGatherV2": lambda v, p: (p - 1) * v,
    "CollectiveAllToAllV2": lambda v, p: (p - 1) * v / p,
    "TfFuse>AllReduce": lambda v, p: 2 * (p - 1) * v / p,
    "TfFuse>ReduceScatter": lambda v, p: (p - 1) * v / p,
    "TfFuse>Permute": lambda v, p: v,
}
_OURS: Final = "TfFuse>"
_ALL_GATHER: Final = "TfFuse>AllGather"
_PERMUTE: Final = "TfFuse>Permute"
# The input of a collective that is the group's size: after the tensor; of ours, before two keys.
_KEYS: Final = 1
_OUR_KEYS: Final = -3


# Scopes of names: of what is fed, of results that are put together, and of what checks, prints and
# their like read.
EFFECTS: Final = "effects"
FED: Final = "fed"
RETURNED: Final = "returned"
# Names of a plan's loops, before how often they run, and of its conditionals.
LOOP: Final = "trips"
CONDITIONAL: Final = "branches"
_LOOP: Final = re.compile(LOOP + r"(\d+)(_\d+)?")
_CONDITIONAL: Final = re.compile(CONDITIONAL + r"(_\d+)?")


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The bytes that this process's devices receive in one call.

    Attributes:
      received_bytes: for the plan.
      fed_bytes: of what is fed, beside these.
      returned_bytes: of results that are put together, beside these.
      effects_bytes: of what checks, prints and their like read, beside these.
      collectives: operations between processes, by kind, as often as they run.
      sends: tensors that go from one device of this process to another.
    """

    received_bytes: int
    fed_bytes: int
    returned_bytes: int
    effects_bytes: int
    collectives: Mapping[str, int]
    sends: int


class _Body(NamedTuple):
    """A graph that a function runs, perhaps as the body of a loop or conditional.

    Attributes:
      graph: whose operations run.
      times: how often.
      places: by name of an input, the device on which it is.
      scope: of what the graph is in; "" of the plan.
    """

    graph: Any
    times: int
    places: Mapping[str, str]
    scope: str = ""


def traffic_of(graph: Any) -> Traffic:
    """Read a graph, of a function as it was traced.

    Raises:
      LayoutError: it has a collective, or sends a tensor, whose bytes are not known.
    """
    received = dict.fromkeys(("", FED, RETURNED, EFFECTS), 0.0)
    collectives: dict[str, int] = {}
    sends = 0
    waiting = [_Body(graph, 1, {})]
    while waiting:
        body = waiting.pop()
        sent = set()
        for one in body.graph.get_operations():
            scope = body.scope or _scope(one)
            if one.type in _RECEIVED or one.type == _ALL_GATHER:
                if one.type == _ALL_GATHER:
                    # Members may have shards of several sizes.
                    size = _bytes(one.outputs[0]) - _bytes(one.inputs[0])
                else:
                    size = _RECEIVED[one.type](_bytes(one.inputs[0]), _group_size(one))
                if one.type == _PERMUTE and _keeps(one):
                    size = 0
                received[scope] += body.times * size
                collectives[one.type] = collectives.get(one.type, 0) + body.times
            elif one.type.startswith("Collective"):
                raise LayoutError(f"{one.name!r} is a {one.type}, whose bytes are not known")
            waiting += _bodies(body, one, scope)
            for tensor in one.inputs:
                maker = _place(body, tensor)
                crosses = one.device and maker and maker != one.device
                if not crosses or (tensor.name, one.device) in sent:
                    continue
                sent.add((tensor.name, one.device))
                received[scope] += body.times * _bytes(tensor)
        sends += body.times * len(sent)
    plan, fed, returned, observed = (round(one) for one in received.values())
    return Traffic(plan, fed, returned, observed, collectives, sends)


def _bodies(outer: _Body, operation: Any, scope: str) -> Iterator[_Body]:
    """Return the bodies of a loop or conditional that the plan has."""
    own = operation.name.split("/")[-1]
    loop = _LOOP.fullmatch(own) if operation.type in ("While", "StatelessWhile") else None
    if loop:
        # The condition runs once more, when the loop ends.
        inner = {"cond": int(loop[1]) + 1, "body": int(loop[1])}
        given = list(operation.inputs)
    elif operation.type in ("If", "StatelessIf") and _CONDITIONAL.fullmatch(own):
        inner = dict.fromkeys(("then_branch", "else_branch"), 1)
        given = list(operation.inputs)[1:]
    else:
        return
    for attribute, times in inner.items():
        graph = function_of(operation.graph, operation.get_attr(attribute).name).graph
        places = {
            mine.name: _place(outer, one) for mine, one in zip(graph.inputs, given, strict=True)
        }
        yield _Body(graph, outer.times * times, places, scope)


def _place(body: _Body, tensor: Any) -> str:
    """Return the device of a tensor."""
    return body.places.get(tensor.name) or tensor.op.device


def _scope(operation: Any) -> str:
    scope = operation.name.partition("/")[0]
    return scope if scope in (FED, RETURNED, EFFECTS) else ""


def _group_size(operation: Any) -> int:
    import tensorflow as tf

    ours = operation.type.startswith(_OURS)
    size = tf.get_static_value(operation.inputs[_OUR_KEYS if ours else _KEYS])
    return int(size)


def _keeps(permutation: Any) -> bool:
    """Return whether this member of a permutation keeps its own tensor."""
    rank = permutation.get_attr("rank")
    return bool(permutation.get_attr("receivers")[rank] == rank)


def _bytes(tensor: Any) -> int:
    shape = tensor.shape
    if not shape.is_fully_defined():
        raise LayoutError(f"tensor {tensor.name!r} is sent and has shape {shape}, which is unknown")
    return math.prod(shape.as_list()) * tensor.dtype.base_dtype.size
