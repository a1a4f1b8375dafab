# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read and change what `BackupAndRestore` of Keras 3 notes, and where an epoch begins."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_FIRST_USE, ON_OBJECTS, Exists, Member, Stored, Takes

_BACKUP = "keras.src.callbacks.backup_and_restore:BackupAndRestore"
_FEATURES = (feature_names.KERAS_BACKUPS,)
_VERSIONS = "Keras 3"
_EXTENDED: Final = {
    "load": Member(
        _BACKUP,
        "on_train_begin",
        Takes("self", "logs"),
        "Training goes on within an epoch; Keras begins the epoch anew.",
        _FEATURES,
        AT_FIRST_USE,
        _VERSIONS,
    ),
    "save": Member(
        _BACKUP,
        "_save_model",
        Takes("self"),
        "The file has the steps that the epoch has made.",
        _FEATURES,
        AT_FIRST_USE,
        _VERSIONS,
    ),
    "steps": Member(
        "keras.src.trainers.epoch_iterator:EpochIterator",
        "_enumerate_iterator",
        Takes("self"),
        "An epoch that goes on leaves out the steps that it has made.",
        _FEATURES,
        AT_FIRST_USE,
        _VERSIONS,
    ),
    "fit": Member(
        "keras.src.backend.tensorflow.trainer:TensorFlowTrainer",
        "fit",
        Exists(),
        "Only the epochs of training go on, not those of an evaluation in it.",
        _FEATURES,
        AT_FIRST_USE,
        _VERSIONS,
    ),
}
MEMBERS = (
    *_EXTENDED.values(),
    Member(
        _BACKUP,
        "_training_metadata_path",
        Stored(),
        "is the file that has the epoch",
        _FEATURES,
        versions=_VERSIONS,
    ),
    Member(
        _BACKUP,
        "_last_batch_seen",
        Stored(),
        "is the newest batch of the epoch",
        _FEATURES,
        versions=_VERSIONS,
    ),
    Member(
        _BACKUP,
        "_current_epoch",
        Stored(),
        "is the epoch of the next backup; Keras leaves it 0 when it restores one.",
        _FEATURES,
        ON_OBJECTS,
        _VERSIONS,
    ),
)
_STEPS = "steps_made"  # of the file


def extend(methods: Mapping[str, Callable[..., Any]]) -> None:
    """Extend members of the table above.

    Args:
      methods: by name, what gets the present function, and then what that gets.
    """
    for name, method in methods.items():
        monkey_patch.extend(_EXTENDED[name], method)


def batches(callback: Any) -> int:
    """Return how many batches of the epoch a callback has seen, which has seen one."""
    return int(callback._last_batch_seen) + 1


def set_epoch(callback: Any, epoch: int) -> None:
    """Let the next backup be one of an epoch."""
    callback._current_epoch = epoch


def write_steps(callback: Any, steps: list[int]) -> None:
    """Add the steps that an epoch has made to the file of a backup that was just made."""
    import tensorflow as tf

    path = callback._training_metadata_path
    whole = {**_read(path), _STEPS: steps}
    with tf.io.gfile.GFile(f"{path}.new", "w") as file:
        file.write(json.dumps(whole))
    tf.io.gfile.rename(f"{path}.new", path, overwrite=True)


def read(callback: Any) -> tuple[int, list[int]] | None:
    """Return the epoch to begin with, and the steps that it has made; None if there is no backup.

    The steps are empty if the epoch has made none, or if Keras alone wrote the file.
    """
    import tensorflow as tf

    path = callback._training_metadata_path
    if not tf.io.gfile.exists(path):
        return None
    found = _read(path)
    return int(found["epoch"]), [int(one) for one in found.get(_STEPS, ())]


def _read(path: str) -> dict[str, Any]:
    import tensorflow as tf

    with tf.io.gfile.GFile(path, "r") as file:
        found: dict[str, Any] = json.loads(file.read())
    return found
