# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train a Keras model on parameter servers: by `fit`, and by a loop of your own.

Without TF_CONFIG the program starts two workers and two servers on this machine. On a cluster,
start it in each task with that task's TF_CONFIG ("rpc_layer": "grpc+fuse"); the job of the
coordinator is "chief".
"""

import os
import tempfile

# Calls to lost tasks fail, so that the coordinator notices; set before TensorFlow is imported.
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")

import keras
import numpy as np
import tensorflow as tf

import tf_fuse.cluster
import tf_fuse.keras  # `fit` works under ParameterServerStrategy

WORDS = ["ale", "bread", "cheese", "dill", "eggs", "figs", "grapes"]
ROWS, BATCH, EPOCHS = 512, 32, 4


def find_cluster():
    """Return the cluster's resolver in the coordinator; other tasks serve until they are ended."""
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


def shopping_lists(lookup, context=None):
    """Return batches of three words' numbers, and whether cheese is among the words.

    Args:
      lookup: gives words numbers; a layer that the model does not have.
      context: of the worker, which gets its part of the rows; None for all.
    """
    rng = np.random.default_rng(1)
    words = np.array([rng.choice(WORDS, 3, replace=False) for _ in range(ROWS)])
    labels = (words == "cheese").any(1, keepdims=True).astype(np.float32)
    rows = tf.data.Dataset.from_tensor_slices((words, labels))
    if context is not None:
        rows = rows.shard(context.num_input_pipelines, context.input_pipeline_id)
    return rows.batch(BATCH).map(lambda words, label: (lookup(words), label))


def make_model():
    """Return a lookup of words and a compiled model; call it in the strategy's scope."""
    lookup = keras.layers.StringLookup(vocabulary=WORDS)
    ids = keras.Input([3], dtype="int64")
    mean = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(8, 16)(ids))
    model = keras.Model(ids, keras.layers.Dense(1, "sigmoid")(mean))
    model.compile(
        keras.optimizers.Adam(0.01),
        "binary_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=4,  # of `fit`: steps that a worker runs in one call
    )
    return lookup, model


def fit(strategy, folder):
    """Train by `fit`, which goes on from a backup if the coordinator is started again.

    Each worker reads its part of the rows, also to evaluate.
    """
    with strategy.scope():
        lookup, model = make_model()
    callbacks = [
        keras.callbacks.BackupAndRestore(f"{folder}/backup"),
        keras.callbacks.ModelCheckpoint(f"{folder}/best.keras", save_best_only=True),
        keras.callbacks.EarlyStopping(patience=2),
    ]

    def batches(context):
        return shopping_lists(lookup, context)

    model.fit(batches, epochs=EPOCHS, validation_data=batches, callbacks=callbacks, verbose=2)
    return model.evaluate(batches, return_dict=True, verbose=0)["accuracy"]


def loop(strategy):
    """Train by steps that a `ClusterCoordinator` gives to workers; each worker reads its own data.

    Steps return their losses. A metric of Keras 3 would lose additions: workers read it, add, and
    assign.
    """
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        lookup, model = make_model()

    def replica(ids, labels):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(ids, labels, model(ids, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def step(iterator):
        return strategy.run(replica, args=next(iterator))

    def batches():
        return shopping_lists(lookup).shuffle(16).repeat()

    iterator = iter(coordinator.create_per_worker_dataset(batches))
    for epoch in range(EPOCHS):
        steps = [coordinator.schedule(step, args=(iterator,)) for _ in range(ROWS // BATCH)]
        coordinator.join()
        print(f"epoch {epoch}: loss {np.mean([one.fetch() for one in steps]):.4f}")
    return model.evaluate(shopping_lists(lookup), return_dict=True, verbose=0)["accuracy"]


def main():
    """Train twice; print both accuracies."""
    tf.config.optimizer.set_experimental_options({"tf_fuse": True})
    # Both servers have a part of the embedding's table.
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(256, max_shards=2)
    strategy = tf.distribute.ParameterServerStrategy(find_cluster(), partitioner)
    with tempfile.TemporaryDirectory() as folder:
        print(f"accuracy after fit: {fit(strategy, folder):.3f}")
        print(f"accuracy after the loop: {loop(strategy):.3f}", flush=True)
    os._exit(0)  # A coordinator cannot leave its cluster.


if __name__ == "__main__":
    main()
