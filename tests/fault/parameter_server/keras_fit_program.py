# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A coordinator that trains with `fit` and `BackupAndRestore`, and may kill itself.

    keras_fit_program.py CLUSTER FOLDER EPOCH BATCH SAVE_FREQ DATA POINT

It kills itself (SIGKILL) after a batch of an epoch, if that is not negative, or at a point of its
second backup, if that is not empty.
"""

import contextlib
import json
import os
import subprocess
import sys

from tests import scripted
from tests.cluster.keras import interrupted_saves
from tests.fault import coordinator

EPOCHS, _ROWS, _BATCH = 4, 40, 8


def train(job, folder, callbacks=(), slow_layers=(), save_freq="epoch", data="arrays"):
    """Train a model with a backup in a folder; return its losses, step, weights and slots.

    Args:
      job: None for this process alone.
      folder: of the backup.
      callbacks: more of them.
      slow_layers: before the others.
      save_freq: of the backup.
      data: "arrays"; "function" for workers that read it, "repeated" for steps of an epoch of such.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(3)
    with job.strategy.scope() if job else contextlib.nullcontext():
        layers = [keras.layers.Dense(4, "relu"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input([6]), *slow_layers, *layers])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    x = np.random.default_rng(7).normal(size=[_ROWS, 6]).astype(np.float32)

    def batches(context):
        rows = tf.data.Dataset.from_tensor_slices((x, x.sum(1)))
        return rows.repeat(EPOCHS if data == "repeated" else 1).batch(_BATCH)

    made = []
    given = {
        "arrays": {"x": x, "y": x.sum(1), "batch_size": _BATCH, "shuffle": False},
        "function": {"x": batches},
        "repeated": {"x": batches, "steps_per_epoch": _ROWS // _BATCH},
    }[data]
    backup = keras.callbacks.BackupAndRestore(folder, save_freq, delete_checkpoint=False)
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: made.append(batch))
    history = model.fit(**given, epochs=EPOCHS, verbose=0, callbacks=[backup, note, *callbacks])
    return {
        "batches": made,
        "epochs": history.epoch,
        "history": coordinator.exact(history.history),
        "step": int(model.optimizer.iterations.numpy()),
        "variables": coordinator.exact(
            [keras.ops.convert_to_numpy(v) for v in (*model.variables, *model.optimizer.variables)]
        ),
    }


def steps_in_epoch(workers, data):
    """Return the steps of an epoch; of a function, each worker makes all batches."""
    return _ROWS // _BATCH * (workers if data == "function" else 1)


def run(cluster, folder, save_freq="epoch", data="arrays", point="", kill_in=-1, kill_after=2):
    """Run this program; return its status, and what it reported: "begun", "trained"."""
    with scripted.result_file(dict(os.environ)) as (env, path):
        args = map(str, (folder, kill_in, kill_after, save_freq, data, point))
        command = [sys.executable, __file__, json.dumps(cluster), *args]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        found = dict(json.loads(line) for line in path.read_text().splitlines())
    if done.returncode not in (0, -9):
        raise AssertionError(done.stderr[-4000:])
    return done.returncode, found


def _main(cluster, folder, kill_in, kill_after, save_freq, data, point):
    job = coordinator.Job("off", cluster=json.loads(cluster))
    import keras
    import tensorflow as tf

    import tf_fuse.keras  # noqa: F401  (has Keras run its steps on workers)

    tf.config.optimizer.set_experimental_options({"tf_fuse": True})

    class Kill(keras.callbacks.Callback):
        """Reports where training begins: epoch, batch, the optimizer's step; and may kill it."""

        def __init__(self):
            super().__init__()
            self.epoch = self.begun = None

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_begin(self, batch, logs=None):
            if self.begun is None:
                self.begun = [self.epoch, batch, int(self.model.optimizer.iterations.numpy())]
                coordinator.emit("begun", self.begun)

        def on_train_batch_end(self, batch, logs=None):
            if self.epoch == int(kill_in) and batch == int(kill_after):
                interrupted_saves.kill()

    if point:
        interrupted_saves.interrupt(point, 2)
    freq = save_freq if save_freq == "epoch" else int(save_freq)
    coordinator.finish({"trained": lambda: train(job, folder, [Kill()], save_freq=freq, data=data)})


if __name__ == "__main__":
    _main(*sys.argv[1:])
