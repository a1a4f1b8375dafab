# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`fit` and `evaluate` of a `tf.data.Dataset` whose `auto_shard_policy` asks for parts."""

import sys
import warnings
from pathlib import Path

import pytest

from tests.fault import coordinator
from tests.slow_cases import slow

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

_ROWS, _BATCH, _EPOCHS = 30, 4, 3
_SUM = float(sum(range(_ROWS)))
_SLOW = ["seeded shuffle", "orders OFF"]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return coordinator.Cases(__file__, tmp_path_factory.mktemp("rows"), slow=_SLOW)


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


@pytest.mark.parametrize("what", [slow("seeded shuffle"), "unseeded shuffle", "sampled"])
def test_an_order_is_the_same_in_all_workers(cases, what):
    assert cases[what] == [1] * _ROWS


@pytest.mark.parametrize("policy", ["DATA", slow("OFF"), "function"])
def test_each_epoch_has_the_order_of_one_process(cases, policy):
    """Seen by the first rows of its batches, which workers train in any order."""
    found, expected = cases[f"orders {policy}"]
    assert found == expected
    assert expected[1] != [2 * count for count in expected[0]]


@pytest.mark.parametrize("what", ["steps of calls", "length of the whole"])
def test_parts_may_need_more_calls_than_the_whole(cases, what):
    found = cases[what]
    assert found["seen"] == [_EPOCHS] * len(found["seen"])
    assert found["evaluated"] == sum(range(len(found["seen"])))


def test_steps_of_data_that_is_not_repeated(cases):
    """A worker whose part is shorter leaves the steps to the other one."""
    assert cases["all steps"] == [_EPOCHS] * _ROWS


def test_data_shorter_than_the_steps_warns_as_in_one_process(cases):
    assert cases["too few"]["seen"] == [1] * _ROWS
    assert "Your input ran out of data" in cases["too few"]["warnings"]


def test_an_evaluation_is_exact_if_a_worker_is_lost(cases):
    """The worker reads its part again in the same order, though `shuffle` has no seed."""
    assert cases["lost worker"] == [_SUM] * 3


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

    def model(cls=RowCounter, rows=_ROWS, steps=1):
        with job.strategy.scope():
            one = cls(rows)
            one.compile(steps_per_execution=steps)
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

    def sampled():
        pair = [numbers().filter(lambda row, i=i: row % 2 == i) for i in range(2)]
        return counted(tf.data.Dataset.sample_from_datasets(pair), "DATA")

    def orders(policy):
        def run():
            def first_rows(one, dataset):
                found = []
                note = keras.callbacks.LambdaCallback(
                    on_epoch_end=lambda epoch, _: found.append(one.firsts.numpy().tolist())
                )
                one.fit(dataset, epochs=_EPOCHS, verbose=0, callbacks=[note])
                return found

            def data():
                return numbers().shuffle(_ROWS, seed=7).batch(_BATCH)

            alone = RowCounter(_ROWS)
            alone.compile()

            def mine(context):
                return data().shard(context.num_input_pipelines, context.input_pipeline_id)

            given = mine if policy == "function" else asking(data(), policy)
            return first_rows(model(), given), first_rows(alone, data())

        return run

    def trained_twice(dataset, rows, steps):
        one = model(rows=rows, steps=steps)
        one.fit(dataset, epochs=_EPOCHS, verbose=0)
        evaluated = one.evaluate(dataset, verbose=0, return_dict=True)["ids"]
        return {"seen": one.counts(), "evaluated": evaluated}

    def length_of_the_whole():
        rows = rows_of_files(names[:2]).apply(tf.data.experimental.assert_cardinality(20))
        return trained_twice(asking(rows.batch(_BATCH), "FILE"), 20, 1)

    def all_steps():
        one = model()
        rows = rows_of_files(names).apply(tf.data.experimental.assert_cardinality(_ROWS))
        one.fit(asking(rows.batch(_BATCH), "FILE"), epochs=_EPOCHS, steps_per_epoch=8, verbose=0)
        return one.counts()

    def too_few():
        one = model()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            data = asking(numbers().filter(lambda row: row >= 0).batch(_BATCH), "DATA")
            one.fit(data, steps_per_epoch=20, verbose=0)
        return {"seen": one.counts(), "warnings": " ".join(str(each.message) for each in caught)}

    def lost_worker():
        one = model()
        data = asking(rows_of_files(names).shuffle(10).batch(_BATCH), "FILE")

        class Lose(keras.callbacks.Callback):
            """Ends a worker in the middle of an evaluation, and starts it again."""

            calls = 0

            def on_test_batch_end(self, batch, logs=None):
                self.calls += 1
                if self.calls == 3:
                    job.cluster.kill("worker:0")
                    job.cluster.restart("worker:0")

        return [
            one.evaluate(data, verbose=0, return_dict=True, callbacks=[Lose()])["ids"]
            for _ in range(3)
        ]

    def queue():
        rows = tf.queue.FIFOQueue(_ROWS, [tf.int32], shapes=[[]])
        return counted(numbers().map(lambda _: rows.dequeue()), "DATA")

    coordinator.finish(
        slow=_SLOW,
        cases={
            "DATA": lambda: trained(asking(numbers().batch(_BATCH), "DATA")),
            "FILE": lambda: trained(asking(rows_of_files(names).batch(_BATCH), "FILE")),
            "files of workers": files_of_workers,
            "class weights": class_weights,
            "repeated": repeated,
            "seeded shuffle": lambda: counted(numbers().shuffle(_ROWS, seed=7), "DATA"),
            "unseeded shuffle": lambda: counted(numbers().shuffle(_ROWS), "DATA"),
            "sampled": sampled,
            "orders DATA": orders("DATA"),
            "orders OFF": orders("OFF"),
            "orders function": orders("function"),
            "steps of calls": lambda: trained_twice(
                asking(tf.data.Dataset.range(32, output_type=tf.int32).batch(_BATCH), "DATA"), 32, 3
            ),
            "length of the whole": length_of_the_whole,
            "all steps": all_steps,
            "too few": too_few,
            "lost worker": lost_worker,
            "OFF": lambda: counted(numbers(), "OFF"),
            "generator": generator,
            "table": table,
            "variable": variable,
            "queue": queue,
            "endless": lambda: counted(numbers().repeat(), "DATA"),
            "one file": lambda: counted(rows_of_files(names[:1]), "FILE"),
        },
    )


if __name__ == "__main__":
    _main(sys.argv[1])
