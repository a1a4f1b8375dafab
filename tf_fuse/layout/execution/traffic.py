# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compute from a graph alone how many bytes devices send each other.

Within a process a tensor that an operation on another device reads is sent once to that device.
Between processes collectives have the bytes of TensorFlow's algorithms on CPU.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final

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


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The bytes that this process's devices receive in one call.

    Attributes:
      received_bytes: for the plan.
      fed_bytes: of what is fed, beside these.
      returned_bytes: of results that are put together, beside these.
      effects_bytes: of what checks, prints and their like read, beside these.
      collectives: operations between processes, by kind.
      sends: tensors that go from one device of this process to another.
    """

    received_bytes: int
    fed_bytes: int
    returned_bytes: int
    effects_bytes: int
    collectives: Mapping[str, int]
    sends: int


def traffic_of(graph: Any) -> Traffic:
    """Read a graph, of a function as it was traced.

    Raises:
      LayoutError: it has a collective, or sends a tensor, whose bytes are not known.
    """
    received = dict.fromkeys(("", FED, RETURNED, EFFECTS), 0.0)
    collectives: dict[str, int] = {}
    sent = set()
    for one in graph.get_operations():
        if one.type in _RECEIVED or one.type == _ALL_GATHER:
            if one.type == _ALL_GATHER:
                # Members may have shards of several sizes.
                size = _bytes(one.outputs[0]) - _bytes(one.inputs[0])
            else:
                size = _RECEIVED[one.type](_bytes(one.inputs[0]), _group_size(one))
            if one.type == _PERMUTE and _keeps(one):
                size = 0
            received[_scope(one)] += size
            collectives[one.type] = collectives.get(one.type, 0) + 1
        elif one.type.startswith("Collective"):
            raise LayoutError(f"{one.name!r} is a {one.type}, whose bytes are not known")
        for tensor in one.inputs:
            if not _crosses(tensor, one) or (tensor.name, one.device) in sent:
                continue
            sent.add((tensor.name, one.device))
            received[_scope(one)] += _bytes(tensor)
    plan, fed, returned, observed = (round(one) for one in received.values())
    return Traffic(plan, fed, returned, observed, collectives, len(sent))


def _scope(operation: Any) -> str:
    scope = operation.name.partition("/")[0]
    return scope if scope in (FED, RETURNED, EFFECTS) else ""


def _crosses(tensor: Any, reader: Any) -> bool:
    """Return whether a tensor goes from one device to another."""
    maker = tensor.op.device
    return bool(reader.device and maker and maker != reader.device)


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
