# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train a Keras model by `fit`, laid out over the devices of a mesh.

    python -m examples.keras_layouts --mesh "rows:2;cols:2" --rules "batch:rows;hidden:cols"

Devices are logical CPUs. Without rules the layouts are those that the search finds cheapest.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf

from tf_fuse import layout

FEATURES, HIDDEN, CLASSES = 32, 256, 10


def model_of() -> keras.Model:
    """Two layers, compiled as anywhere."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([
        keras.Input((FEATURES,)),
        keras.layers.Dense(HIDDEN, "relu", name="hidden"),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(CLASSES, name="out"),
    ])  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model


def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points, and which of some directions each is nearest to."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, FEATURES)).astype(np.float32)
    return x, (x @ rng.normal(size=(FEATURES, CLASSES))).argmax(1).astype(np.int32)


def main() -> None:
    """Trains, and prints the layouts."""
    parser = argparse.ArgumentParser(description="Trains a Keras model by fit, laid out.")
    parser.add_argument("--mesh", default="x:2", help='axes and sizes, as "rows:2;cols:2"')
    parser.add_argument("--rules", default="", help='dimensions and axes, as "hidden:x"')
    parser.add_argument("--batch", type=int, default=64, help="examples of a step")
    parser.add_argument("--examples", type=int, default=1000, help="examples of an epoch")
    parser.add_argument("--epochs", type=int, default=3, help="times over all examples")
    args = parser.parse_args()
    mesh = layout.Mesh.from_text(args.mesh)
    cpus = [tf.config.LogicalDeviceConfiguration()] * mesh.size
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    model = model_of()
    names = {model.get_layer("hidden"): {"kernel": [None, "hidden"]}, "x": ["batch", None]}
    how = {"mode": "propagate", "rules": args.rules, "dimensions": names} if args.rules else {}
    laid_out = layout.lay_out(model, mesh, **how)
    x, y = examples(args.examples)
    model.fit(x, y, args.batch, args.epochs, validation_split=0.2, verbose=2)
    for name, one in laid_out.plans["train"][0].variables.items():
        print(f"{name}: {one}")


if __name__ == "__main__":
    main()
