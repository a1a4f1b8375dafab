# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sums of what devices hold."""

from __future__ import annotations

import itertools

import tensorflow as tf

from tf_fuse.layout.execution.communication.sums import total
from tf_fuse.layout.relayout.steps import chain_of_sums


def test_a_sum_has_the_same_bits_whichever_terms_others_read():
    """AddN takes the memory of one that nobody else reads, and begins with it."""
    x = tf.constant([[1.0] * 64, [1e8] * 64, [-1e8] * 64])

    def added(held):
        @tf.function(autograph=False)
        def run(x):
            terms = [tf.reverse(one, [0]) for one in tf.unstack(x)]
            return total(terms), [terms[i] for i in held]

        return run(x)[0].numpy().tolist()

    subsets = [held for n in range(4) for held in itertools.combinations(range(3), n)]
    assert [added(held) for held in subsets] == [[0.0] * 64] * 8


def test_a_sum_runs_the_operations_that_plans_charge():
    """A Snapshot moves nothing: it takes the sum's memory."""
    for members in range(1, 6):
        with tf.Graph().as_default() as graph:
            terms = [tf.compat.v1.placeholder(tf.float32, [8]) for _ in range(members)]
            total(terms)
        kinds = [one.type for one in graph.get_operations() if one.type != "Placeholder"]
        tensors = 3 * kinds.count("AddV2")
        assert chain_of_sums(members) == (len(kinds), tensors)
        assert set(kinds) <= {"AddV2", "Snapshot"}
