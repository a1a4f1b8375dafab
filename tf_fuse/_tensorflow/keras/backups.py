# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read and change what `BackupAndRestore` of Keras 3 notes, and where an epoch begins."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_FIRST_USE, ON_OBJECTS, Exists, Member, Stored, Takes

_BACKUP = "keras.src.callbacks.backup_and_restore:BackupAndRestore"
_FEATURES = (feature_names.KERAS_BACKUPS,)
_VERSIONS = "Keras 3"
_PATH = "is a file, which has another name until it is whole"
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
        "A backup is whole whenever the process ends, and has the steps of its epoch.",
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
    *(
        Member(_BACKUP, name, Stored(), _PATH, _FEATURES, ON_OBJECTS, _VERSIONS)
        for name in (
            "_weights_path",
            "_training_metadata_path",
            "_prev_weights_path",
            "_prev_training_metadata_path",
        )
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
_STEPS, _NUMBER = "steps_made", "weights_number"  # of the file


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


def save(callback: Any, write: Callable[[], None], steps: Callable[[], list[int]]) -> None:
    """Make a backup; the one before is whole until this one is.

    Keras overwrites the weights, and then the file that has their epoch. Here weights get a name
    with a number first. The file of the epoch, which is replaced at once, says which weights belong
    to it; after that they get the name that Keras reads.

    Args:
      callback: of the backup.
      write: Keras's own method.
      steps: returns what the epoch has made, when the weights are written.
    """
    import tensorflow as tf

    weights, path = callback._weights_path, callback._training_metadata_path
    number = _read(path).get(_NUMBER, 0) + 1
    if callback.double_checkpoint:
        for file, copy in (
            (weights, callback._prev_weights_path),
            (path, callback._prev_training_metadata_path),
        ):
            if tf.io.gfile.exists(file):
                tf.io.gfile.copy(file, copy, overwrite=True)
    new = {
        "_weights_path": _numbered(weights, number),
        "_training_metadata_path": f"{path}.new",
        "double_checkpoint": False,
    }
    with _having(callback, new):
        write()
    whole = {**_read(f"{path}.new"), _NUMBER: number}
    if made := steps():
        whole[_STEPS] = made
    with tf.io.gfile.GFile(f"{path}.new", "w") as file:
        file.write(json.dumps(whole))
    tf.io.gfile.rename(f"{path}.new", path, overwrite=True)
    finish(callback)


def finish(callback: Any) -> None:
    """Give the weights of the newest backup the name that Keras reads, if they have another one."""
    import tensorflow as tf

    number = _read(callback._training_metadata_path).get(_NUMBER)
    weights = callback._weights_path
    if number is not None and tf.io.gfile.exists(_numbered(weights, number)):
        tf.io.gfile.rename(_numbered(weights, number), weights, overwrite=True)


def read(callback: Any) -> tuple[int, list[int]] | None:
    """Return the epoch to begin with, and the steps that it has made; None if there is no backup.

    The steps are empty if the epoch has made none, or if Keras alone wrote the file.
    """
    found = _read(callback._training_metadata_path)
    return (int(found["epoch"]), [int(one) for one in found.get(_STEPS, ())]) if found else None


def _read(path: str) -> dict[str, Any]:
    """Return what a file of an epoch has; nothing if there is none."""
    import tensorflow as tf

    if not tf.io.gfile.exists(path):
        return {}
    with tf.io.gfile.GFile(path, "r") as file:
        found: dict[str, Any] = json.loads(file.read())
    return found


def _numbered(weights: str, number: int) -> str:
    ending = ".weights.h5"  # Keras refuses others.
    return f"{weights.removesuffix(ending)}-{number}{ending}"


@contextlib.contextmanager
def _having(callback: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Let a callback have other values of some attributes."""
    before = {name: getattr(callback, name) for name in values}
    try:
        for name, value in values.items():
            setattr(callback, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(callback, name, value)
