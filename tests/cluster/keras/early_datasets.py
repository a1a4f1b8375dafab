# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The script of test_early_datasets.py: `fit` with datasets that are older than the strategy."""

from __future__ import annotations

from typing import Any

from tests import scripted
from tests.scripted import emit


def run(spec: dict[str, Any]) -> None:
    """Train with each dataset, made before the strategy and after it."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tf_fuse.keras  # noqa: F401  (fit on parameter servers)

    x = np.random.default_rng(1).normal(size=(24, 4)).astype(np.float32)
    y = x.sum(axis=1, keepdims=True)

    def rows() -> Any:
        yield from zip(x, y, strict=True)

    def shuffled() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(24, seed=3).batch(4)

    def parts() -> tf.data.Dataset:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        return shuffled().with_options(options)

    def generated() -> tf.data.Dataset:
        signature = (tf.TensorSpec([4]), tf.TensorSpec([1]))
        return tf.data.Dataset.from_generator(rows, output_signature=signature).batch(4)

    def looked_up() -> tf.data.Dataset:
        keys = tf.range(24, dtype=tf.int64)
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, y[:, 0]), 0.0)
        numbers = tf.data.Dataset.range(24)
        return numbers.map(lambda i: (tf.gather(x, i), table.lookup(i)[None])).batch(4)

    makers = (shuffled, parts, generated, looked_up)
    keras.utils.set_random_seed(2)  # of the datasets' own seeds, too
    early = {maker.__name__: maker() for maker in makers}
    with scripted.cluster("plugin", 1, 1) as cluster:

        def train(dataset: Any) -> dict[str, Any]:
            keras.utils.set_random_seed(2)
            with cluster.strategy.scope():
                model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
                model.compile("adam", "mse")
            try:
                history = model.fit(dataset, epochs=3, verbose=0).history
                found = [*history["loss"], model.evaluate(dataset, verbose=0)]
                return {"values": [float(one).hex() for one in found]}
            except ValueError as error:
                return {"error": str(error)}

        for maker in makers:
            name = maker.__name__
            emit(name, early=train(early[name]), late=train(maker()))


scripted.main(run)
