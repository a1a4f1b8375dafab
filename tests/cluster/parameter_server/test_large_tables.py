# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables that no single process should have whole: how they are made and restored."""

import sys
from pathlib import Path

import pytest

from tests.fault import coordinator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_SERVERS = 2
_ROWS, _DIM = 40_000, 16  # 2.5 MB


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return coordinator.run(__file__, tmp_path_factory.mktemp("checkpoint"))


def test_pieces_are_made_on_their_servers(cases):
    case = cases["made"]
    assert case["pieces"] == _SERVERS
    assert case["eager_calls"] == 0
    assert case["value"] == case["whole"]


def test_a_checkpoint_is_restored_in_parts(cases):
    case = cases["restored"]
    # A piece and both its slots, 1.25 MB each on each server; and what is small.
    assert case["parts"] == 4
    assert case["digests"] == case["saved"] != case["before"]
    assert case["log"][-1].startswith("restored 7 of 7 MiB of ")


def test_a_small_checkpoint_is_restored_at_once(cases):
    assert cases["at_once"]["parts"] == 1
    assert cases["at_once"]["digests"] == cases["restored"]["saved"]


def _main(folder):
    import logging

    import keras
    import numpy as np
    import tensorflow as tf

    from benchmarks.large_tables import samples
    from tests.fault import everything
    from tf_fuse._tensorflow.variables import checkpoint_saver
    from tf_fuse.parameter_server.partitioning import restore_in_parts

    job = coordinator.Job("off", 1, _SERVERS)
    everything.switch(True)
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(_SERVERS)
    strategy = tf.distribute.ParameterServerStrategy(job.cluster.resolver(), partitioner)
    eager_calls = []
    initializer = keras.initializers.RandomNormal(seed=3)
    stock = keras.initializers.RandomNormal.__call__

    def call(self, shape, dtype=None):
        if tf.executing_eagerly():
            eager_calls.append(shape)
        return stock(self, shape, dtype)

    def build():
        with strategy.scope():
            ids = keras.Input([3], dtype="int32")
            table = keras.layers.Embedding(_ROWS, _DIM, initializer, name="table")
            model = keras.Model(ids, table(ids))
            optimizer = keras.optimizers.Adam(0.1)
            optimizer.build(model.trainable_variables)
        return model, optimizer

    def values(model):
        return np.concatenate([one.numpy() for one in samples.pieces_of(model.weights[0])])

    def made():
        keras.initializers.RandomNormal.__call__ = call
        model, _ = build()
        keras.initializers.RandomNormal.__call__ = stock
        whole = initializer((_ROWS, _DIM), "float32").numpy()
        return {
            "pieces": len(samples.pieces_of(model.weights[0])),
            "eager_calls": len(eager_calls),
            "value": coordinator.exact(values(model)[:: _ROWS // 50]),
            "whole": coordinator.exact(whole[:: _ROWS // 50]),
        }

    parts, log = [], []
    part = checkpoint_saver.part

    def noted(*args):
        parts.append(part(*args))
        return parts[-1]

    checkpoint_saver.part = noted

    class Handler(logging.Handler):
        def emit(self, record):
            log.append(record.getMessage())

    logger = logging.getLogger("tf_fuse")
    logger.addHandler(Handler())
    logger.setLevel(logging.INFO)
    path = str(folder / "saved")

    def digests(model, optimizer):
        return samples.digests(model, optimizer, 32)["digests"]

    def restore(limit):
        restore_in_parts.PART_BYTES = limit
        model, optimizer = build()
        before = digests(model, optimizer)
        parts.clear()
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
        checkpoint.read(path).assert_consumed()
        return {
            "before": before,
            "digests": digests(model, optimizer),
            "parts": len(parts) or 1,
            "log": [one for one in log if one.startswith("restored ")],
        }

    def restored():
        model, optimizer = build()
        for index, one in enumerate([*model.variables, *optimizer.variables]):
            for piece in samples.pieces_of(one):
                piece.assign(tf.cast(tf.fill(piece.shape, index + 1), piece.dtype))
        tf.train.Checkpoint(model=model, optimizer=optimizer).write(path)
        return {**restore(1 << 20), "saved": digests(model, optimizer)}

    def at_once():
        return restore(1 << 30)

    coordinator.finish({"made": made, "restored": restored, "at_once": at_once})


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
