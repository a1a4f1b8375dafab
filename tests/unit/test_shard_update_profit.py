# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where cutting an update pays, by the estimate."""

import pytest

from tf_fuse.shard_update.families import Family, Pack
from tf_fuse.shard_update.profit import leave_unprofitable, profit


def _pack(elements, operations, sinks, gradients=1):
    families, shapes = [], {}
    for i in range(gradients):
        members = [f"gradient_{i}", *(f"node_{i}_{j}:z:0" for j in range(operations - 1))]
        shapes.update(dict.fromkeys(members, (elements,)))
        family = Family(members[0], (elements,), members=set(members))
        family.sinks = [f"assign_{i}_{j}" for j in range(sinks)]
        families.append(family)
    return Pack("reduce", [f.root for f in families], families), shapes


def test_the_estimate_adds_up():
    pack, shapes = _pack(elements=1_000_000, operations=14, sinks=3)
    estimate = profit(pack, shapes, 4, 2)
    # 4 MB, 17 passes of 0.08 s per GB, half of them saved.
    assert estimate.saved == pytest.approx(0.08e-9 * 4e6 * 17 / 2)
    assert estimate.cost == pytest.approx(0.5e-3 + 30e-6 + 0.15e-9 * 4e6)
    assert str(estimate) == "it would save 2.72 ms and cost 1.13 ms"
    # Between four replicas, the same bytes travel as in an all-reduce, in the same time.
    estimate = profit(pack, shapes, 4, 4)
    assert estimate.saved == pytest.approx(0.08e-9 * 4e6 * 17 * 3 / 4)
    assert estimate.cost == pytest.approx(0.5e-3 + 30e-6)


def test_one_operation_leaves_less_to_save():
    pack, shapes = _pack(elements=1_000_000, operations=14, sinks=3)
    pack.families[0].weights, pack.families[0].slots = ["w"], ["m", "v"]
    # The gradient is read, and three variables are read and written.
    estimate = profit(pack, shapes, 4, 2, is_one=True)
    assert estimate.passes == 4_000_000 * 7
    assert estimate.saved == pytest.approx(0.08e-9 * 4e6 * 7 / 2)
    assert estimate.cost == profit(pack, shapes, 4, 2).cost
    # It saves less than it costs, as the whole chain does not.
    leave_unprofitable([pack], shapes, 4, 2, is_one=True)
    assert pack.reason == "no_profit"
    pack.reason = None
    leave_unprofitable([pack], shapes, 4, 2)
    assert pack.reason is None
    # Few operations are not more for that.
    pack, shapes = _pack(elements=1_000_000, operations=2, sinks=1)
    pack.families[0].weights = ["w"]
    assert profit(pack, shapes, 4, 2, is_one=True) == profit(pack, shapes, 4, 2)


def test_groups_save_less_and_exchange_once_more():
    pack, shapes = _pack(elements=1_000_000, operations=14, sinks=3)
    estimate = profit(pack, shapes, 4, 4, groups=2)
    assert estimate.saved == pytest.approx(0.08e-9 * 4e6 * 17 / 2)
    assert estimate.cost == pytest.approx(0.5e-3 + 30e-6 + 0.2e-3)
    pack, shapes = _pack(elements=100_000, operations=14, sinks=3)
    assert profit(pack, shapes, 4, 8).saved > profit(pack, shapes, 4, 8, groups=2).saved


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
    pack, shapes = _pack(elements, operations, sinks)
    leave_unprofitable([pack], shapes, 4, replicas)
    assert pack.reason == (None if pays else "no_profit")
    assert pays or pack.detail == str(profit(pack, shapes, 4, replicas))


def test_what_stays_whole_saves_nothing():
    pack, shapes = _pack(4_000_000, 14, 3, gradients=2)
    both = profit(pack, shapes, 4, 2).saved
    pack.families[1].leave("returned", "it")
    assert profit(pack, shapes, 4, 2).saved == pytest.approx(both / 2)


def test_an_update_in_a_branch_is_not_judged_from_outside():
    pack, shapes = _pack(10, 1, 0)
    pack.families[0].branches.add(("cond", 0))
    leave_unprofitable([pack], shapes, 4, 2)
    assert pack.reason is None
