# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The script of test_exports.py: trains a little, and writes a checkpoint and a SavedModel.

{"mode": "stock" or "plugin", "folder": where to write, "restore": a checkpoint to begin with}.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests import scripted
from tests.scripted import emit

_STEPS = 3


def run(spec: dict[str, Any]) -> None:
    """Trains on one worker and two servers."""
    with scripted.cluster(spec["mode"], 1, 2) as cluster:
        import tensorflow as tf

        if spec["mode"] != "stock":
            scripted.set_fuse_recv(True)
        with cluster.strategy.scope():
            model = tf.Module()
            model.tables = [tf.Variable(tf.reshape(tf.range(12.0), [6, 2])) for _ in range(6)]
            model.steps = tf.Variable(0, dtype=tf.int64)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def predict(ids):
            return tf.add_n([tf.gather(table, ids) * 0.5 for table in model.tables])

        @tf.function
        def step(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(predict(ids) ** 2)
            gradients = tape.gradient(loss, model.tables)
            for table, gradient in zip(model.tables, gradients, strict=True):
                table.scatter_sub(tf.IndexedSlices(gradient.values / 64.0, gradient.indices))
            model.steps.assign_add(1)
            return loss

        model.predict = predict
        checkpoint = tf.train.Checkpoint(model=model)
        if spec.get("restore"):
            checkpoint.read(spec["restore"]).assert_consumed()
        worker = scripted.device("worker:0")
        ids = tf.constant([0, 2, 5], tf.int64)

        def train():
            with tf.device(worker):
                return [float(step(ids)) for _ in range(_STEPS)]

        before = scripted.metrics() if spec["mode"] != "stock" else {}
        losses = train()
        counted = scripted.difference(before, scripted.metrics()) if before else {}
        with tf.device(worker):
            predicted = predict(ids).numpy()
        checkpoint.write(f"{spec['folder']}/checkpoint")
        tf.saved_model.save(model, f"{spec['folder']}/model", signatures=predict)
        emit(
            "trained",
            losses=losses,
            predicted=np.asarray(predicted).tolist(),
            fused=sum(task.get("fused_rpcs", 0) for task in counted.values()),
        )


scripted.main(run)
