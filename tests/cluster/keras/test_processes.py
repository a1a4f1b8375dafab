# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`fit`, `evaluate` and `predict` of Keras 3 in several processes."""

import json

import pytest

from tests.cluster.collectives.ranks import Ended, Error, Ranks
from tests.cluster.keras import fit_cases, interrupted_saves
from tests.slow_cases import slow, slow_but

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

_VALUES = ("weights", "optimizer")
_LOGS = ("history", "evaluated", "predicted")
_FUSE = "grpc+fuse"
_SECONDS = 400  # Tracing takes long on a busy machine.


class _Job:
    """The processes of a job; a training without files runs once."""

    def __init__(self, size):
        self.ranks = Ranks([_FUSE] * size, server=False)
        self._fitted = {}

    def fit(self, optimizer="Adam", sharded=False, how="arrays", epochs=2, **more):
        """Returns what each process reports of a training."""
        args = more | {"optimizer": optimizer, "sharded": sharded, "how": how, "epochs": epochs}
        key = json.dumps(args, sort_keys=True)
        if key not in self._fitted:
            self._fitted[key] = _run(self.ranks, "keras_fit", **args)
        return self._fitted[key]


@pytest.fixture(scope="module")
def two():
    job = _Job(2)
    with job.ranks:
        yield job


@pytest.fixture(scope="module", params=[slow(n) for n in (1, 3, 4)])
def others(request):
    job = _Job(request.param)
    with job.ranks:
        yield job


def _run(ranks, case, **args):
    ranks.start(case, **args)
    told = ranks.wait(seconds=_SECONDS)
    for rank, one in enumerate(told):
        assert isinstance(one, dict | list), f"{one}\n{ranks.log(rank)[-3000:]}"
    return told


def _check(told):
    """All processes have the same logs and values, and predict as the model does."""
    first = told[0]
    for one in told[1:]:
        assert one == first
    assert first["evaluated"]["loss"] == first["history"]["val_loss"][-1]
    assert first["predicted"] == pytest.approx(first["one by one"], abs=1e-5)
    assert len(first["predicted"]) == fit_cases.ROWS
    assert first["of one row"]["loss"] > 0.0  # not NaN, though other processes have no row


@pytest.mark.parametrize("optimizer", [slow("SGD"), "Adam"])
def test_values_are_those_of_a_custom_loop(two, optimizer):
    loop, here, sharded = (
        two.fit(optimizer=optimizer, **args) for args in ({"how": "loop"}, {}, {"sharded": True})
    )
    _check(here)
    assert [one["sharded"] for one in (here[0], sharded[0])] == [False, True]
    for key in _VALUES:
        assert here[0][key] == loop[0][key] == sharded[0][key], key
    for key in ("batches", *_LOGS):
        assert sharded == [one | {"sharded": True} for one in here], key


@pytest.mark.parametrize("rows", [17, slow(fit_cases.ROWS)])
def test_run_eagerly_gives_the_same(two, rows):
    """Also if a process has no row of a batch: of the last of 17.

    Eager operations run one by one; where TensorFlow makes one of several, last bits may differ.
    """
    graph = two.fit(rows=rows, grappler=False)
    assert two.fit(rows=rows, eagerly=True) == graph
    losses = [*graph[0]["history"]["loss"], graph[0]["evaluated"]["loss"]]
    assert all(0.0 < one < 10.0 for one in losses)  # not NaN


@pytest.mark.slow
def test_values_are_those_of_stock_collectives(two):
    with Ranks(["grpc"] * 2, server=False) as ranks:
        assert _run(ranks, "keras_fit") == two.fit()


def test_values_in_other_numbers_of_processes(others):
    _check(others.fit())
    here, loop = others.fit(sharded=True), others.fit(how="loop")
    for key in _VALUES:
        assert [one[key] for one in here] == [one[key] for one in loop]


@pytest.mark.parametrize(
    ("how", "steps", "epochs"),
    [
        ("dataset", 2, 2),
        slow("dataset", 1, 2),
        slow("PyDataset", 2, 2),
        slow("endless generator", 1, 2),
        slow("generator", 1, 1),
        slow("PyDataset", 1, 2),
        slow("generator", 2, 1),
        slow("arrays", 2, 2),
    ],
)
def test_data_in_each_form_gives_the_same(two, how, steps, epochs):
    """The arrays of the batches stay unchanged; no step begins without a batch."""
    arrays, here = two.fit(epochs=epochs), two.fit(how=how, steps=steps, epochs=epochs)
    _check(here)
    for key in (*_VALUES, *_LOGS):
        assert here[0][key] == arrays[0][key], key
    numbers = ([0, 1, 2] if steps == 1 else [1, 3]) * epochs
    assert [batch for batch, _ in here[0]["batches"]] == numbers


@pytest.mark.parametrize(
    ("policy", "files", "expected"),
    [
        # (Batches of four rows: each process has two of them.)
        slow("DATA", [], [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]),
        ("AUTO", [], [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]),
        ("FILE", [[0, 1, 2], [3, 4, 5, 6, 7]], [[[0, 1], [2], []], [[3, 4], [5, 6], [7]]]),
        slow("AUTO", [[0, 1, 2], [3, 4, 5, 6, 7]], [[[0, 1], [2], []], [[3, 4], [5, 6], [7]]]),
    ],
)
def test_rows_are_dealt_by_the_policy(two, tmp_path, policy, files, expected):
    for i, numbers in enumerate(files):
        (tmp_path / f"{i}.txt").write_text("".join(f"{number}\n" for number in numbers))
    folder = str(tmp_path) if files else ""
    told = _run(two.ranks, "rows_seen", policy=policy, folder=folder)
    assert [one["seen"] for one in told] == expected
    # The log is the mean over both processes of the last step.
    assert [one["rows"] for one in told] == [[sum(len(one[-1]) for one in expected) / 2]] * 2
    rows = sorted(row for one in expected for batch in one for row in batch)
    assert [one["predicted"] for one in told] == [rows] * 2


def test_a_generator_of_ragged_rows_loses_none(two):
    """Nor is its missing weight in the way, which the strategy could not divide."""
    told = _run(two.ranks, "rows_of_generator")
    assert told == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]


def test_mistakes_are_named(two):
    for told in _run(two.ranks, "keras_mistakes"):
        short = told.pop("too short")
        assert len(short) == 2  # epochs
        assert all("ran out of data" in text and "`.repeat()`" in text for text in short)
        assert told == {
            "warnings": [
                "fit shuffles in another order in each process, so some rows train twice in an "
                "epoch and others not at all: call keras.utils.set_random_seed with the same "
                "number in all processes, or fit with shuffle=False",
                "jit_compile is off for one: XLA cannot compile collectives on CPUs",
                "two trains in this process alone: to train it in all processes of the "
                "MultiWorkerMirroredStrategy, make it in `with strategy.scope():`",
            ],
            "errors": [
                "fit, evaluate and predict take a tf.data.Dataset, not one that "
                "strategy.experimental_distribute_dataset has made: they distribute it",
                "with AutoShardPolicy.OFF each process steps through all parts of all batches, "
                "but Keras would stop after as many steps as there are batches: repeat() the "
                "dataset, and give steps_per_epoch (steps, validation_steps)",
                "a batch cannot be divided among 2 replicas: 2 of its 2 tensors have no rows (the "
                "first is TensorSpec(shape=(), dtype=tf.float32, name=None)): call batch() on the "
                "dataset",
                "a batch cannot be divided among 2 replicas: 1 of its 3 tensors have no rows (the "
                "first is TensorSpec(shape=(), dtype=tf.float32, name=None)): call batch() on the "
                "dataset, or repeat a number that belongs to the whole batch for each of its rows",
                "under MultiWorkerMirroredStrategy fit, evaluate and predict take data, not a "
                "function that makes it: give them the whole dataset, which AutoShardPolicy shards",
                "predict in several processes needs tf.functions: do not call "
                "tf.config.run_functions_eagerly(True); model.compile(run_eagerly=True) works",
            ],
        }


@pytest.mark.parametrize("version", [slow("3.11.3"), "3.16.0"])
def test_a_keras_that_was_not_tried_is_mended_with_one_warning(two, version):
    """A newer one that has the same members most probably has the same errors."""
    (tried, *_), untried = (
        _run(two.ranks, "keras_untried", version=one) for one in ("3.15.9", version)
    )
    assert tried["warnings"] == []
    warning = (
        f"fit in several processes was not tried with Keras {version}: tf_fuse mends the errors of "
        "Keras 3.12 to 3.15 that docs/keras.md lists. If something is wrong, install one of those "
        "versions"
    )
    assert untried == [tried | {"warnings": [warning]}] * 2


def test_parts_that_were_made_outside_of_the_scope_are_named(two):
    """A model may be compiled there."""
    remedy = (
        "make the model's layers, its optimizer and its metrics, and call it first, in `with "
        "strategy.scope():`"
    )
    for told in _run(two.ranks, "keras_mistakes_of_scope"):
        assert told == {
            "compiled_in_scope": "the model was not made under strategy.scope() of this "
            "MultiWorkerMirroredStrategy: make it, and compile it, in `with strategy.scope():`",
            "optimizer_outside": "2 variables are not variables of the strategy (adam/iteration, "
            "adam/learning_rate): " + remedy,
            "called_outside": "2 variables are not variables of the strategy "
            "(unbuilt/last/kernel, unbuilt/last/bias): " + remedy,
            "compiled_outside": "",
        }


@pytest.mark.parametrize(
    ("sharded", "saves"),
    [
        (True, ("backup", "checkpoint")),
        slow(False, ("backup", "checkpoint")),
        slow(True, ("checkpoint", "alone")),
        slow(False, ("checkpoint", "alone")),
    ],
)
def test_the_chief_alone_saves(two, tmp_path, sharded, saves):
    """Others' callbacks of the same path write nothing; the chief reads all shards."""
    plain = two.fit(sharded=sharded)
    assert two.fit(sharded=sharded, folder=str(tmp_path), saves=saves) == plain
    names = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert names == {"saved-1.keras", "saved-2.keras"}


@pytest.mark.parametrize("saves", [("backup",), slow(("backup", "alone"))])
def test_a_job_that_was_killed_goes_on(two, tmp_path, saves):
    """With the chief's backup, wherever the others look for one."""
    plain = two.fit(sharded=True)
    args = {"sharded": True, "folder": str(tmp_path), "saves": saves}
    with Ranks([_FUSE] * 2, server=False) as ranks:
        ranks.start("keras_fit", [0], **args)
        ranks.start("keras_fit", [1], dies=1, **args)
        lost, dead = ranks.wait(seconds=_SECONDS)
        assert dead is Ended
        assert isinstance(lost, Error) and lost.kind == "UnavailableError", lost
    with Ranks([_FUSE] * 2, server=False) as ranks:
        again = _run(ranks, "keras_fit", **args)
    assert [one["epochs"] for one in again] == [[1]] * 2
    for key in (*_VALUES, "evaluated", "predicted"):
        assert [one[key] for one in again] == [one[key] for one in plain], key
    assert not (tmp_path / "backup").exists()


# (A chief that is killed in a backup goes on there, too.)
@pytest.mark.slow
def test_a_job_that_was_killed_goes_on_at_the_step(two, tmp_path):
    """In an epoch: no step is lost, none trains twice."""
    plain = two.fit()
    args = {"folder": str(tmp_path), "saves": ("backup of each step",)}
    with Ranks([_FUSE] * 2, server=False) as ranks:
        ranks.start("keras_fit", [0], **args)
        ranks.start("keras_fit", [1], dies=1, **args)  # after the first of three steps
        assert ranks.wait(seconds=_SECONDS)[1] is Ended
    with Ranks([_FUSE] * 2, server=False) as ranks:
        again = _run(ranks, "keras_fit", **args)
    assert [one["epochs"] for one in again] == [[1]] * 2
    assert [[batch for batch, _ in one["batches"]] for one in again] == [[1, 2]] * 2
    for key in (*_VALUES, "evaluated", "predicted"):
        assert [one[key] for one in again] == [one[key] for one in plain], key


@pytest.mark.parametrize(
    "point", slow_but(interrupted_saves.POINTS, lambda one: one == interrupted_saves.IN_WEIGHTS)
)
def test_a_chief_that_was_killed_in_a_backup_leaves_a_whole_one(two, tmp_path, point):
    """The one before, or the new one: no step is lost, none trains twice."""
    plain = two.fit()
    args = {"folder": str(tmp_path), "saves": ("backup of each step",)}
    with Ranks([_FUSE] * 2, server=False) as ranks:
        ranks.start("keras_fit", [0], point=point, **args)
        ranks.start("keras_fit", [1], **args)
        assert ranks.wait(seconds=_SECONDS)[0] is Ended
    with Ranks([_FUSE] * 2, server=False) as ranks:
        again = _run(ranks, "keras_fit", **args)
    first = 2 if point == interrupted_saves.POINTS[-1] else 1
    expected = [*range(first, 3), *range(3)]
    assert [[batch for batch, _ in one["batches"]] for one in again] == [expected] * 2
    for key in (*_VALUES, "evaluated", "predicted"):
        assert [one[key] for one in again] == [one[key] for one in plain], key
