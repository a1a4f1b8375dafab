# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ask how a tensor of a graph was computed."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

_SUMS = ("Add", "AddV2")


def added_to(value: Any, held: Any) -> Any:
    """Return x if a tensor is another one plus x; else None."""
    import tensorflow as tf

    if not tf.is_symbolic_tensor(value) or not tf.is_symbolic_tensor(held):
        return None
    return _other_operand(value, held.shape, lambda one: _skip_identities(one, held) is held)


def added_to_variable(value: Any, variable: Any) -> Any:
    """Return x if a tensor is the value of a `tf.Variable` plus x; else None."""
    import tensorflow as tf

    if not tf.is_symbolic_tensor(value) or value.dtype != variable.dtype:
        return None
    if value.op.type not in _SUMS or not hasattr(variable, "handle"):
        return None
    handle = value.graph.capture(variable.handle)

    def is_read(one: Any) -> bool:
        one = _skip_identities(one)
        return one.op.type == "ReadVariableOp" and one.op.inputs[0] is handle

    return _other_operand(value, variable.shape, is_read)


def _other_operand(value: Any, shape: Any, is_one: Any) -> Any:
    if value.op.type not in _SUMS:
        return None
    left, right = value.op.inputs
    for one, other in ((left, right), (right, left)):
        if is_one(one) and other.shape == shape:
            return other
    return None


def _skip_identities(tensor: Any, end: Any = None) -> Any:
    while tensor is not end and tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def depends_on(value: Any, ends: Set[Any]) -> bool:
    """Return whether a tensor, or one in a structure of them, is computed from some others.

    Args:
      value: other objects depend on nothing.
      ends: references (`ref()`) to the others.
    """
    import tensorflow as tf

    waiting = [one for one in tf.nest.flatten(value, True) if tf.is_symbolic_tensor(one)]
    seen = {one.ref() for one in waiting}
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() in ends:
            return True
        for one in tensor.op.inputs:
            if one.ref() not in seen:
                seen.add(one.ref())
                waiting.append(one)
    return False


def effect_of(tensors: Sequence[Any]) -> str | None:
    """Return the name of an operation with an effect that is computed from some tensors.

    Args:
      tensors: of one graph; all its operations are looked at.

    Returns:
      None if there is none: then nothing but tensors depends on these.
    """
    if not tensors:
        return None
    found = {one.ref() for one in tensors}
    for op in tensors[0].graph.get_operations():  # in the order in which they were made
        if any(one.ref() in found for one in op.inputs):
            if op.op_def.is_stateful:
                return op.name
            found.update(one.ref() for one in op.outputs)
    return None


def is_same(first: Any, second: Any, ends: Set[Any]) -> bool:
    """Return whether two tensors are computed by the same operations.

    Args:
      first: a tensor.
      second: another one of the same graph.
      ends: references to tensors that are not looked into.
    """
    import tensorflow as tf

    pairs, seen = [(first, second)], set()
    while pairs:
        one, other = pairs.pop()
        if one is other:
            continue
        if not tf.is_symbolic_tensor(one) or not tf.is_symbolic_tensor(other):
            return False
        if (one.ref(), other.ref()) in seen:
            continue
        seen.add((one.ref(), other.ref()))
        if one.ref() in ends or other.ref() in ends or one.value_index != other.value_index:
            return False
        ours, theirs = one.op, other.op
        if _attributes(ours) != _attributes(theirs) or len(ours.inputs) != len(theirs.inputs):
            return False
        pairs += zip(ours.inputs, theirs.inputs, strict=True)
    return True


def _attributes(op: Any) -> Any:
    node = op.node_def
    return node.op, {key: value.SerializeToString(True) for key, value in node.attr.items()}
