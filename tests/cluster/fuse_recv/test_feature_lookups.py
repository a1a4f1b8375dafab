# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sparse and ragged features of several tables of a server, with do_fuse_recv and nothing else."""

import sys

import pytest

from tests.fault import coordinator
from tests.slow_cases import slow_but

pytestmark = pytest.mark.cluster
_WORKER = "/job:worker/replica:0/task:0"
_TABLES, _ROWS, _IDS, _STEPS = 8, 50, 32, 3  # Four tables are on each of two servers.
_SPLITS = [0, 5, 5, 20, _IDS]  # Of four examples; the second one has no ids.
_LOOKUPS = [
    f"{look_up} {combiner}{weights}"
    for look_up in ("sparse", "safe")
    for combiner in ("sum", "mean", "sqrtn")
    for weights in ("", " with weights")
]
_RAGGED = ["ragged rows", "ragged sum", "ragged mean", "ragged sparse"]
# Each combiner, each function and each kind of weights is in another one, too.
_SLOW = [
    "sparse sum with weights", "sparse mean", "sparse sqrtn with weights", "safe sum",
    "safe mean with weights", "safe sqrtn", "safe sum with weights", "ragged sum",
]  # fmt: skip


@pytest.fixture(scope="module")
def cases():
    return coordinator.Cases(__file__, "job", slow=_SLOW)


@pytest.mark.parametrize(
    "lookup", slow_but([*_LOOKUPS, *_RAGGED], lambda lookup: lookup not in _SLOW)
)
def test_values_are_those_of_stock(cases, lookup):
    case = cases[lookup]
    assert "raised" not in case, case
    assert case["on"]["values"] == case["stock"]["values"]
    assert case["stock"]["groups"] == []
    # Each server's lookups are one operation, and its updates are one, too.
    for op in ("ResourceGather", "ResourceScatterSub"):
        found = [group[op] for group in case["on"]["groups"] if op in group]
        assert found == [_TABLES // 2] * 2, case["on"]["groups"]


def _main():
    import numpy as np
    import tensorflow as tf

    import tf_fuse

    job = coordinator.Job("off", 1, 2)
    examples = np.repeat(np.arange(len(_SPLITS) - 1), np.diff(_SPLITS))
    places = np.stack([examples, np.arange(_IDS)], axis=1)
    numbers = np.linspace(0.25, 2, _IDS).astype(np.float32)

    def look_up(name, table, ids):
        kind, combiner, *with_weights = name.split()
        if kind == "ragged":
            features = tf.RaggedTensor.from_row_splits(ids, _SPLITS)
            if combiner == "sparse":
                return tf.nn.embedding_lookup_sparse(table, features.to_sparse(), None)
            rows = tf.nn.embedding_lookup(table, features)
            if combiner == "rows":
                return rows.to_tensor()
            # (No rows have no mean.)
            return tf.reduce_sum(rows, 1) if combiner == "sum" else tf.reduce_mean(rows[2:], 1)
        shape = [len(_SPLITS) - 1, _IDS]
        features = tf.SparseTensor(places, ids, shape)
        weights = tf.SparseTensor(places, numbers, shape) if with_weights else None
        of_kind = "safe_embedding_lookup_sparse" if kind == "safe" else "embedding_lookup_sparse"
        return getattr(tf.nn, of_kind)(table, features, weights, combiner=combiner)

    def trained(name, on):
        tf.config.optimizer.set_experimental_options({"do_fuse_recv": on, "fuse_grouping": "level"})
        rng = np.random.default_rng(1)
        tables = job.variables(
            [rng.normal(size=[_ROWS, 3 + i]).astype(np.float32) for i in range(_TABLES)]
        )

        @tf.function(autograph=False)
        def step(ids):
            with tf.GradientTape() as tape:
                found = [look_up(name, t, ids[i]) for i, t in enumerate(tables)]
                loss = tf.reduce_sum(tf.stack([tf.reduce_sum(tf.tanh(one) ** 2) for one in found]))
            for table, gradient in zip(tables, tape.gradient(loss, tables), strict=True):
                table.scatter_sub(tf.IndexedSlices(gradient.values * 0.1, gradient.indices))
            return loss, found

        results = [
            job.call(step, (rng.integers(_ROWS, size=[_TABLES, _IDS]),)) for _ in range(_STEPS)
        ]
        report = tf_fuse.cluster_reports()[_WORKER][-1] if on else {}
        return {
            "values": coordinator.exact([results, [one.numpy() for one in tables]]),
            "groups": [
                one["operations"]
                for one in report.get("operation_groups", [])
                if "/job:ps/" in one["device"]
            ],
        }

    def compared(name):
        return {"stock": trained(name, False), "on": trained(name, True)}

    cases = {name: lambda name=name: compared(name) for name in [*_LOOKUPS, *_RAGGED]}
    coordinator.finish(cases, _SLOW)


if __name__ == "__main__":
    assert sys.argv[1] == "job"
    _main()
