# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Interrupt a backup of `BackupAndRestore` at each point at which files change."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

IN_WEIGHTS, AFTER_WEIGHTS = "in the weights", "after the weights"
#: Before a file gets the name of an older one, by how many have before.
_RENAMES = {"before the epoch's file": 0, "before the weights' name": 1}
POINTS = (IN_WEIGHTS, AFTER_WEIGHTS, *_RENAMES)


def kill() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt(point: str, number: int, act: Callable[[], None] = kill) -> Callable[[], None]:
    """Interrupt a save.

    Args:
      point: of `POINTS`.
      number: of the save, from one on.
      act: what happens there.

    Returns:
      Undoes it.
    """
    import keras
    import tensorflow as tf

    save, rename = keras.Model.save_weights, tf.io.gfile.rename
    saves = renames = 0

    def save_weights(self: Any, filepath: str, *args: Any, **more: Any) -> None:
        nonlocal saves
        saves += 1
        save(self, filepath, *args, **more)
        if saves == number and point == IN_WEIGHTS:
            os.truncate(filepath, os.path.getsize(filepath) // 2)
        if saves == number and point not in _RENAMES:
            act()

    def give_name(*args: Any, **more: Any) -> None:
        nonlocal renames
        if saves == number:
            if renames == _RENAMES.get(point):
                act()
            renames += 1
        rename(*args, **more)

    keras.Model.save_weights, tf.io.gfile.rename = save_weights, give_name

    def undo() -> None:
        keras.Model.save_weights, tf.io.gfile.rename = save, rename

    return undo
