# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a Keras model on parameter servers: by `fit`, and by a loop of your own.

Without TF_CONFIG the program starts two workers and two servers on this machine. On a cluster,
start it in each task with that task's TF_CONFIG ("rpc_layer": "grpc+fuse"); the job of the
coordinator is "chief".
"""

import os
import tempfile

import keras
import numpy as np
import tensorflow as tf

import tf_fuse.cluster
import tf_fuse.keras  # `fit` works under ParameterServerStrategy

WORDS = ["ale", "bread", "cheese", "dill", "eggs", "figs", "grapes"]
ROWS, BATCH, EPOCHS = 512, 32, 4


def find_cluster():
    """Returns the cluster's resolver in the coordinator; other tasks serve until they are ended."""
    if "TF_CONFIG" not in os.environ:
        return tf_fuse.cluster.LocalCluster(workers=2, ps=2).resolver()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol=resolver.rpc_layer,
        ).join()
    return resolver


def shopping_lists():
    """Returns rows of three words, and whether each has cheese."""
    rng = np.random.default_rng(1)
    rows = np.array([rng.choice(WORDS, 3, replace=False) for _ in range(ROWS)])
    labels = (rows == "cheese").any(1, keepdims=True).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((rows, labels)).batch(BATCH)


def make_model():
    """Returns a compiled model; call it in the strategy's scope."""
    words = keras.Input([3], dtype="string")
    ids = keras.layers.StringLookup(vocabulary=WORDS)(words)
    mean = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(8, 16)(ids))
    model = keras.Model(words, keras.layers.Dense(1, "sigmoid")(mean))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    return model


def fit(strategy, folder):
    """Trains by `fit`, which goes on from a backup if the coordinator is started again."""
    with strategy.scope():
        model = make_model()
    callbacks = [
        keras.callbacks.BackupAndRestore(f"{folder}/backup"),
        keras.callbacks.ModelCheckpoint(f"{folder}/best.keras", save_best_only=True),
        keras.callbacks.EarlyStopping(patience=2),
    ]
    data = shopping_lists()
    model.fit(data, epochs=EPOCHS, validation_data=data, callbacks=callbacks, verbose=2)
    return model.evaluate(data, return_dict=True, verbose=0)["accuracy"]


def loop(strategy):
    """Train by steps that a `ClusterCoordinator` gives to workers; each worker reads its own data.

    Steps return their losses. A metric of Keras 3 would lose additions: workers read it, add, and
    assign.
    """
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = make_model()

    def replica(words, labels):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(words, labels, model(words, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def step(iterator):
        return strategy.run(replica, args=next(iterator))

    data = coordinator.create_per_worker_dataset(lambda: shopping_lists().shuffle(16).repeat())
    iterator = iter(data)
    for epoch in range(EPOCHS):
        steps = [coordinator.schedule(step, args=(iterator,)) for _ in range(ROWS // BATCH)]
        coordinator.join()
        print(f"epoch {epoch}: loss {np.mean([one.fetch() for one in steps]):.4f}")
    return model.evaluate(shopping_lists(), return_dict=True, verbose=0)["accuracy"]


def main():
    """Trains twice; prints both accuracies."""
    tf.config.optimizer.set_experimental_options({"tf_fuse": True})
    strategy = tf.distribute.ParameterServerStrategy(find_cluster())
    with tempfile.TemporaryDirectory() as folder:
        print(f"accuracy after fit: {fit(strategy, folder):.3f}")
        print(f"accuracy after the loop: {loop(strategy):.3f}", flush=True)
    os._exit(0)  # A coordinator cannot leave its cluster.


if __name__ == "__main__":
    main()
