# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Datasets with seeds, whose passes have orders to be compared."""

import tensorflow as tf

ROWS = 40


def rows():
    return tf.data.Dataset.range(ROWS)


def passes(dataset, count):
    """The elements of each of some passes."""
    return [[one.tolist() for one in dataset.as_numpy_iterator()] for _ in range(count)]


def shuffled():
    return rows().shuffle(8, seed=3).batch(4)


def shuffled_once():
    return rows().shuffle(8, seed=3, reshuffle_each_iteration=False).batch(4)


def shuffled_inside():
    return rows().batch(10).flat_map(lambda x: tf.data.Dataset.from_tensors(x).unbatch().shuffle(
        5, seed=2)).batch(4)  # fmt: skip


def cached():
    return rows().shuffle(8, seed=3).cache().shuffle(3, seed=4).batch(4)


MAKERS = [shuffled, shuffled_once, shuffled_inside, cached]
