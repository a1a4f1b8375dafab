# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Callbacks of a `fit` in several processes."""

from __future__ import annotations

import os
from typing import Any


def notes(keras: Any, dies: int) -> Any:
    """Return a callback that keeps what it got, and ends the process in epoch `dies`."""

    class Notes(keras.callbacks.Callback):
        """Keeps what it got; ends the process in the second step of an epoch."""

        def __init__(self) -> None:
            super().__init__()
            self.batches: list[Any] = []
            self.epochs: list[int] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epochs.append(epoch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.epochs[-1] == dies:
                os._exit(9)
            self.batches.append([batch, {key: float(value) for key, value in logs.items()}])

    return Notes()


def savers(keras: Any, folder: str, saves: tuple[str, ...]) -> list[Any]:
    """Return the callbacks that save into a folder, by what they are called here."""
    found = []
    if "backup" in saves:
        found.append(keras.callbacks.BackupAndRestore(f"{folder}/backup"))
    if "backup of each step" in saves:
        found.append(keras.callbacks.BackupAndRestore(f"{folder}/backup", save_freq=1))
    if "checkpoint" in saves:
        found.append(keras.callbacks.ModelCheckpoint(f"{folder}/saved-{{epoch}}.keras"))
    return found
