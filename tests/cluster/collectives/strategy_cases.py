# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases in the replicas of a strategy: training, and collectives without a group."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.collectives.member import Base
from tests.cluster.collectives.values import digest, values


class StrategyCases(Base):
    """Cases of `cases.Member`."""

    def mirrored(self, elements: int, calls: int) -> dict[str, Any]:
        """The collectives without a group, in the replicas of a MirroredStrategy."""
        from tf_fuse import collectives

        os.environ.pop("TF_CONFIG", None)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(self.devices)])
        n = self.devices
        small = [values("float32", elements, r, "small") for r in range(n)]
        total = sum(small)

        def replica() -> Any:
            me = tf.distribute.get_replica_context().replica_id_in_sync_group
            x = tf.gather(tf.constant(np.stack(small)), me)
            shards = collectives.reduce_scatter([x, 2.0 * x])
            whole = collectives.all_gather(shards, [[elements], [elements]])
            return shards[0], whole[0], whole[1], collectives.all_reduce(3.0 * x)

        step = tf.function(lambda: strategy.run(replica), autograph=False)
        right = True
        for _ in range(calls):
            results = [strategy.experimental_local_results(one) for one in step()]
            for r in range(n):
                begin, end = collectives.shard_range(elements, 4, n, r)
                wanted = total[begin:end], total, 2 * total, 3 * total
                right = right and all(
                    np.array_equal(got[r].numpy(), want)
                    for got, want in zip(results, wanted, strict=True)
                )
        return {"replicas": strategy.num_replicas_in_sync, "right": right}

    def train(self, kind: str) -> dict[str, Any]:
        """Trains under MultiWorkerMirroredStrategy (from TF_CONFIG): the weights, and losses.

        Args:
          kind: "tf_keras" for its `fit`, "keras" for a loop of one's own with Keras 3.
        """
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        rng = np.random.default_rng(7)
        x = rng.standard_normal([64, 10]).astype(np.float32)
        y = (x @ rng.standard_normal([10, 1]) + 0.1).astype(np.float32)
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=True)
        if kind == "tf_keras":
            import tf_keras

            with strategy.scope():
                model = self._model(tf_keras)
                model.compile(optimizer=tf_keras.optimizers.Adam(0.05), loss="mse")
            history = model.fit(data, epochs=2, shuffle=False, verbose=0)
            losses = history.history["loss"]
        else:
            losses = self._loop(strategy, data)
            model = self._trained
        return {"weights": [digest(w) for w in model.get_weights()], "losses": repr(losses),
                "replicas": strategy.num_replicas_in_sync}  # fmt: skip

    def _model(self, keras: Any) -> Any:
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Dense(n, activation="tanh") for n in (700, 50)]
        return keras.Sequential([keras.Input([10]), *layers, keras.layers.Dense(1)])

    def _loop(self, strategy: Any, data: Any) -> list[float]:
        import keras

        with strategy.scope():
            model = self._model(keras)
            optimizer = keras.optimizers.Adam(0.05)
            optimizer.build(model.trainable_variables)

        def replica(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((model(x, training=True) - y) ** 2) / 16.0
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        @tf.function
        def step(x: Any, y: Any) -> Any:
            losses = strategy.run(replica, args=(x, y))
            return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

        self._trained = model
        distributed = strategy.experimental_distribute_dataset(data)
        return [float(step(x, y)) for _ in range(2) for x, y in distributed]

    def in_strategy(self, elements: int) -> dict[str, Any]:
        """The collectives without a group, inside of MultiWorkerMirroredStrategy.run."""
        from tf_fuse import collectives

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        small = [values("float32", elements, r, "small") for r in range(self.ranks)]
        total = sum(small)
        x = tf.constant(small[self.rank])

        def replica() -> Any:
            (shard,) = collectives.reduce_scatter([x])
            return shard, collectives.all_gather(shard, x.shape), collectives.all_reduce(2.0 * x)

        step = tf.function(lambda: strategy.run(replica), autograph=False)
        begin, end = collectives.shard_range(elements, 4, self.ranks, self.rank)
        right = True
        for _ in range(3):
            got = step()
            wanted = total[begin:end], total, 2 * total
            right = right and all(
                np.array_equal(a.numpy(), b) for a, b in zip(got, wanted, strict=True)
            )
        return {"right": right, "replicas": strategy.num_replicas_in_sync}
