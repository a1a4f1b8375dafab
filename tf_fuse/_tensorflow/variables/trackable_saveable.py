# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend `TrackableSaveable`, so that restoring hands over all slices of a variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_FIRST_USE, Is, Member, Stored, Takes

_CLASS = "tensorflow.python.training.saving.saveable_object_util:TrackableSaveable"
_FEATURES = (feature_names.VARIABLES_IN_PIECES,)
_RESTORE = Member(
    _CLASS,
    "restore",
    Takes("self", "restored_tensors", "restored_shapes"),
    "Of an object that has slices of one tensor, it hands over the first slice alone; variables "
    "in pieces inside Keras variables need all of them.",
    _FEATURES,
    AT_FIRST_USE,
)
_WHY_READ = "to know which of an object's tensors are slices"
MEMBERS = (
    _RESTORE,
    Member(_CLASS, "_trackable", Stored(), _WHY_READ, _FEATURES),
    Member(_CLASS, "_local_names", Stored(), _WHY_READ, _FEATURES),
    Member(
        "tensorflow.python.ops.variables:Variable",
        "SaveSliceInfo",
        Is("type"),
        "to write a piece as a slice of the whole",
        _FEATURES,
    ),
)


def hand_over_slices(is_in_pieces: Callable[[Any], bool]) -> None:
    """Make TensorFlow hand over all slices of a variable in pieces that is restored.

    Args:
      is_in_pieces: whether an object is such a variable; all others are restored by TensorFlow.
    """
    cls = _RESTORE.resolve()
    if monkey_patch.is_replaced(_RESTORE):
        return
    stock = cls.restore

    def restore(self: Any, restored_tensors: Any, restored_shapes: Any) -> Any:
        is_sliced = len(self.specs) != len(self._local_names) and len(self._local_names) == 1
        if not is_sliced or not is_in_pieces(self._trackable):
            return stock(self, restored_tensors, restored_shapes)
        slices = [str(spec.slice_spec) for spec in self.specs]
        values = dict(zip(slices, restored_tensors, strict=True))
        return self._trackable._restore_from_tensors({self._local_names[0]: values})

    restore.__doc__ = stock.__doc__
    monkey_patch.replace(_RESTORE, restore)
