# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sums of what devices hold."""

from __future__ import annotations

import itertools

import tensorflow as tf

from tf_fuse.layout.execution.communication.sums import total


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
