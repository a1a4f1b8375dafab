# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend `MultiDeviceSaver`, so that it restores a large checkpoint in parts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_FIRST_USE, Member, Stored, Takes

_CLASS = "tensorflow.python.checkpoint.functional_saver:MultiDeviceSaver"
_FEATURES = (feature_names.RESTORE_IN_PARTS,)
_RESTORE = Member(
    _CLASS,
    "restore",
    Takes("self", "file_prefix", "options"),
    "It reads all values of a task before it assigns the first one: twice the memory.",
    _FEATURES,
    AT_FIRST_USE,
)
_WHY_READ = "to restore some variables alone"
MEMBERS = (
    _RESTORE,
    Member(_CLASS, "_shardable_tensors_by_task", Stored(), _WHY_READ, _FEATURES),
    Member(_CLASS, "_keys_to_restore_fn", Stored(), _WHY_READ, _FEATURES),
    Member(_CLASS, "_restore_fn_to_keys", Stored(), _WHY_READ, _FEATURES),
    Member(_CLASS, "_registered_savers", Stored(), _WHY_READ, _FEATURES),
)


@dataclass(frozen=True)
class Restored:
    """A tensor, or a slice of one, that is to be restored.

    Attributes:
      task: device of the task that reads it.
      key: its name in the checkpoint.
      slice_spec: as the checkpoint writes slices; "" for all of it.
      dtype: TensorFlow's.
      function: assigns it, perhaps with others.
    """

    task: str
    key: str
    slice_spec: str
    dtype: Any
    function: Any


def extend(restore: Callable[..., Any]) -> None:
    """Extend how checkpoints are restored, once per process.

    Args:
      restore: gets the stock method, and then what that gets.
    """
    if not monkey_patch.is_replaced(_RESTORE):
        monkey_patch.extend(_RESTORE, restore)


def tensors(saver: Any) -> list[Restored]:
    """Return what a saver restores."""
    return [
        Restored(
            task.to_string(),
            one.checkpoint_key,
            one.slice_spec,
            one.dtype,
            saver._keys_to_restore_fn[one.checkpoint_key, one.slice_spec],
        )
        for task, found in saver._shardable_tensors_by_task.items()
        for one in found
    ]


def has_own_savers(saver: Any) -> bool:
    """Return whether objects restore themselves in ways of their own."""
    return bool(saver._registered_savers)


def part(saver: Any, functions: Collection[Any]) -> Any:
    """Return a saver of what some functions assign.

    Args:
      saver: of all.
      functions: of `Restored`.
    """

    def mine(tensors: Sequence[Any]) -> list[Any]:
        keys = saver._keys_to_restore_fn
        return [one for one in tensors if keys[one.checkpoint_key, one.slice_spec] in functions]

    made = copy.copy(saver)
    by_task = {task: mine(found) for task, found in saver._shardable_tensors_by_task.items()}
    made._shardable_tensors_by_task = {task: found for task, found in by_task.items() if found}
    made._restore_fn_to_keys = {
        one: keys for one, keys in saver._restore_fn_to_keys.items() if one in functions
    }
    return made
