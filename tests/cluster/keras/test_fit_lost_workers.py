# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras 3's loops while one of two workers is killed, and after a callback has failed."""

import sys

import pytest

from tests.fault import coordinator
from tests.slow_cases import slow, slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

_ROWS, _BATCH = 203, 2
_KINDS = ["dataset", "array", "PyDataset", "generator"]
# Others show the same of these.
_SLOW_KINDS = ("array", "PyDataset")
_SLOW = [
    *(f"{what}, {kind}" for what in ("evaluate", "predict") for kind in _SLOW_KINDS),
    "ValueError, function", "KeyboardInterrupt, dataset",
]  # fmt: skip
_KIND = pytest.mark.parametrize("kind", slow_but(_KINDS, lambda kind: kind not in _SLOW_KINDS))


@pytest.fixture(scope="module", params=[1, slow(3)], ids="in_flight={}".format)
def cases(request):
    return coordinator.Cases(__file__, request.param, slow=_SLOW, seconds=700)


@_KIND
def test_an_evaluation_counts_each_row_once(cases, kind):
    assert cases[f"evaluate, {kind}"] == {
        "found": {"ids": float(sum(range(_ROWS))), "loss": sum(range(_ROWS)) / _ROWS},
        "killed": 1,
    }


@_KIND
def test_predictions_keep_the_order_of_the_input(cases, kind):
    assert cases[f"predict, {kind}"] == {"found": [2.0 * i for i in range(_ROWS)], "killed": 1}


def test_a_fetch_that_fails_stops_nothing_else(cases):
    """The program reads its dataset with the executor that its thread has."""
    assert cases["fetch"] == {"lost": True, "read": (_ROWS + 1) // _BATCH}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("dataset", "ValueError"),
        ("function", "KeyboardInterrupt"),
        slow("function", "ValueError"),
        slow("dataset", "KeyboardInterrupt"),
    ],
)
def test_steps_before_an_error_of_a_callback_do_not_count_later(cases, data, error):
    """None runs any more when fit has raised it."""
    found = cases[f"{error}, {data}"]
    assert found["raised"] == error
    assert found["under way"] == 0
    assert found["ids"] == float(sum(range(_ROWS)))
    assert found["evaluated"] == {"loss": sum(range(_ROWS)) / _ROWS, "ids": found["ids"]}


def _main(in_flight):
    import keras
    import numpy as np
    import tensorflow as tf

    import tf_fuse.keras  # noqa: F401  (has Keras run its steps on workers)
    from tests.cluster.keras.row_counter import RowCounter
    from tf_fuse._tensorflow.variables import coordinator_results

    tf.config.optimizer.set_experimental_options({"tf_fuse": True, "steps_in_flight": in_flight})
    job = coordinator.Job("off", 2, 1)
    ids = np.arange(_ROWS, dtype=np.int32)
    begins = range(0, _ROWS, _BATCH)

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return len(begins)

        def __getitem__(self, index):
            return (ids[begins[index] : begins[index] + _BATCH],)

    def dataset():
        return tf.data.Dataset.from_tensor_slices(ids).batch(_BATCH)

    data = {
        "dataset": lambda: {"x": dataset()},
        "array": lambda: {"x": ids, "batch_size": _BATCH},
        "PyDataset": lambda: {"x": Batches()},
        "generator": lambda: {"x": ((ids[i : i + _BATCH],) for i in begins)},
    }
    assert list(data) == _KINDS

    class Lose(keras.callbacks.Callback):
        """Ends a worker after some batches; it is back when all have ended."""

        def __init__(self):
            super().__init__()
            self.on_test_batch_end = self.on_predict_batch_end = self.lose
            self.killed = 0

        def lose(self, batch, logs=None):
            if batch == 5:
                job.cluster.kill("worker:0")
                self.killed += 1

    with job.strategy.scope():
        model = RowCounter(_ROWS)
        model.compile()

    def run(what, kind):
        lose = Lose()
        more = {"return_dict": True} if what == "evaluate" else {}
        found = getattr(model, what)(**data[kind](), verbose=0, callbacks=[lose], **more)
        job.cluster.restart("worker:0")
        return {
            "found": found if what == "evaluate" else found.tolist(),
            "killed": lose.killed,
        }

    def fetch():
        with tf.device("/job:worker/task:0"):
            there = tf.zeros([1])
        job.cluster.kill("worker:0")
        with pytest.raises(tf.errors.OpError) as raised, coordinator_results._fetching():
            there.numpy()
        job.cluster.restart("worker:0")
        return {"lost": coordinator_results._is_lost(raised.value), "read": len(list(dataset()))}

    class Fail(keras.callbacks.Callback):
        """Raises an error within an epoch, in training and in evaluation."""

        def __init__(self, error):
            super().__init__()
            self.error = error
            self.on_train_batch_end = self.on_test_batch_end = self.fail

        def fail(self, batch, logs=None):
            raise self.error

    def failed_callback(error, data):
        raised = []
        given = dataset() if data == "dataset" else lambda context: dataset()
        for run in (model.fit, model.evaluate):
            try:
                run(given, verbose=0, callbacks=[Fail(error())])
            except BaseException as found:
                raised.append(type(found).__name__)
        (raised,) = set(raised)
        begun = (*model.train_function._queue._begun, *model.test_function._queue._begun)
        return {
            "raised": raised,
            "under way": len(begun),
            "ids": model.fit(dataset(), verbose=0).history["ids"][0],
            "evaluated": model.evaluate(dataset(), verbose=0, return_dict=True),
        }

    coordinator.finish(
        slow=_SLOW,
        cases={
            **{
                f"{what}, {kind}": lambda what=what, kind=kind: run(what, kind)
                for kind in _KINDS
                for what in ("evaluate", "predict")
            },
            **{
                f"{error.__name__}, {data}": lambda e=error, d=data: failed_callback(e, d)
                for error in (ValueError, KeyboardInterrupt)
                for data in ("dataset", "function")
            },
            "fetch": fetch,
        },
    )


if __name__ == "__main__":
    _main(int(sys.argv[1]))
