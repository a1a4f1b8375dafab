# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`fit` and `evaluate` of a `tf.data.Dataset` whose `auto_shard_policy` asks for parts."""

import sys
from pathlib import Path

import pytest

from tests.fault import coordinator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

_ROWS, _BATCH, _EPOCHS = 30, 4, 3
_SUM = float(sum(range(_ROWS)))


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return coordinator.run(__file__, tmp_path_factory.mktemp("rows"))


@pytest.mark.parametrize("policy", ["DATA", "FILE"])
def test_each_row_trains_once_per_epoch(cases, policy):
    assert cases[policy]["seen"] == [_EPOCHS] * _ROWS


@pytest.mark.parametrize("policy", ["DATA", "FILE"])
def test_evaluations_count_each_row_once(cases, policy):
    assert (cases[policy]["evaluated"], cases[policy]["validated"]) == (_SUM, _SUM)


@pytest.mark.parametrize("policy", ["DATA", "FILE"])
def test_predictions_keep_the_order(cases, policy):
    assert cases[policy]["predicted"] == [2.0 * row for row in range(_ROWS)]


@pytest.mark.parametrize("policy", ["DATA", "FILE"])
def test_workers_read(cases, policy):
    text = f"data: each worker reads its part of the dataset (auto_shard_policy {policy})"
    assert cases[policy]["explained"].count(text) == 1


def test_each_worker_has_its_files(cases):
    """With one step per call, a call's first row tells its file; the rows of a file are in turn."""
    firsts = cases["files of workers"]
    assert sorted(firsts) == [0.0, 10.0, 20.0]


def test_classes_are_weighed(cases):
    """Rows of class 1 count five times."""
    assert cases["class weights"] == 1.0 * 15 + 5.0 * 15


def test_repeated_data(cases):
    assert cases["repeated"] == 2 * 6 * _BATCH


def test_a_shuffle_with_a_seed_is_the_same_in_all_workers(cases):
    assert cases["seeded shuffle"] == [1] * _ROWS


@pytest.mark.parametrize("what", ["table", "variable"])
def test_resources_go_along(cases, what):
    """Each row is looked up in a table of the coordinator, or a variable's 3 is added."""
    assert cases[what] == [1] * _ROWS


def test_other_policies_are_the_coordinators(cases):
    """The coordinator reads them, as if there were no option."""
    assert cases["OFF"] == [1] * _ROWS


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (
            "generator",
            "auto_shard_policy is DATA, but the dataset calls Python (operation PyFunc, as "
            "from_generator, py_function and numpy_function make it), which workers cannot; give "
            "fit a function of an InputContext",
        ),
        (
            "unseeded shuffle",
            "auto_shard_policy is DATA, but shuffle has no seed: each worker would have an order",
        ),
        (
            "queue",
            "auto_shard_policy is DATA, but operation MapDataset of the dataset uses a queue, an "
            "iterator or the like of this process, which workers do not have; give fit a function",
        ),
        ("endless", "the dataset of a worker is endless: give steps_per_epoch"),
        ("one file", "not enough"),
    ],
)
def test_mistakes_are_named(cases, what, text):
    assert text in cases[what]["text"]


def _main(folder):
    import keras
    import tensorflow as tf

    import tf_fuse.keras  # noqa: F401  (has Keras run its steps on workers)
    from tests.cluster.keras.row_counter import RowCounter

    tf.config.optimizer.set_experimental_options({"tf_fuse": True})
    job = coordinator.Job("off", 2, 1)
    explained = coordinator.logged_messages()

    class Weigher(RowCounter):
        """Its "ids" are the sums of weights."""

        def train_step(self, data):
            _, _, weights = keras.utils.unpack_x_y_sample_weight(data)
            self.sum.update_state(weights)
            return {"ids": self.sum.result()}

    def model(cls=RowCounter):
        with job.strategy.scope():
            one = cls(_ROWS)
            one.compile()
        return one

    def asking(dataset, policy):
        options = tf.data.Options()
        policies = tf.data.experimental.AutoShardPolicy
        options.experimental_distribute.auto_shard_policy = getattr(policies, policy)
        return dataset.with_options(options)

    def numbers():
        return tf.data.Dataset.range(_ROWS, output_type=tf.int32)

    def rows_of_files(names):
        lines = tf.data.Dataset.from_tensor_slices(names).interleave(
            tf.data.TextLineDataset, cycle_length=1
        )
        return lines.map(lambda line: tf.strings.to_number(line, tf.int32))

    names = []
    for i in range(0, _ROWS, 10):
        names.append(str(Path(folder) / f"rows_{i}"))
        Path(names[-1]).write_text("".join(f"{row}\n" for row in range(i, i + 10)))

    def trained(dataset):
        one = model()
        history = one.fit(dataset, epochs=_EPOCHS, validation_data=dataset, verbose=0).history
        return {
            "seen": one.counts(),
            "validated": history["val_ids"][-1],
            "evaluated": one.evaluate(dataset, verbose=0, return_dict=True)["ids"],
            "predicted": one.predict(dataset, verbose=0).tolist(),
            "explained": list(explained),
        }

    def files_of_workers():
        firsts = []
        note = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda _, logs: firsts.append(logs["first"])
        )
        model().fit(asking(rows_of_files(names).batch(10), "FILE"), verbose=0, callbacks=[note])
        return firsts

    def class_weights():
        pairs = numbers().map(lambda row: (row, row % 2)).batch(_BATCH)
        history = (
            model(Weigher)
            .fit(asking(pairs, "DATA"), class_weight={0: 1.0, 1: 5.0}, verbose=0)
            .history
        )
        return history["ids"][0]

    def repeated():
        one = model()
        data = asking(numbers().repeat().batch(_BATCH), "DATA")
        one.fit(data, epochs=2, steps_per_epoch=6, verbose=0)
        return sum(one.counts())

    def counted(dataset, policy):
        one = model()
        one.fit(asking(dataset.batch(_BATCH), policy), verbose=0)
        return one.counts()

    def generator():
        rows = tf.data.Dataset.from_generator(
            lambda: iter(range(_ROWS)), output_signature=tf.TensorSpec([], tf.int32)
        )
        return counted(rows, "DATA")

    def table():
        found = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tf.range(_ROWS), tf.range(_ROWS)), -1
        )
        return counted(numbers().map(found.lookup), "DATA")

    def variable():
        three = tf.Variable(3)
        return counted(numbers().map(lambda row: (row + three) % _ROWS), "DATA")

    def queue():
        rows = tf.queue.FIFOQueue(_ROWS, [tf.int32], shapes=[[]])
        return counted(numbers().map(lambda _: rows.dequeue()), "DATA")

    coordinator.finish(
        {
            "DATA": lambda: trained(asking(numbers().batch(_BATCH), "DATA")),
            "FILE": lambda: trained(asking(rows_of_files(names).batch(_BATCH), "FILE")),
            "files of workers": files_of_workers,
            "class weights": class_weights,
            "repeated": repeated,
            "seeded shuffle": lambda: counted(numbers().shuffle(_ROWS, seed=7), "DATA"),
            "unseeded shuffle": lambda: counted(numbers().shuffle(_ROWS), "DATA"),
            "OFF": lambda: counted(numbers(), "OFF"),
            "generator": generator,
            "table": table,
            "variable": variable,
            "queue": queue,
            "endless": lambda: counted(numbers().repeat(), "DATA"),
            "one file": lambda: counted(rows_of_files(names[:1]), "FILE"),
        }
    )


if __name__ == "__main__":
    _main(sys.argv[1])
