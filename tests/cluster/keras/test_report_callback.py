# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf_fuse.keras.ReportCallback`: what it writes for TensorBoard while a model trains."""

import pytest

from tests import tensorboard_events
from tests.fault import coordinator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_ROWS, _BATCH, _EPOCHS = 40, 4, 2
_STEPS = _ROWS // _BATCH
_WORKERS, _SERVERS = ["worker:0", "worker:1"], ["ps:0", "ps:1"]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return coordinator.run(__file__, tmp_path_factory.mktemp("logs"), seconds=500)


def _of(scalars, name):
    """Task to the values of one scalar."""
    return {
        tag.removeprefix(f"tf_fuse/{name}/"): list(values.values())
        for tag, values in scalars.items()
        if tag.startswith(f"tf_fuse/{name}/")
    }


def test_each_epoch_has_its_scalars(cases):
    found = cases["fit"]["scalars"]
    steps = [str(_STEPS * (epoch + 1)) for epoch in range(_EPOCHS)]
    assert found["tf_fuse/tasks_without_answer"] == dict.fromkeys(steps, 0.0)
    assert {tag.split("/")[1] for tag in found} >= {
        "receive_wait_ms",
        "request_wait_ms",
        "rpcs_per_step",
        "staleness",
        "updates_per_step",
    }
    updates = _of(found, "updates_per_step")
    assert sorted(updates) == _SERVERS
    # Each of the optimizer's assignments, and its number of steps, in each step.
    total = sum(sum(values) for values in updates.values()) * _STEPS
    assert total == pytest.approx(cases["fit"]["updates"]) and total > 0
    assert sorted(_of(found, "staleness")) == _WORKERS
    assert set(_WORKERS) <= set(_of(found, "receive_wait_ms"))
    assert set(_SERVERS) <= set(_of(found, "request_wait_ms"))


def test_every_so_many_batches(cases):
    """And a second call of `fit` goes on from the optimizer's steps."""
    steps = [*range(_STEPS * _EPOCHS, _STEPS * (_EPOCHS + 1) + 1)][3::3]
    end = _STEPS * (_EPOCHS + 1)
    found = cases["every three"]["tf_fuse/tasks_without_answer"]
    assert list(found) == [str(step) for step in [*steps, end]]


def test_several_steps_in_one_call(cases):
    assert list(cases["in one call"]["tf_fuse/tasks_without_answer"]) == ["4", "8", "10"]


def test_without_a_strategy(cases):
    assert list(cases["alone"]["tf_fuse/tasks_without_answer"]) == [str(_STEPS)]


def test_others_than_the_chief_write_nothing(cases):
    assert cases["not the chief"] == {}


def test_mistakes(cases):
    text = "update_freq is {}; expected 'epoch' or a number of batches, 1 or more"
    assert cases["mistakes"] == [text.format(one) for one in ("'batch'", "0", "True", "1.5")]


def _main(folder):
    from pathlib import Path

    import keras
    import numpy as np
    import tensorflow as tf

    job = coordinator.Job("off", 2, 2)
    import tf_fuse.keras

    tf.config.optimizer.set_experimental_options(
        {"tf_fuse": True, "fuse_weight_update": True, "fuse_grouping": "level"}
    )
    folder = Path(folder)
    x = np.random.default_rng(7).normal(size=[_ROWS, 6]).astype(np.float32)

    def made(**more):
        layers = [keras.layers.Dense(4, "relu"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input([6]), *layers])
        model.compile(keras.optimizers.Adam(0.01), "mse", **more)
        return model

    def fit(model, name, epochs=1, **more):
        callback = tf_fuse.keras.ReportCallback(folder / name, **more)
        model.fit(x, x.sum(1), batch_size=_BATCH, epochs=epochs, verbose=0, callbacks=[callback])
        return tensorboard_events.scalars(folder / name)

    with job.strategy.scope():
        model = made()
        of_many = made(steps_per_execution=4)

    def updates():
        return sum(
            one["updates"]
            for counters in tf_fuse.cluster_metrics().values()
            for one in counters["server_updates"]["variables"].values()
        )

    def first():
        found = fit(model, "fit", _EPOCHS)
        return {"scalars": found, "updates": updates()}

    def not_the_chief():
        # As the strategy of another process says.
        extended = type(job.strategy.extended)
        kept = extended.should_save_summary
        extended.should_save_summary = False
        try:
            return fit(model, "other")
        finally:
            extended.should_save_summary = kept

    def mistakes():
        texts = []
        for wrong in ("batch", 0, True, 1.5):
            try:
                tf_fuse.keras.ReportCallback(folder, update_freq=wrong)
            except ValueError as error:
                texts.append(str(error))
        return texts

    coordinator.finish(
        {
            "fit": first,
            "every three": lambda: fit(model, "three", update_freq=3),
            "in one call": lambda: fit(of_many, "many", update_freq=3),
            "not the chief": not_the_chief,
            "alone": lambda: fit(made(), "alone"),
            "mistakes": mistakes,
        }
    )


if __name__ == "__main__":
    import sys

    _main(sys.argv[1])
