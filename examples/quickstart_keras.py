# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train a Keras model with `fit` on two replicas, without and with sharded updates.

The replicas are two logical CPUs of this process. The losses are the same to the last bit.
"""

import time

import keras
import numpy as np
import tensorflow as tf

import tf_fuse

DEVICES = ["CPU:0", "CPU:1"]
WIDTH, BATCH, STEPS = 1024, 64, 10

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
data = np.random.default_rng(1).normal(size=[BATCH * STEPS, WIDTH]).astype(np.float32)


def fit():
    """Train the model; return the steps per second and the loss."""
    keras.utils.set_random_seed(1)
    strategy = tf.distribute.MirroredStrategy(DEVICES)
    with strategy.scope():
        layers = [keras.layers.Dense(WIDTH, "relu") for _ in range(4)]
        model = keras.Sequential([keras.Input([WIDTH]), *layers])
        model.compile(keras.optimizers.Adam(0.001), "mse")
    model.fit(data, data, BATCH, shuffle=False, verbose=0)  # traces the step
    began = time.perf_counter()
    history = model.fit(data, data, BATCH, shuffle=False, verbose=0)
    return STEPS / (time.perf_counter() - began), history.history["loss"][-1]


stock, stock_loss = fit()
tf.config.optimizer.set_experimental_options({"tf_fuse": True})
sharded, loss = fit()
print(f"steps/s: {stock:.1f} without, {sharded:.1f} with tf_fuse: {sharded / stock:.1f} times")
print(f"loss: {stock_loss:.9f} without, {loss:.9f} with tf_fuse")
tf_fuse.print_weight_update_report()
