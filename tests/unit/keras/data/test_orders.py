# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parts of a dataset that workers read have one order, that of one process where it has one."""

import types

import pytest

pytest.importorskip("keras")

import tensorflow as tf

from tests.unit.keras.data import seeded_datasets as seeded
from tf_fuse.keras.data import parts
from tf_fuse.keras.data.orders import Passes

_POLICIES = tf.data.experimental.AutoShardPolicy


@pytest.fixture(autouse=True)
def _without_a_global_seed():
    """One that another test has set would give seeds to all datasets."""
    tf.random.set_seed(None)


def _part(part, number, worker=0, workers=1):
    """The dataset of a worker in a pass."""
    context = types.SimpleNamespace(num_input_pipelines=workers, input_pipeline_id=worker)
    make = tf.function(lambda graph: part(context, graph), autograph=False)
    return make(part.order.serialized(number))


def _read(*args):
    return [one.tolist() for one in _part(*args).as_numpy_iterator()]


def _shuffled_twice():
    return (
        seeded.rows().shuffle(8, seed=3).map(lambda x: x + 1).shuffle(3, seed=5, name="b").batch(4)
    )


@pytest.mark.parametrize("make", [*seeded.MAKERS, _shuffled_twice])
def test_each_pass_has_the_order_of_one_process(make):
    part = parts.of(make(), _POLICIES.DATA)
    assert [_read(part, number) for number in range(4)] == seeded.passes(make(), 4)


def test_the_first_pass_of_repeated_data_has_the_order_of_one_process():
    def make():
        return seeded.rows().shuffle(8, seed=3).repeat(3).batch(4)

    part = parts.of(make(), _POLICIES.DATA)
    assert [_read(part, 0)] == seeded.passes(make(), 1)
    assert _read(part, 1) != _read(part, 0)
    assert _read(part, 1) == _read(part, 1)


def _unseeded():
    return seeded.rows().shuffle(20)


def _unseeded_inside():
    return seeded.rows().batch(20).interleave(
        lambda x: tf.data.Dataset.from_tensors(x).unbatch().shuffle(10)
    )  # fmt: skip


def _sampled():
    evens, odds = (seeded.rows().filter(lambda x, i=i: x % 2 == i) for i in range(2))
    return tf.data.Dataset.sample_from_datasets([evens, odds])


def _sampled_anew():
    evens, odds = (seeded.rows().filter(lambda x, i=i: x % 2 == i) for i in range(2))
    return tf.data.Dataset.sample_from_datasets([evens, odds], rerandomize_each_iteration=True)


def _random():
    numbers = tf.data.Dataset.zip(tf.data.Dataset.random(), seeded.rows())
    return numbers.filter(lambda number, row: number % 2 == 0).map(lambda number, row: row)


@pytest.mark.parametrize("policy", ["DATA", "FILE"])
@pytest.mark.parametrize(
    "make",
    [_unseeded, _unseeded_inside, _sampled, _sampled_anew, _random],
    ids=lambda one: one.__name__,
)
def test_what_has_no_seed_is_the_same_whenever_it_is_read(make, policy):
    """A worker that was lost reads it again."""
    part = parts.of(make(), getattr(_POLICIES, policy))
    assert _read(part, 2) == _read(part, 2)


@pytest.mark.parametrize(
    "make", [_unseeded, _unseeded_inside, _sampled_anew], ids=lambda one: one.__name__
)
def test_what_has_no_seed_is_another_in_each_pass_and_dataset(make):
    part, other = (parts.of(make(), _POLICIES.DATA) for _ in range(2))
    assert sorted(_read(part, 0)) == list(range(seeded.ROWS))
    assert _read(part, 0) != _read(part, 1)
    assert _read(part, 0) != _read(other, 0)


@pytest.mark.parametrize("make", [_unseeded, _sampled], ids=lambda one: one.__name__)
def test_workers_divide_all_rows(make):
    part = parts.of(make(), _POLICIES.DATA)
    assert sorted(row for i in range(3) for row in _read(part, 1, i, 3)) == list(range(seeded.ROWS))


def _operations(part):
    graph = tf.compat.v1.GraphDef.FromString(part.order.serialized(0).numpy())
    nodes = [*graph.node, *(node for one in graph.library.function for node in one.node_def)]
    return {node.op: node.attr["deterministic"].s for node in nodes if "deterministic" in node.attr}


def test_parallel_operations_keep_the_order():
    def inner(row):
        rows = tf.data.Dataset.from_tensors(row)
        return rows.map(lambda x: x, num_parallel_calls=2, deterministic=False)

    data = seeded.rows().interleave(inner, num_parallel_calls=2, deterministic=False)
    options = tf.data.Options()
    options.deterministic = False
    data = data.batch(4, num_parallel_calls=2).with_options(options)
    found = _operations(parts.of(data, _POLICIES.DATA))
    assert set(found) == {
        "ParallelInterleaveDatasetV4", "ParallelMapDatasetV2", "ParallelBatchDataset"
    }  # fmt: skip
    assert set(found.values()) == {b"true"}


def test_an_epoch_with_a_number_of_steps_is_one_pass():
    data = seeded.rows()
    assert [Passes(data, None).begin() for _ in range(3)] == [0, 1, 2]
    assert Passes(seeded.rows(), None).begin() == 0


def test_an_epoch_that_goes_on_after_a_restart_has_its_own_pass():
    passes = Passes(seeded.rows(), seeded.ROWS)
    assert [passes.begin(3), passes.begin()] == [6, 8]


@pytest.mark.parametrize("known", [True, False])
def test_keras_makes_that_many_iterators(known):
    """The numbers of `Passes`, by the orders that Keras trains on in one process."""
    import keras

    class Model(keras.Model):
        def train_step(self, data):
            return {"first": tf.cast(data[0], tf.float32)}

    data = seeded.shuffled() if known else seeded.shuffled().filter(lambda x: True)
    firsts = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: firsts.append(logs))
    model = Model()
    model.compile(run_eagerly=True)
    for _ in range(2):
        model.fit(data, epochs=3, verbose=0, callbacks=[note])
    part = parts.of(seeded.shuffled(), _POLICIES.DATA)
    numbers = []
    for _ in range(2):
        passes = Passes(data, int(data.cardinality()))
        numbers += [passes.begin() for _ in range(3)]
    expected = [batch[0] for number in numbers for batch in _read(part, number)]
    assert [int(one["first"]) for one in firsts] == expected
