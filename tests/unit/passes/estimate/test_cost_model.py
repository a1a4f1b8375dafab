# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The option fuse_grouping: which of the tensors that may share a call do.

The estimates are read from the report; what they make of a split is computed here anew.
"""

import itertools
import random
from dataclasses import dataclass

import pytest
import tensorflow as tf

from tests.unit.passes.pass_testing import PS0, PS1, W0, partitions, source, trace, two, use
from tf_fuse.cli import example_graphs
from tf_fuse.explain import rewrite

_RPC_US = 60.0
_BYTES_PER_US = 1000.0
_SEEDS = range(40)


@dataclass(frozen=True)
class _Tensor:
    name: str
    bytes: float
    ready_us: float
    tail_us: float


def _end(parts):
    """When the step ends by Schrage's rule: of what is ready, the longest tail goes first."""
    waiting = [
        (max(t.ready_us for t in p), max(t.tail_us for t in p), sum(t.bytes for t in p), i)
        for i, p in enumerate(parts)
    ]
    now = free = end = 0.0
    while waiting:
        now = max(now, min(ready for ready, *_ in waiting))
        _, chosen = min((-w[1], w[3]) for w in waiting if w[0] <= now)
        ready, tail, size, _ = next(w for w in waiting if w[3] == chosen)
        waiting = [w for w in waiting if w[3] != chosen]
        free = max(free, ready) + _RPC_US + size / _BYTES_PER_US
        now += size / _BYTES_PER_US
        end = max(end, free + tail)
    return end


def _parts(result):
    """The tensors from PS0 to W0 as they travel: of each call, and one of those received singly."""

    def tensor(slot):
        e = slot.estimate
        assert e.HasField("bytes")
        return _Tensor(slot.tensor_name, e.bytes, e.ready_us, e.tail_us)

    report = result.report
    fused = [[tensor(slot) for slot in group.slots] for group in report.groups]
    return fused + [[tensor(s.slot)] for s in report.skips if s.reason == "split_off"]


def _layers(seed):
    """A chain of products on the worker, with weights that some of take long to compute."""
    rng = random.Random(seed)

    def build():
        with tf.device(W0):
            x = tf.compat.v1.placeholder(tf.float32, [rng.choice([8, 64, 512]), 256])
        for i in range(rng.randint(2, 7)):
            weights = source(PS0, f"w{i}", shape=(256, 256))
            with tf.device(PS0):
                for _ in range(rng.choice([0, 0, 0, 1, 3])):
                    weights = tf.matmul(weights, weights)
                bias = tf.identity(source(PS0, f"b{i}", shape=(256,)))
            with tf.device(W0):
                x = tf.matmul(x, weights) + bias

    return trace(build)


@pytest.mark.parametrize("seed", _SEEDS)
def test_no_other_division_ends_the_step_much_earlier(seed):
    graph = _layers(seed)
    parts = _parts(rewrite(graph, splitting="cost", rpc_us=_RPC_US, bytes_per_us=_BYTES_PER_US))
    tensors = sorted(itertools.chain(*parts), key=lambda t: t.name)

    def cost(division):
        return _end(division) + _RPC_US * len(division)

    others = [[tensors], [[t] for t in tensors]]
    # All runs of two orders: of what is needed first, and of what is there first.
    for key in (lambda t: -t.tail_us, lambda t: t.ready_us):
        order = sorted(tensors, key=key)
        for cuts in itertools.product([False, True], repeat=min(9, len(order) - 1)):
            division = [[order[0]]]
            for cut, tensor in zip(cuts, order[1:], strict=False):
                if cut:
                    division.append([tensor])
                else:
                    division[-1].append(tensor)
            division[-1] += order[1 + len(cuts) :]
            others.append(division)
    # What differs by less than a call is not told apart.
    assert cost(parts) <= min(map(cost, others)) + 2 * _RPC_US


def test_seeds_have_divisions_of_all_kinds():
    sizes = [len(_parts(rewrite(_layers(seed), splitting="cost"))) for seed in _SEEDS]
    assert 1 in sizes and max(sizes) >= 4


def test_each_layer_may_begin_when_its_own_weights_are_there():
    def build():
        with tf.device(W0):
            x = tf.compat.v1.placeholder(tf.float32, [512, 512])
        for i in range(3):
            weights = source(PS0, f"w{i}", shape=(512, 512))
            with tf.device(W0):
                x = tf.matmul(x, tf.identity(weights))

    def names(splitting):
        result = rewrite(trace(build), splitting=splitting, bytes_per_us=100.0)
        fused = [[s.sender_node for s in g.slots] for g in result.report.groups]
        return fused, {s.slot.sender_node: s.reason for s in result.report.skips}

    assert names("level") == ([["w0", "w1", "w2"]], {})
    # 10 ms for each tensor, 13 ms for each product.
    assert names("cost") == ([], {f"w{i}": "split_off" for i in range(3)})


_PS0, _W0 = "/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0"


@pytest.mark.parametrize(
    ("addresses", "splits"),
    [
        ({}, True),
        ({_PS0: "a:1", _W0: "b:1"}, True),
        ({_PS0: "a:1"}, True),  # Of the worker nothing is known.
        ({_PS0: "a:1", _W0: "a:2"}, False),
        # Names of the loopback.
        ({_PS0: "localhost:1", _W0: "127.0.0.1:2"}, False),
        ({_PS0: "[::1]:1", _W0: "127.1.2.3:2"}, False),
        ({_PS0: "[fe80::1]:1", _W0: "[fe80::2]:1"}, True),
        ({_PS0: "[fe80::1]:1", _W0: "[fe80::1]:2"}, False),
    ],
)
def test_groups_between_tasks_of_one_host_are_not_split(addresses, splits):
    graph = _layers(0)
    assert len(_parts(rewrite(graph, splitting="cost"))) > 1
    parts = _parts(rewrite(graph, splitting="cost", addresses=addresses))
    assert (len(parts) > 1) == splits


def test_small_tensors_stay_together():
    graph = example_graphs.build("features")
    level = rewrite(graph, splitting="level")
    cost = rewrite(graph, splitting="cost")
    assert len(cost.report.groups) <= len(level.report.groups)
    # The weights of the first layer are larger than what travels in a frame.
    assert {s.reason for s in cost.report.skips} <= {"large", "split_off"}
    assert sum(s.reason == "split_off" for s in cost.report.skips) <= 1


def test_large_tensors_do_not_hold_up_small_ones():
    def build():
        large = source(PS0, "large", shape=(1 << 18, 2))
        small = [source(PS0, f"small{i}") for i in range(3)]
        use(W0, "sum", *small)
        use(W0, "other", large)

    assert [len(g.slots) for g in rewrite(trace(build)).report.groups] == [4]
    result = rewrite(trace(build), splitting="cost")
    assert [[s.sender_node for s in g.slots] for g in result.report.groups] == [
        ["small0", "small1", "small2"]
    ]
    assert [(s.reason, s.slot.sender_node) for s in result.report.skips] == [("large", "large")]


def test_what_a_node_uses_travels_together():
    def build():
        a, b, c, d = (source(PS0, name) for name in "abcd")
        use(W0, "first", a, b)
        use(W0, "second", c, d)

    result = rewrite(trace(build), splitting="consumer")
    assert sorted([s.sender_node for s in g.slots] for g in result.report.groups) == [
        ["a", "b"],
        ["c", "d"],
    ]


def test_unknown_sizes_are_reported_as_such():
    def build():
        use(W0, "sum", source(PS0, "x", shape=None), source(PS0, "y", shape=(None, 3)))

    (group,) = rewrite(trace(build), splitting="cost").report.groups
    assert not any(slot.estimate.HasField("bytes") for slot in group.slots)


def test_level_needs_no_estimates():
    (group,) = rewrite(partitions(*two()), splitting="level").report.groups
    assert not any(slot.HasField("estimate") for slot in group.slots)


def test_the_same_groups_each_time():
    graph = example_graphs.build("dense")
    reports = {
        rewrite(graph, splitting="cost").report.SerializeToString(deterministic=True)
        for _ in range(3)
    }
    assert len(reports) == 1


def test_an_unknown_splitting():
    with pytest.raises(
        ValueError, match="splitting is 'level', 'consumer', 'cost' or 'dynamic', got 'all'"
    ):
        rewrite(partitions(*two()), splitting="all")


def test_sizes_are_those_of_each_partition():
    """Nodes of two servers with the same place in their graphs have constants of their own."""

    def build():
        for server, sizes in ((PS0, (2, 3)), (PS1, (50, 70))):
            with tf.device(server):
                filled = [
                    tf.fill([size], source(server, f"v{size}", shape=()), name=f"fill{size}")
                    for size in sizes
                ]
            with tf.device(W0):
                tf.concat([tf.identity(one) for one in filled], 0)

    result = rewrite(trace(build), splitting="cost", rpc_us=1000.0)
    slots = [slot for group in result.report.groups for slot in group.slots]
    sizes = {slot.sender_node: slot.estimate.bytes for slot in slots}
    assert sizes == {"fill2": 8, "fill3": 12, "fill50": 200, "fill70": 280}
