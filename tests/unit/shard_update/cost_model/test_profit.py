# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where sharding an update pays, by the estimate."""

from dataclasses import replace

import pytest

from tf_fuse.shard_update.cost_model.profit import leave_unprofitable, profit
from tf_fuse.shard_update.plan import Bucket, UpdateCluster


def _bucket(elements, operations, sinks, gradients=1):
    clusters, shapes = [], {}
    for i in range(gradients):
        members = [f"gradient_{i}", *(f"node_{i}_{j}:z:0" for j in range(operations - 1))]
        shapes.update(dict.fromkeys(members, (elements,)))
        assigns = tuple(f"assign_{i}_{j}" for j in range(sinks))
        clusters.append(UpdateCluster(members[0], (elements,), frozenset(members), sinks=assigns))
    return Bucket("reduce", [f.root for f in clusters], clusters), shapes


def test_the_estimate_adds_up():
    bucket, shapes = _bucket(elements=1_000_000, operations=14, sinks=3)
    estimate = profit(bucket, shapes, 4, 2)
    # 4 MB, 17 passes of 0.08 s per GB, half of them saved.
    assert estimate.saved == pytest.approx(0.08e-9 * 4e6 * 17 / 2)
    assert estimate.cost == pytest.approx(0.5e-3 + 30e-6 + 0.15e-9 * 4e6)
    assert str(estimate) == "it would save 2.72 ms and cost 1.13 ms"
    # Between four replicas, the same bytes travel as in an all-reduce, in the same time.
    estimate = profit(bucket, shapes, 4, 4)
    assert estimate.saved == pytest.approx(0.08e-9 * 4e6 * 17 * 3 / 4)
    assert estimate.cost == pytest.approx(0.5e-3 + 30e-6)


def test_one_operation_leaves_less_to_save():
    bucket, shapes = _bucket(elements=1_000_000, operations=14, sinks=3)
    cluster = replace(bucket.clusters[0], weights=("w",), slots=("m", "v"))
    bucket = bucket.with_cluster(0, cluster)
    # The gradient is read, and three variables are read and written.
    estimate = profit(bucket, shapes, 4, 2, is_one=True)
    assert estimate.passes == 4_000_000 * 7
    assert estimate.saved == pytest.approx(0.08e-9 * 4e6 * 7 / 2)
    assert estimate.cost == profit(bucket, shapes, 4, 2).cost
    # It saves less than it costs, as the whole chain does not.
    assert leave_unprofitable(bucket, shapes, 4, 2, is_one=True).reason == "no_profit"
    assert leave_unprofitable(bucket, shapes, 4, 2).reason is None
    # Few operations are not more for that.
    bucket, shapes = _bucket(elements=1_000_000, operations=2, sinks=1)
    bucket = bucket.with_cluster(0, replace(bucket.clusters[0], weights=("w",)))
    assert profit(bucket, shapes, 4, 2, is_one=True) == profit(bucket, shapes, 4, 2)


def test_groups_save_less_and_exchange_once_more():
    bucket, shapes = _bucket(elements=1_000_000, operations=14, sinks=3)
    estimate = profit(bucket, shapes, 4, 4, groups=2)
    assert estimate.saved == pytest.approx(0.08e-9 * 4e6 * 17 / 2)
    assert estimate.cost == pytest.approx(0.5e-3 + 30e-6 + 0.2e-3)
    bucket, shapes = _bucket(elements=100_000, operations=14, sinks=3)
    assert profit(bucket, shapes, 4, 8).saved > profit(bucket, shapes, 4, 8, groups=2).saved


@pytest.mark.parametrize(
    ("elements", "operations", "sinks", "replicas", "pays"),
    [
        (4_000_000, 14, 3, 2, True),  # Adam
        (4_000_000, 2, 1, 2, False),  # plain SGD: less than the wire costs
        (4_000_000, 2, 1, 4, True),
        (10_000, 14, 3, 2, False),  # small
        (10_000, 14, 3, 8, False),
    ],
)
def test_what_does_not_pay_is_left_alone(elements, operations, sinks, replicas, pays):
    bucket, shapes = _bucket(elements, operations, sinks)
    bucket = leave_unprofitable(bucket, shapes, 4, replicas)
    assert bucket.reason == (None if pays else "no_profit")
    assert pays or bucket.detail == str(profit(bucket, shapes, 4, replicas))


def test_what_stays_whole_saves_nothing():
    bucket, shapes = _bucket(4_000_000, 14, 3, gradients=2)
    both = profit(bucket, shapes, 4, 2).saved
    bucket = bucket.with_cluster(1, bucket.clusters[1].leave("returned", "it"))
    assert profit(bucket, shapes, 4, 2).saved == pytest.approx(both / 2)


def test_an_update_in_a_branch_is_not_judged_from_outside():
    bucket, shapes = _bucket(10, 1, 0)
    cluster = replace(bucket.clusters[0], branches=frozenset({("cond", 0)}))
    bucket = leave_unprofitable(bucket.with_cluster(0, cluster), shapes, 4, 2)
    assert (bucket.reason, bucket.profit) == (None, None)
