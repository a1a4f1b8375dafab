# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whatever writes a file of a model waits for the steps that run on workers."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("keras")

import keras

import tf_fuse.keras  # noqa: F401  (extends what writes files)
from tf_fuse.keras import steps


class _Steps:
    """Change a model's weight until they are waited for."""

    def __init__(self, weight):
        self.weight = weight

    def is_busy(self):
        return True

    def settle(self):
        self.weight.assign([[2.0]])

    def count_begun(self, variable):
        """Nothing: it has no metrics."""


_WAYS = {
    "model.save": ("whole.keras", lambda model, path: model.save(path)),
    "model.save, h5": ("whole.h5", lambda model, path: model.save(path)),
    "saving.save_model": ("saved.keras", keras.saving.save_model),
    "models.save_model": ("saved.keras", keras.models.save_model),
    "model.save_weights": ("a.weights.h5", lambda model, path: model.save_weights(path)),
    "saving.save_weights": ("b.weights.h5", keras.saving.save_weights),
    "a part": ("part.keras", lambda model, path: model.layers[0].save(path)),
    "model.export": ("export", lambda model, path: model.export(path, verbose=False)),
    "saved_model.save": ("saved", tf.saved_model.save),
    "Checkpoint.save": ("c", lambda model, path: tf.train.Checkpoint(model=model).save(path)),
    "Checkpoint.write": ("d", lambda model, path: tf.train.Checkpoint(model=model).write(path)),
    "CheckpointManager": (
        "managed",
        lambda model, path: tf.train.CheckpointManager(
            tf.train.Checkpoint(model=model), path, max_to_keep=1
        ).save(),
    ),
    "state tree": ("", lambda model, path: model.get_state_tree("numpy_array")),
}


@pytest.mark.parametrize("way", _WAYS)
def test_a_file_has_the_values_between_two_steps(way, tmp_path, monkeypatch):
    part = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
    model = keras.Sequential([keras.Input([1]), part])
    model.compile("sgd", "mse")
    part.weights[0].assign([[1.0]])
    monkeypatch.setattr(steps, "_all", [_Steps(part.weights[0])])
    name, write = _WAYS[way]
    path = str(tmp_path / name)
    written = write(model, path)
    assert _weight(way, path, written, model) == 2.0


def _weight(way, path, written, model):
    """Read the weight from what was written; the model has another one."""
    model.set_weights([np.array([[3.0]])])
    if way == "state tree":
        return float(np.ravel(keras.tree.flatten(written["trainable_variables"])[0])[0])
    if path.endswith(".weights.h5"):
        model.load_weights(path)
    elif path.endswith(("keras", "h5")):
        model = keras.saving.load_model(path, compile=False)
    elif way == "model.export":
        loaded = tf.saved_model.load(path)
        return float(loaded.serve(tf.ones([1, 1]))[0, 0])
    elif way == "saved_model.save":
        loaded = tf.saved_model.load(path)
        return float(loaded.signatures["serving_default"](tf.ones([1, 1])).popitem()[1][0, 0])
    else:
        tf.train.Checkpoint(model=model).read(written).expect_partial()
    return float(model.weights[0].numpy()[0, 0])
