# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that have variables in pieces as whole ones, whatever the pieces.

A checkpoint knows slices of tensors: pieces are written as slices of the whole, and any other
pieces, or the whole, can be read from it. TensorFlow does so with its own `ShardedVariable`; not
where that is inside a variable of Keras 3, nor with an optimizer's variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorflow.python.trackable import base

from tf_fuse.parameter_server import arguments

_KEY = base.VARIABLE_VALUE_KEY


class _Pieces(base.Trackable):
    """Variables that are one whole for a checkpoint."""

    def __init__(self, parts: Sequence[Any]):
        """Takes the pieces, in order."""
        self._parts = dict(zip(_slices(parts), map(_unwrapped, parts), strict=True))

    def _serialize_to_tensors(self) -> dict[str, Any]:
        values = {spec: part._serialize_to_tensors()[_KEY] for spec, part in self._parts.items()}
        return {_KEY: values}

    def _restore_from_tensors(self, restored_tensors: Mapping[str, Any]) -> Any:
        from tensorflow.python.ops import control_flow_ops

        values = restored_tensors[_KEY]
        return control_flow_ops.group(
            *(
                part._restore_from_tensors({_KEY: values[spec]})
                for spec, part in self._parts.items()
            )
        )


def install() -> None:
    """Has TensorFlow hand over all slices of a tensor that is restored, once per process.

    Of an object that tells slices (`_serialize_to_tensors`), it hands over the first one alone.
    """
    from tensorflow.python.training.saving import saveable_object_util

    cls = saveable_object_util.TrackableSaveable
    if getattr(cls, "_tf_fuse_slices", False):
        return
    stock_restore = cls.restore

    def restore(self: Any, restored_tensors: Any, restored_shapes: Any) -> Any:
        if len(self.specs) == len(self._local_names) or len(self._local_names) != 1:
            return stock_restore(self, restored_tensors, restored_shapes)
        slices = [str(spec.slice_spec) for spec in self.specs]
        values = dict(zip(slices, restored_tensors, strict=True))
        return self._trackable._restore_from_tensors({self._local_names[0]: values})

    restore.__doc__ = stock_restore.__doc__
    cls.restore = restore
    cls._tf_fuse_slices = True


def save_by_pieces(sharded: Any) -> None:
    """Has a variable of Keras that has this one as its value written as TensorFlow writes this one.

    Args:
      sharded: a `ShardedVariable`.
    """
    pieces = _Pieces(sharded.variables)
    # (Keras asks the value, and TensorFlow's way for it is another one.)
    sharded._serialize_to_tensors = pieces._serialize_to_tensors
    sharded._restore_from_tensors = pieces._restore_from_tensors


def whole(optimizer: Any) -> Any:
    """What to save of a Keras 3 optimizer whose variables are in pieces: as if they were whole.

        checkpoint = tf.train.Checkpoint(
            model=model, optimizer=tf_fuse.parameter_server.whole(optimizer))

    The checkpoint can be restored with other pieces, or none, with this function or without:
    what it has is what `tf.train.Checkpoint(optimizer=optimizer)` has of an optimizer of whole
    variables.

    Args:
      optimizer: of Keras 3, built (`optimizer.build(tf_fuse.parameter_server.pieces(...))`).

    Returns:
      An object for `tf.train.Checkpoint`.

    Raises:
      TypeError: it is no optimizer of Keras 3.
      ValueError: it is not built, or keeps variables of other shapes beside pieces.
    """
    import keras
    from tensorflow.python.trackable import autotrackable

    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"optimizer is {arguments.described(optimizer)}, must be an optimizer of Keras 3"
        )
    if not optimizer.built:
        raise ValueError(
            f"the optimizer {optimizer.name!r} has no variables yet: call optimizer.build with the "
            "pieces of the model's variables before"
        )
    root, merged = autotrackable.AutoTrackable(), _merged(optimizer)
    # By the attributes, and in the order, by which a checkpoint names an optimizer's variables.
    for name, child in optimizer._trackable_children().items():
        if isinstance(child, keras.Variable):
            setattr(root, name, child)
        elif isinstance(child, list) and name != "_trainable_variables":
            ones = (merged.get(id(one), one) for one in child)
            setattr(root, name, [one for one in ones if one is not None])
    inner = getattr(optimizer, "inner_optimizer", None)  # where losses are scaled
    if inner is not None:
        root.inner_optimizer = whole(inner)
    return root


def _merged(optimizer: Any) -> dict[int, Any]:
    """By identity of variables beside pieces: of the first one the whole, and None of others."""
    own = list(optimizer._variables)
    weights = list(getattr(optimizer, "_trainable_variables", ()))
    groups = [group for group in _groups(weights) if len(group) > 1]
    merged: dict[int, Any] = {}
    for slots in _lists(optimizer, own, len(weights)):
        for group in groups:
            parts = [slots[index] for index in group]
            if any(part is None for part in parts):
                continue
            for part, index in zip(parts, group, strict=True):
                _check_shape(optimizer, part, weights[index])
            merged[id(parts[0])] = _Pieces([part.value for part in parts])
            merged.update((id(part), None) for part in parts[1:])
    return merged


def _groups(weights: Sequence[Any]) -> list[list[int]]:
    """Numbers of weights: those of the pieces of one whole together.

    Raises:
      ValueError: some of a whole's pieces are missing, or in another order.
    """
    groups: list[list[int]] = []
    index = 0
    while index < len(weights):
        container = getattr(weights[index], "_sharded_container", None)
        container = container() if container is not None else None
        parts = [weights[index]] if container is None else list(container.variables)
        there = weights[index : index + len(parts)]
        if [id(one) for one in there] != [id(one) for one in parts]:
            raise ValueError(
                f"the optimizer has {weights[index].name!r} without all other pieces of it, in "
                "order, behind it: build it with tf_fuse.parameter_server.pieces of whole variables"
            )
        groups.append(list(range(index, index + len(parts))))
        index += len(parts)
    return groups


def _lists(optimizer: Any, own: Sequence[Any], length: int) -> list[list[Any]]:
    """The lists in which an optimizer has a variable, or None, for each weight."""
    known = {id(one) for one in own}
    return [
        list(value)
        for name, value in sorted(vars(optimizer).items())
        if name != "_variables"
        and isinstance(value, list)
        and len(value) == length
        and all(one is None or id(one) in known for one in value)
    ]


def _check_shape(optimizer: Any, slot: Any, weight: Any) -> None:
    if tuple(slot.shape) != tuple(weight.shape):
        raise ValueError(
            f"the optimizer {optimizer.name!r} keeps {slot.path!r} of shape {tuple(slot.shape)} "
            f"beside {weight.name!r} of shape {tuple(weight.shape)}: such pieces are not of one "
            "whole; save the optimizer itself, and restore it with the same pieces"
        )


def _slices(parts: Sequence[Any]) -> list[str]:
    """Where each piece is in the whole, as checkpoints have it."""
    from tensorflow.python.ops import variables

    rows = [int(part.shape[0]) for part in parts]
    rest = [int(size) for size in parts[0].shape[1:]]
    return [
        variables.Variable.SaveSliceInfo(
            full_shape=[sum(rows), *rest],
            var_offset=[sum(rows[:index]), *[0] * len(rest)],
            var_shape=[rows[index], *rest],
        ).spec
        for index in range(len(parts))
    ]


def _unwrapped(variable: Any) -> Any:
    """TensorFlow's variable in what a strategy has put around it."""
    from tensorflow.python.distribute import ps_values

    while isinstance(variable, (ps_values.CachingVariable, ps_values.AggregatingVariable)):
        variable = variable._v
    return variable
