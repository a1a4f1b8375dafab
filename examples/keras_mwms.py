# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train a Keras model by `fit` in several workers together (`MultiWorkerMirroredStrategy`).

Without TF_CONFIG the program starts two workers on this machine by `tf-fuse launch`. On a cluster,
start it in each task with its TF_CONFIG ("rpc_layer": "grpc+fuse") and the folder where worker 0
writes files.
"""

import os
import shutil
import subprocess
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

import tf_fuse.keras  # noqa: F401  (makes `fit` work in several processes)

ROWS, BATCH, EPOCHS = 512, 64, 6  # A batch is that of all workers together.


def pictures():
    """Return pictures of 8x8 points, and whether the line in each is upright."""
    rng = np.random.default_rng(1)
    x = rng.normal(0.0, 0.3, size=[ROWS, 8, 8, 1]).astype(np.float32)
    y = rng.integers(0, 2, ROWS)
    for picture, is_upright, place in zip(x, y, rng.integers(0, 8, ROWS), strict=True):
        picture[(slice(None), place) if is_upright else place] += 1.0
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def make_model():
    """Return a compiled model; call it in the strategy's scope."""
    layers = [
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(2),
    ]
    model = keras.Sequential([keras.Input([8, 8, 1]), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def work(folder):
    """Train as one of the workers, which goes on from a backup if all are started again.

    All workers make the same calls. The strategy gives each its part of every batch.
    """
    tf.config.optimizer.set_experimental_options({"tf_fuse": True})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make_model()
    worker = strategy.cluster_resolver.task_id
    is_chief = worker == 0
    # All workers save, since a variable's values may lie in other workers; the chief's files stay.
    checkpoints = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model), f"{folder}/checkpoints-{worker}", max_to_keep=2
    )
    callbacks = [
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: checkpoints.save()),
        keras.callbacks.BackupAndRestore(f"{folder}/backup"),
        keras.callbacks.ModelCheckpoint(f"{folder}/best.keras", save_best_only=True),
        keras.callbacks.EarlyStopping(patience=2),
    ]
    data = pictures()
    verbose = 2 if is_chief else 0
    model.fit(data, epochs=EPOCHS, validation_data=data, callbacks=callbacks, verbose=verbose)
    found = model.evaluate(data, return_dict=True, verbose=0)
    print(f"accuracy: {found['accuracy']:.4f}", flush=True)
    if not is_chief:
        shutil.rmtree(checkpoints.directory)
    else:
        best = keras.saving.load_model(f"{folder}/best.keras")
        found = best.evaluate(data, return_dict=True, verbose=0)
        print(f"accuracy of the saved model: {found['accuracy']:.4f}", flush=True)
        again = make_model()
        restored = tf.train.Checkpoint(model=again).restore(checkpoints.latest_checkpoint)
        restored.assert_existing_objects_matched()
        found = again.evaluate(data, return_dict=True, verbose=0)
        print(f"accuracy of the checkpoint: {found['accuracy']:.4f}", flush=True)


if __name__ == "__main__":
    if "TF_CONFIG" in os.environ:
        work(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as made:
            launch = [sys.executable, "-m", "tf_fuse", "launch", "--workers", "2"]
            sys.exit(subprocess.run([*launch, __file__, made], check=False).returncode)
