# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Datasets that a function makes anew in each pass have the orders of one dataset's passes."""

import pytest

pytest.importorskip("keras")

import tensorflow as tf

from tests.unit.keras.data import seeded_datasets as seeded
from tf_fuse.keras.data.function_orders import PassOfFunction, key_of, number_of_pass
from tf_fuse.keras.data.orders import Passes


@pytest.fixture(autouse=True)
def _without_a_global_seed():
    """One that another test has set would give seeds to all datasets."""
    tf.random.set_seed(None)


def _read(make, number):
    function = tf.function(PassOfFunction(lambda context: make()), autograph=False)
    return [one.tolist() for one in function(None, number_of_pass(number)).as_numpy_iterator()]


def _shuffled_twice():
    return seeded.rows().shuffle(8, seed=3).map(lambda x: x + 1).shuffle(3, seed=3).batch(4)


def _sampled():
    evens, odds = (seeded.rows().filter(lambda x, i=i: x % 2 == i) for i in range(2))
    return tf.data.Dataset.sample_from_datasets([evens, odds], seed=5)


_MAKERS = [*seeded.MAKERS, _shuffled_twice, _sampled]


@pytest.mark.parametrize("make", _MAKERS, ids=lambda one: one.__name__)
def test_each_pass_has_the_order_of_one_process(make):
    expected = seeded.passes(make(), 4)
    assert [_read(make, number) for number in range(4)] == expected


def test_the_orders_differ():
    first, second, *_ = seeded.passes(seeded.shuffled(), 2)
    assert first != second


@pytest.mark.parametrize("seeds", [{}, {"seed": 3}])
def test_repeated_data(seeds):
    """A pass goes on with the generator; the next one begins with other seeds."""

    def make():
        return seeded.rows().shuffle(8, **seeds).repeat(3).batch(4)

    if seeds:
        assert [_read(make, 0)] == seeded.passes(make(), 1)
        assert _read(make, 1) == _read(make, 1)
    assert _read(make, 1) != _read(make, 0)
    rows = [row for batch in _read(make, 1) for row in batch]
    assert [sorted(rows[i : i + seeded.ROWS]) for i in (0, seeded.ROWS, 2 * seeded.ROWS)] == [
        [*range(seeded.ROWS)]
    ] * 3


def test_a_dataset_without_a_seed_has_another_order_each_time():
    def make():
        return seeded.rows().shuffle(seeded.ROWS)

    assert _read(make, 1) != _read(make, 1)
    assert sorted(_read(make, 1)) == [*range(seeded.ROWS)]


def test_the_global_seed_counts():
    """As in one process, where it is set before the dataset is made."""

    def make():
        tf.random.set_seed(7)
        return seeded.rows().shuffle(8, seed=3)

    assert [_read(make, number) for number in range(3)] == seeded.passes(make(), 3)


def test_what_counts_passes():
    class Reader:
        def read(self, context):
            return seeded.shuffled()

        def validate(self, context):
            return seeded.shuffled()

    class Unhashable:
        __hash__ = None

        def __call__(self, context):
            return seeded.shuffled()

    one, other = Reader(), Reader()
    assert key_of(one.read) is key_of(one.read)
    assert len({key_of(f) for f in (one.read, one.validate, other.read, other.validate)}) == 4
    assert Passes(key_of(Unhashable()), 3).begin() == 0
    assert key_of(seeded.shuffled) is seeded.shuffled
    assert repr(PassOfFunction(seeded.shuffled)) == repr(seeded.shuffled)
