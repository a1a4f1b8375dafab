# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training under MultiWorkerMirroredStrategy by `grpc+fuse`, and the ops' shapes."""

import importlib.util

import pytest

from tests.cluster.collectives.ranks import Ranks

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_HAS_TF_KERAS = importlib.util.find_spec("tf_keras") is not None
_tf_keras = pytest.param(
    "tf_keras",
    marks=pytest.mark.skipif(not _HAS_TF_KERAS, reason="tf_keras (Keras 2) is not installed"),
)


@pytest.mark.parametrize("kind", [_tf_keras, "keras"])
def test_training_gives_the_same_bits(kind):
    results = {}
    for protocol in ("grpc", "grpc+fuse"):
        # The rpc_layer of TF_CONFIG; nothing else differs, but that tf_fuse is imported.
        with Ranks([protocol] * 2, server=False) as ranks:
            results[protocol] = ranks.values("train", kind=kind)
            counters = ranks.values("counters")
            if protocol != "grpc":
                assert all(c["direct_collectives"] > 0 for c in counters)
                assert all(c["collective_bytes_stock"] == 0 for c in counters)
    stock, ours = results.values()
    assert [result["replicas"] for result in stock] == [2, 2]
    assert stock[0]["weights"] == stock[1]["weights"]
    assert ours == stock


@pytest.fixture(scope="module")
def in_strategy():
    with Ranks(["grpc+fuse"] * 2, server=False) as ranks:
        yield ranks.values("in_strategy", elements=100003), ranks.values("shapes")


def test_collectives_without_a_group(in_strategy):
    assert in_strategy[0] == [{"right": True, "replicas": 2}] * 2


def test_shape_functions(in_strategy):
    for shapes in in_strategy[1]:
        assert shapes == {
            "shards": [[None], [0], [None]],
            "shards_of_one": [[6], [0], [None]],
            "gathered": [[2, 3], [0], None, [None, 4]],
            "vector_of_keys": "Shape must be rank 0 but is rank 1",
            "matrix_of_shards": "Shape must be rank 1 but is rank 2",
        }
