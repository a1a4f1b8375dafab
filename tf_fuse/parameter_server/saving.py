# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that have variables in pieces as whole ones, whatever the pieces.

A checkpoint knows slices of tensors: pieces are written as slices of the whole, and any other
pieces, or the whole, can be read from it. TensorFlow does so with its own `ShardedVariable`; not
where that is inside a variable of Keras 3. (`checkpoints.py` is of an optimizer's variables.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorflow.python.trackable import base

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
