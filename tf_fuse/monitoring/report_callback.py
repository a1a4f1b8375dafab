# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A callback that writes what tf_fuse counts for TensorBoard."""

from __future__ import annotations

import os
from typing import Any

import keras

from tf_fuse.monitoring.summaries import write_summaries


class ReportCallback(keras.callbacks.Callback):
    """Writes the scalars of `tf_fuse.write_summaries` while a model trains.

        model.fit(dataset, epochs=3, callbacks=[tf_fuse.keras.ReportCallback("logs")])

    Of several processes under `MultiWorkerMirroredStrategy`, the chief alone writes.
    """

    def __init__(self, log_dir: str | os.PathLike[str], update_freq: int | str = "epoch"):
        """Make the callback.

        Args:
          log_dir: the folder that TensorBoard reads; that of Keras's callback TensorBoard will do.
          update_freq: "epoch" to write at the end of each epoch; a number of training batches to
            write after each so many, too.

        Raises:
          ValueError: `update_freq` is neither.
        """
        super().__init__()
        is_count = isinstance(update_freq, int) and not isinstance(update_freq, bool)
        if update_freq != "epoch" and not (is_count and int(update_freq) > 0):
            raise ValueError(
                f"update_freq is {update_freq!r}; expected 'epoch' or a number of batches, 1 or "
                "more"
            )
        self._log_dir = os.fspath(log_dir)
        self._every = 0 if update_freq == "epoch" else int(update_freq)
        self._writer: Any = None
        self._step = self._written = self._batch = -1

    def on_train_begin(self, logs: Any = None) -> None:
        """Open the file, in the process that writes."""
        import tensorflow as tf

        strategy = getattr(self.model, "distribute_strategy", None)
        if strategy is not None and not strategy.extended.should_save_summary:
            return
        self._step = -1
        self._writer = tf.summary.create_file_writer(self._log_dir, filename_suffix=".tf_fuse")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Go on from the optimizer's steps, which another callback may have restored."""
        self._batch = -1
        if self._step < 0 and self._writer is not None:
            self._step = self._written = int(self.model.optimizer.iterations.numpy())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the batches of this call, and write if it is time."""
        # A call of several steps has one end; Keras numbers the last one as if it were full.
        steps = self.params.get("steps")
        batch = min(batch, steps - 1) if steps else batch
        self._step += batch - self._batch
        self._batch = batch
        if self._every and self._step - self._written >= self._every:
            self._write()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write, so that TensorBoard sees it."""
        if self._step != self._written:
            self._write()
        if self._writer is not None:
            self._writer.flush()

    def on_train_end(self, logs: Any = None) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _write(self) -> None:
        if self._writer is not None:
            write_summaries(self._writer, self._step)
            self._written = self._step
