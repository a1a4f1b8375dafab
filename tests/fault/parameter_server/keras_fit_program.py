# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A coordinator that trains with `fit` and `BackupAndRestore`, and may kill itself.

    keras_fit_program.py CLUSTER FOLDER EPOCH

It kills itself (SIGKILL) in the middle of an epoch, if that is not negative.
"""

import contextlib
import json
import os
import signal
import sys

from tests.fault import coordinator

EPOCHS, _ROWS, _BATCH = 4, 40, 8


def train(job, folder, callbacks=(), slow_layers=()):
    """Train a model with a backup in a folder; return its losses, step, weights and slots.

    Args:
      job: None for this process alone.
      folder: of the backup.
      callbacks: more of them.
      slow_layers: before the others.
    """
    import keras
    import numpy as np

    keras.utils.set_random_seed(3)
    with job.strategy.scope() if job else contextlib.nullcontext():
        layers = [keras.layers.Dense(4, "relu"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input([6]), *slow_layers, *layers])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    x = np.random.default_rng(7).normal(size=[_ROWS, 6]).astype(np.float32)

    backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    history = model.fit(x, x.sum(1), batch_size=_BATCH, epochs=EPOCHS, shuffle=False, verbose=0,
                        callbacks=[backup, *callbacks])  # fmt: skip
    return {
        "epochs": history.epoch,
        "history": coordinator.exact(history.history),
        "step": int(model.optimizer.iterations.numpy()),
        "variables": coordinator.exact(
            [keras.ops.convert_to_numpy(v) for v in (*model.variables, *model.optimizer.variables)]
        ),
    }


def _main(cluster, folder, kill_in):
    job = coordinator.Job("off", cluster=json.loads(cluster))
    import keras
    import tensorflow as tf

    import tf_fuse.keras  # noqa: F401  (has Keras run its steps on workers)

    tf.config.optimizer.set_experimental_options({"tf_fuse": True})

    class Kill(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.epoch = None

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            if self.epoch == int(kill_in) and batch == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    coordinator.finish({"trained": lambda: train(job, folder, [Kill()])})


if __name__ == "__main__":
    _main(*sys.argv[1:])
