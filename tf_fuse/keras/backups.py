# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Let `BackupAndRestore` go on within an epoch, after the last step that it has saved.

If it saves every few batches, Keras restores the values of a step in an epoch, and begins the epoch
anew: the first steps would train twice. So would some if a process ends between the two files that
Keras overwrites.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from tf_fuse._tensorflow import feature_names, features
from tf_fuse._tensorflow.keras import backups, models
from tf_fuse.keras import checks
from tf_fuse.keras.worker_data import WorkerIterator

_log = logging.getLogger("tf_fuse")


class _Training:
    """A call of `fit`.

    Attributes:
      epochs: the iterator of its epochs; None before there is one.
      made: steps that its first epoch has made: of each worker if these read data, else one number.
      epoch: the number of that epoch.
    """

    def __init__(self) -> None:
        self.epochs: Any = None
        self.made: list[int] = []
        self.epoch = 0


_trainings: weakref.WeakKeyDictionary[Any, _Training] = weakref.WeakKeyDictionary()


@functools.cache
def install() -> None:
    """Extend the callback and Keras's epochs, once per process."""
    if features.works(feature_names.KERAS_BACKUPS):
        backups.extend({"load": _load, "save": _save, "steps": _enumerate, "fit": _fit})


def note_epochs(model: Any, epochs: Any) -> None:
    """Note the iterator of epochs for which a model is built: the first one in `fit` is its own."""
    training = _trainings.get(model)
    if training is not None and training.epochs is None:
        training.epochs = epochs


def steps_made(model: Any) -> list[int]:
    """Return what a callback has restored, of the first epoch of `fit`."""
    training = _trainings.get(model)
    return training.made if training else []


def set_steps_made(model: Any, made: list[int]) -> None:
    """Let the next epoch of `fit` leave out steps."""
    if model in _trainings:
        _trainings[model].made = made


def _fit(stock: Callable[..., Any], self: Any, *args: Any, **more: Any) -> Any:
    if not checks.has_cluster(self.distribute_strategy) or self in _trainings:
        return stock(self, *args, **more)
    _trainings[self] = _Training()
    try:
        return stock(self, *args, **more)
    finally:
        del _trainings[self]


def _save(stock: Callable[..., None], self: Any) -> None:
    if not checks.has_cluster(self.model.distribute_strategy):
        stock(self)
        return

    def made() -> list[int]:
        if self.save_freq == "epoch":
            return []
        function = models.made(self.model, "train")
        of_workers = getattr(function, "steps_of_workers", lambda: None)()
        return of_workers or [backups.batches(self)]

    backups.save(self, lambda: stock(self), made)


def _load(stock: Callable[..., None], self: Any, *args: Any, **more: Any) -> None:
    if not checks.has_cluster(self.model.distribute_strategy):
        stock(self, *args, **more)
        return
    backups.finish(self)
    stock(self, *args, **more)
    found = backups.read(self)
    if found is not None:
        epoch, made = found
        backups.set_epoch(self, epoch)
        set_steps_made(self.model, made)
        if self.model in _trainings:
            _trainings[self.model].epoch = epoch


def _enumerate(stock: Callable[..., Any], self: Any) -> Any:
    """Extend `EpochIterator._enumerate_iterator`."""
    for training in list(_trainings.values()):
        if training.epochs is self and training.made:
            made, training.made = training.made, []
            return _go_on(stock(self), made, training.epoch)
    return stock(self)


def _go_on(steps: Iterator[Any], made: list[int], epoch: int) -> Iterator[Any]:
    """Leave out the steps that an epoch has made, and their batches.

    Args:
      steps: the number of the first batch of a call, that of its last one, and the data.
      made: as of `_Training`.
      epoch: as of `_Training`.
    """
    left_out, data = -1, None
    for first, last, data in steps:
        if left_out < 0:
            left_out = _leave_out(data, made, epoch)
        if first >= left_out:
            yield first, last, data
    if isinstance(data, WorkerIterator):
        data.made = 0  # If it had made all its steps, the next epoch has the same iterator.


def _leave_out(data: Any, made: list[int], epoch: int) -> int:
    """Leave out batches; return how many."""
    if isinstance(data, WorkerIterator):
        return data.leave_out(made, epoch)
    for _ in range(sum(made)):
        next(data, None)
    return sum(made)
