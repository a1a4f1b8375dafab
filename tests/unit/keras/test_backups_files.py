# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The files of `BackupAndRestore`: each backup is whole, or the one before is the newest."""

import functools
import itertools
import json
import os
import types

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest

pytest.importorskip("keras")

import keras

import tf_fuse.keras  # noqa: F401  (extends the callback)
from tests.cluster.keras import interrupted_saves
from tests.slow_cases import slow_but
from tf_fuse.keras import backups

_STEPS, _EPOCHS = 5, 3
_FILES = ["latest.weights.h5", "training_metadata.json"]
_FIRST, *_, _LAST = interrupted_saves.POINTS


class _Killed(BaseException):
    """Stands for the end of a process."""


def _killed():
    raise _Killed


class _Note(keras.callbacks.Callback):
    """Keeps the first batch, and the step before it."""

    first = None

    def __init__(self):
        super().__init__()
        self.epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.first is None:
            self.first = self.epoch * _STEPS + batch, int(self.model.optimizer.iterations)


def _train(folder, save_freq=2, epochs=_EPOCHS, **more):
    """Return the first batch, the step before it, the last step, and all values."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    x = np.random.default_rng(7).normal(size=[_STEPS * 8, 6]).astype(np.float32)
    note = _Note()
    backup = keras.callbacks.BackupAndRestore(folder, save_freq, delete_checkpoint=False, **more)
    model.fit(x, x.sum(1), batch_size=8, shuffle=False, epochs=epochs, verbose=0,
              callbacks=[backup, note])  # fmt: skip
    values = [one.numpy().tolist() for one in (*model.variables, *model.optimizer.variables)]
    return note.first, int(model.optimizer.iterations), values


def _cluster(monkeypatch, is_there):
    checks = types.SimpleNamespace(has_cluster=lambda strategy: is_there)
    monkeypatch.setattr(backups, "checks", checks)


@pytest.fixture
def clustered(monkeypatch):
    """The backups of a cluster, without one."""
    _cluster(monkeypatch, True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A function that returns what `_train` does where nothing interrupts it."""
    return functools.cache(lambda *args: _train(tmp_path_factory.mktemp("whole"), *args))


def _interrupted(folder, point, number, **more):
    undo = interrupted_saves.interrupt(point, number, _killed)
    try:
        with pytest.raises(_Killed):
            _train(folder, **more)
    finally:
        undo()


# All in the second backup; in the first one, which has none before it, and later at a point each.
@pytest.mark.parametrize(
    ("point", "number"),
    slow_but(
        itertools.product(interrupted_saves.POINTS, [1, 2, 4]),
        lambda case: case[1] == 2 or case in [(_FIRST, 1), (_LAST, 4)],
    ),
)
def test_a_backup_is_whole_or_the_one_before_is_the_newest(
    whole, clustered, tmp_path, point, number
):
    """Weights, step and epoch are of one moment; no step is lost, none trains twice."""
    folder = tmp_path / "killed"
    _interrupted(folder, point, number)
    is_newest = point == interrupted_saves.POINTS[-1]
    first, steps, values = _train(folder)
    begins = 2 * (number if is_newest else number - 1)
    assert first == (begins, begins)
    assert (steps, values) == whole()[1:]
    assert sorted(os.listdir(folder)) == _FILES


@pytest.mark.parametrize("point", slow_but(interrupted_saves.POINTS, _FIRST.__eq__))
def test_backups_that_are_interrupted_one_after_the_other(whole, clustered, tmp_path, point):
    """A program is killed in its second backup, each time it is started."""
    folder, firsts = tmp_path / "killed", []
    for _ in range(3):
        _interrupted(folder, point, 2)
        firsts.append(json.loads((folder / _FILES[1]).read_text()))
    first, *rest = _train(folder)
    assert first[0] == first[1] > 0
    assert tuple(rest) == whole()[1:]
    made = [one["epoch"] * _STEPS + sum(one["steps_made"]) for one in firsts]
    assert made == sorted(set(made))


@pytest.mark.parametrize("point", slow_but(interrupted_saves.POINTS, {_FIRST, _LAST}.__contains__))
def test_a_backup_of_each_epoch_is_whole(whole, clustered, tmp_path, point):
    _interrupted(tmp_path / "killed", point, 2, save_freq="epoch")
    first, *rest = _train(tmp_path / "killed", "epoch")
    begins = 2 * _STEPS if point == interrupted_saves.POINTS[-1] else _STEPS
    assert first == (begins, begins)
    assert tuple(rest) == whole("epoch")[1:]


def test_two_backups_are_kept(clustered, tmp_path):
    """If the newest weights cannot be read, those before them can, with their epoch."""
    whole = _train(tmp_path / "two", double_checkpoint=True)
    assert sorted(os.listdir(tmp_path / "two")) == sorted([*_FILES, *(f"{n}.bkp" for n in _FILES)])
    os.truncate(tmp_path / "two" / _FILES[0], 100)
    first, *rest = _train(tmp_path / "two", double_checkpoint=True)
    assert first == (12, 12)
    assert tuple(rest) == whole[1:]


@pytest.mark.parametrize("first_here", slow_but([True, False], bool))
def test_backups_go_from_and_to_keras_alone(tmp_path, monkeypatch, first_here):
    whole = _train(tmp_path / "whole", "epoch")
    for is_here, epochs in ((first_here, 1), (not first_here, 2), (first_here, _EPOCHS)):
        _cluster(monkeypatch, is_here)
        first, *rest = _train(tmp_path / "both", "epoch", epochs=epochs)
        assert first == ((epochs - 1) * _STEPS,) * 2
        assert sorted(os.listdir(tmp_path / "both")) == _FILES
    assert tuple(rest) == whole[1:]
