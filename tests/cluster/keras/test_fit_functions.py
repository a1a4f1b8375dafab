# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`fit` and `evaluate` of a function of an `InputContext`: each worker reads its own dataset."""

import itertools
import math
import sys
import warnings

import pytest

from tests.fault import coordinator
from tests.slow_cases import slow, slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_ROWS, _BATCH, _EPOCHS = 30, 4, 3
_MANY = 4000  # rows: no worker comes to the end of its own
_LOST = "lost worker, {}".format
# With one step per call, and more of the same mistakes.
_SLOW = [
    "finite, 1", _LOST(1), f"repeated, {_LOST(1)}", "slice", "iterators", "datasets, evaluate",
    "sample_weight", "class_weight",
]  # fmt: skip


# (`test_fit_workers` has three calls in flight.)
@pytest.fixture(scope="module", params=[1, slow(3)], ids="in_flight={}".format)
def cases(request):
    return coordinator.Cases(__file__, request.param, slow=_SLOW, seconds=400)


@pytest.mark.parametrize("steps", [slow(1), 3])
def test_each_row_trains_once_per_epoch(cases, steps):
    """The epoch ends when all workers are through, though one has fewer batches."""
    found = cases[f"finite, {steps}"]
    assert found["seen"] == [_EPOCHS] * _ROWS
    assert found["warnings"] == []


@pytest.mark.parametrize("steps", [slow(1), 3])
def test_callbacks_are_called_for_each_call_that_has_ended(cases, steps):
    """Of two workers with 4 batches each: one call per `steps_per_execution` batches, and rest.

    Calls that one worker runs together share its batches: there may be more calls with a rest.
    """
    batches = cases[f"finite, {steps}"]["batches"]
    fewest = 2 * -(-4 // steps)
    most = fewest if cases["in flight"] == 1 else 2 * 4
    begins = [i for i, number in enumerate(batches) if number == steps - 1]
    assert len(begins) == _EPOCHS
    for begin, end in itertools.pairwise([*begins, len(batches)]):
        assert fewest <= end - begin <= most
        assert batches[begin:end] == list(range(steps - 1, (end - begin) * steps, steps))


@pytest.mark.parametrize("steps", [slow(1), 3])
def test_evaluation_counts_each_row_once(cases, steps):
    expected = {"ids": float(sum(range(_ROWS))), "loss": sum(range(_ROWS)) / _ROWS}
    assert cases[f"finite, {steps}"]["evaluated"] == expected


def test_the_logs_are_sums_of_what_has_ended(cases):
    """Numbers, in each call of a callback; the last are those of all rows."""
    logs = cases["logs"]
    assert {kind for kind, _ in logs} == {"float"}
    assert logs[-1][1] == sum(range(_ROWS))
    assert [value for _, value in logs] == sorted(value for _, value in logs)


@pytest.mark.parametrize("steps", ["a number of steps", "all data"])
def test_metrics_that_a_callback_resets_count_later_steps_once(cases, steps):
    """Those that have begun count before."""
    found = cases[f"reset, {steps}"]
    assert found["before"] > 0
    assert found["after"] > 0
    assert found["before"] + found["after"] == _MANY


def test_steps_per_epoch_counts_the_steps_of_all_workers(cases):
    assert cases["repeated"] == 2 * 5 * _BATCH


def test_a_dataset_on_the_coordinator_can_validate(cases):
    assert cases["validated"] == [float(sum(range(_ROWS)))] * 2


_MISTAKES = [
    ("endless", "the dataset of a worker is endless: give steps_per_epoch"),
    (
        "too short",
        "has ended before all steps of the epoch: repeat() it, or leave out steps_p",
    ),
    ("no dataset", "must return a tf.data.Dataset of batches; "),
    (
        "outer dataset",
        "the function of an InputContext uses a dataset that was made outside of it, which "
        "cannot be sent to workers: make the dataset inside of the function",
    ),
    (
        "list",
        "(input_pipeline_id of the InputContext is a tensor, which no list and no int() takes: "
        "shard a dataset, for instance of the files' names)",
    ),
    (
        "slice",
        "(input_pipeline_id of the InputContext is a tensor, which no list and no int() takes: "
        "shard a dataset, for instance of the files' names)",
    ),
    *(
        (
            what,
            "model.fit under ParameterServerStrategy does not take what "
            "create_per_worker_dataset has made: give it the tf.data.Dataset, or a function of "
            "an InputContext that makes it",
        )
        for what in ("datasets", "iterators", "datasets, evaluate")
    ),
    *(
        (
            what,
            f"{what} cannot be given with a function of an InputContext: its dataset must "
            "yield (x, y) or (x, y, sample_weight)",
        )
        for what in ("y", "sample_weight", "class_weight")
    ),
    (
        "predict",
        "predict keeps the order of its input, which workers' own datasets do not have",
    ),
]


@pytest.mark.parametrize(("what", "text"), slow_but(_MISTAKES, lambda one: one[0] not in _SLOW))
def test_mistakes_are_named(cases, what, text):
    assert text in cases[what]["text"]


def test_data_is_explained_once(cases):
    assert [text.partition(":")[0] for text in cases["explained"]] == ["data"] * 2
    assert "each worker calls the function" in cases["explained"][0]


@pytest.mark.parametrize("steps", [slow(1), 3])
def test_a_lost_worker_repeats_its_call_only(cases, steps):
    """The worker makes its dataset again, without the batches that were used; each counts once."""
    seen = cases[_LOST(steps)]["seen"]
    assert cases[_LOST(steps)]["trained"] == [float(sum(range(_ROWS)))] * _EPOCHS
    assert min(seen) >= _EPOCHS
    assert sum(seen) <= _EPOCHS * _ROWS + (cases["in flight"] + 1) * steps * _BATCH


@pytest.mark.parametrize("steps", [slow(1), 3])
def test_a_lost_worker_goes_on_in_repeated_data(cases, steps):
    """With `steps_per_epoch`: it has used its rows in order, in several epochs of one iterator."""
    found = cases[f"repeated, {_LOST(steps)}"]
    assert found["epoch"] > 0
    assert set(found["counts"]) == {15 * _BATCH}
    rows = found["used"] * _BATCH
    assert min(found["seen"][:rows]) >= 1
    assert sum(found["seen"]) <= rows + (cases["in flight"] + 1) * steps * _BATCH


@pytest.mark.parametrize("steps", [slow(1), 3])
def test_an_evaluation_is_exact_if_a_worker_is_lost(cases, steps):
    assert cases[_LOST(steps)]["evaluated"] == float(sum(range(_ROWS)))


def test_steps_that_are_no_multiple_of_those_of_a_call(cases):
    """Rounded up, as in one process, if there is data; else all data."""
    assert cases["uneven"] == {"finite": [1] * _ROWS, "repeated": 2 * 6 * _BATCH}


def _main(in_flight):
    import keras
    import numpy as np
    import tensorflow as tf

    import tf_fuse.keras  # noqa: F401  (has Keras run its steps on workers)
    from tests.cluster.keras.row_counter import RowCounter
    from tf_fuse.keras import steps as keras_steps

    tf.config.optimizer.set_experimental_options({"tf_fuse": True, "steps_in_flight": in_flight})
    job = coordinator.Job("off", 2, 1)
    explained = coordinator.logged_messages()

    def model(steps=1, rows=_ROWS):
        with job.strategy.scope():
            one = RowCounter(rows)
            one.compile(steps_per_execution=steps)
        return one

    def mine(context, rows=_ROWS):
        rows = tf.data.Dataset.range(rows, output_type=tf.int32)
        return rows.shard(context.num_input_pipelines, context.input_pipeline_id).batch(_BATCH)

    def finite(steps):
        one, batches = model(steps), []
        note = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: batches.append(batch)
        )
        with warnings.catch_warnings(record=True) as caught:
            one.fit(mine, epochs=_EPOCHS, verbose=0, callbacks=[note])
        return {
            "seen": one.counts(),
            "batches": batches,
            "evaluated": one.evaluate(mine, verbose=0, return_dict=True),
            "warnings": [str(one.message) for one in caught if "ran out of data" in str(one)],
        }

    def logs():
        found = []
        note = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda _, logs: found.append(
                (type(logs["ids"]).__name__, logs["ids"])
            )
        )
        model().fit(mine, verbose=0, callbacks=[note])
        return found

    def reset(steps):
        one, found = model(rows=_MANY), {}

        def act(batch, logs):
            if batch == 2:
                keras_steps.count_begun(one.mean.count)
                found["before"] = int(one.mean.count)
                one.reset_metrics()

        note = keras.callbacks.LambdaCallback(
            on_train_batch_end=act,
            on_epoch_end=lambda epoch, logs: found.update(after=int(one.mean.count)),
        )

        def data(context):
            rows = mine(context, _MANY)
            return rows.repeat() if steps else rows  # (one worker may make more steps)

        one.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[note])
        return found

    def repeated():
        one = model()
        one.fit(lambda c: mine(c).unbatch().repeat().batch(_BATCH), epochs=2, steps_per_epoch=5,
                verbose=0)  # fmt: skip
        return sum(one.counts())

    def uneven():
        finite, endless = model(steps=3), model(steps=2)
        finite.fit(mine, steps_per_epoch=2 * math.ceil(_ROWS / 2 / _BATCH), verbose=0)
        endless.fit(lambda c: mine(c).unbatch().repeat().batch(_BATCH), epochs=2,
                    steps_per_epoch=5, verbose=0)  # fmt: skip
        return {"finite": finite.counts(), "repeated": sum(endless.counts())}

    def validated():
        rows = tf.data.Dataset.range(_ROWS, output_type=tf.int32).batch(_BATCH)
        return [model().fit(mine, validation_data=data, verbose=0).history["val_ids"][0]
                for data in (rows, mine)]  # fmt: skip

    def lost_worker(steps):
        one = model(steps)

        class Lose(keras.callbacks.Callback):
            """Ends a worker in the middle of an epoch, and starts it again."""

            def __init__(self):
                super().__init__()
                self.on_train_batch_end = self.on_test_batch_end = self.lose_in_second
                self.calls = 0

            def lose_in_second(self, batch, logs=None):
                self.calls += 1
                if self.calls == 2:
                    job.cluster.kill("worker:0")
                    job.cluster.restart("worker:0")

        history = one.fit(mine, epochs=_EPOCHS, verbose=0, callbacks=[Lose()]).history
        evaluated = one.evaluate(mine, verbose=0, return_dict=True, callbacks=[Lose()])
        return {
            "seen": one.counts(),
            "trained": history["ids"],
            "evaluated": evaluated["ids"],
        }

    def lost_in_repeated(steps):
        one, counts = model(steps, _MANY), []

        class Lose(keras.callbacks.Callback):
            """Ends worker 0, starts it again, and ends training when it has gone on."""

            epoch = iterator = lost_at = None

            def on_epoch_begin(self, epoch, logs=None):
                self.epoch = epoch

            def on_epoch_end(self, epoch, logs=None):
                if not one.stop_training:  # within the epoch
                    counts.append(int(one.mean.count))

            def used(self):
                return self.iterator.used(one.train_function._queue)[0]

            def on_train_batch_end(self, batch, logs=None):
                self.iterator = one.train_function._iterator
                if self.lost_at is None and self.epoch and self.used() >= 10:
                    job.cluster.kill("worker:0")
                    self.lost_at = self.used()
                    job.cluster.restart("worker:0")
                elif self.lost_at is not None and self.used() >= self.lost_at + 10:
                    one.stop_training = True

        lose = Lose()
        one.fit(lambda c: mine(c, _MANY).unbatch().repeat().batch(_BATCH), epochs=10**6,
                steps_per_epoch=15, verbose=0, callbacks=[lose])  # fmt: skip
        return {
            "epoch": lose.epoch,
            "used": lose.used(),
            "seen": one.counts()[::2],
            "counts": counts,
        }

    whole = tf.data.Dataset.range(_ROWS, output_type=tf.int32).batch(_BATCH)
    make = job.coordinator.create_per_worker_dataset
    on_workers = make(lambda: tf.data.Dataset.range(_ROWS, output_type=tf.int32).batch(_BATCH))
    shards = [whole.shard(2, i) for i in range(2)]

    coordinator.finish(
        slow=_SLOW,
        cases={
            "in flight": lambda: in_flight,
            **{f"finite, {steps}": lambda steps=steps: finite(steps) for steps in (1, 3)},
            "logs": logs,
            "reset, a number of steps": lambda: reset(_MANY // _BATCH),
            "reset, all data": lambda: reset(None),
            "repeated": repeated,
            "uneven": uneven,
            "validated": validated,
            "endless": lambda: model().fit(lambda c: mine(c).repeat(), verbose=0),
            "too short": lambda: model().fit(mine, steps_per_epoch=20, verbose=0),
            "no dataset": lambda: model().fit(lambda _: np.zeros(3), verbose=0),
            "outer dataset": lambda: model().fit(
                lambda c: whole.shard(c.num_input_pipelines, c.input_pipeline_id), verbose=0
            ),
            "list": lambda: model().fit(lambda c: shards[c.input_pipeline_id], verbose=0),
            "slice": lambda: model().fit(lambda c: shards[c.input_pipeline_id :][0], verbose=0),
            "datasets": lambda: model().fit(on_workers, verbose=0),
            "iterators": lambda: model().fit(iter(on_workers), verbose=0),
            "datasets, evaluate": lambda: model().evaluate(on_workers, verbose=0),
            "y": lambda: model().fit(mine, np.zeros(3), verbose=0),
            "sample_weight": lambda: model().fit(mine, sample_weight=np.zeros(3), verbose=0),
            "class_weight": lambda: model().fit(mine, class_weight={0: 2.0}, verbose=0),
            "predict": lambda: model().predict(mine, verbose=0),
            "explained": lambda: explained,
            **{_LOST(steps): lambda steps=steps: lost_worker(steps) for steps in (1, 3)},
            **{
                f"repeated, {_LOST(steps)}": lambda steps=steps: lost_in_repeated(steps)
                for steps in (1, 3)
            },
        },
    )


if __name__ == "__main__":
    _main(int(sys.argv[1]))
