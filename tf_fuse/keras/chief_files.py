# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Let the chief alone write and read the files of `ModelCheckpoint` and `BackupAndRestore`.

Under `MultiWorkerMirroredStrategy` all processes have the same weights and run the same callbacks.
Keras lets all of them write the same file at the same time, and each restore what it finds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_fuse._tensorflow import feature_names, features
from tf_fuse._tensorflow.keras import processes
from tf_fuse.keras import backups

# What the callbacks of the chief have done.
_NOTHING, _LOADED, _FAILED = range(3)


@functools.cache
def install() -> None:
    """Extend Keras's callbacks, once per process."""
    if features.works(feature_names.KERAS_FILES):
        on_chief = {
            name: _by_chief
            for name in ("load_backup", "save_backup", "remove_backup", "save_checkpoint")
        }
        processes.extend({"on_train_begin": _begin, **on_chief})


def _by_chief(stock: Callable[..., None], self: Any, *args: Any, **more: Any) -> None:
    """Extend a method of a callback that reads, writes or removes files."""
    strategy = self.model.distribute_strategy
    if not processes.are_several(strategy) or strategy.extended.should_checkpoint:
        stock(self, *args, **more)


def _begin(stock: Callable[..., None], self: Any, *args: Any, **more: Any) -> None:
    """Extend `CallbackList.on_train_begin`: all processes take what the chief has restored.

    Raises:
      RuntimeError: a callback of the chief failed.
    """
    model = processes.model_of(self)
    strategy: Any = getattr(model, "distribute_strategy", None)
    if not processes.are_several(strategy):
        stock(self, *args, **more)
        return
    try:
        stock(self, *args, **more)
    except Exception:
        if strategy.extended.should_checkpoint:
            _from_chief(strategy, np.array([_FAILED, 0, 0]))
        raise
    state, epoch, steps = _from_chief(strategy, _restored(self))
    if state == _FAILED:
        raise RuntimeError(
            "a callback of the chief failed in on_train_begin: see the error of the chief"
        )
    if state == _NOTHING:
        return
    if epoch:
        processes.set_first_epoch(model, int(epoch))
    backups.set_steps_made(model, [int(steps)] if steps else [])
    of_optimizer = model.optimizer.variables if model.optimizer else []
    for variable in [*model.variables, *of_optimizer]:
        value = _from_chief(strategy, np.asarray(variable.numpy()))
        if not strategy.extended.should_checkpoint:
            variable.assign(value)


def _restored(callbacks: Any) -> np.ndarray:
    """Return what the chief sends: what `BackupAndRestore` did, the first epoch, its steps."""
    state = _LOADED if processes.have_backup(callbacks) else _NOTHING
    model = processes.model_of(callbacks)
    return np.array([state, processes.first_epoch(model) or 0, sum(backups.steps_made(model))])


def _from_chief(strategy: Any, value: np.ndarray) -> np.ndarray:
    """Return the chief's value, to the bit; every process gives one of the same type and shape."""
    import tensorflow as tf

    sent = value.tobytes() if strategy.extended.should_checkpoint else bytes(value.nbytes)
    words = np.frombuffer(sent.ljust(-(-value.nbytes // 4) * 4, b"\0"), np.int32)
    total = strategy.reduce("SUM", tf.constant(words), axis=None).numpy().tobytes()
    return np.frombuffer(total[: value.nbytes], value.dtype).reshape(value.shape)
