# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`fit`, `evaluate` and `predict` of Keras 3 in several processes."""

import pytest

from tests.cluster.collectives.ranks import Ended, Error, Ranks
from tests.cluster.keras import fit_cases
from tests.slow_cases import slow

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

_VALUES = ("weights", "slots")
_FUSE = "grpc+fuse"
_SECONDS = 400


@pytest.fixture(scope="module")
def two():
    with Ranks([_FUSE] * 2, server=False) as ranks:
        yield ranks


@pytest.fixture(scope="module", params=[pytest.param(n, marks=pytest.mark.slow) for n in (1, 3, 4)])
def others(request):
    with Ranks([_FUSE] * request.param, server=False) as ranks:
        yield ranks


def _fitted(ranks, case="keras_fit", **args):
    """What each process told; tracing takes long on a busy machine."""
    ranks.start(case, **args)
    told = ranks.wait(seconds=_SECONDS)
    for rank, one in enumerate(told):
        assert isinstance(one, dict), f"{one}\n{ranks.log(rank)[-3000:]}"
    return told


def _check(told):
    """All processes have the same logs and values, and predict as the model does."""
    first = told[0]
    for one in told[1:]:
        assert one == first
    assert first["evaluated"]["loss"] == first["history"]["val_loss"][-1]
    assert first["predicted"] == pytest.approx(first["one by one"], abs=1e-5)
    assert len(first["predicted"]) == fit_cases.ROWS


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_values_are_those_of_a_custom_loop(two, optimizer):
    loop, here, sharded = (
        _fitted(two, optimizer=optimizer, **args)
        for args in ({"how": "loop"}, {}, {"sharded": True})
    )
    _check(here)
    assert [one["sharded"] for one in (here[0], sharded[0])] == [False, True]
    for key in _VALUES:
        assert here[0][key] == loop[0][key] == sharded[0][key], key
    for key in ("history", "batches", "evaluated", "predicted"):
        assert sharded == [one | {"sharded": True} for one in here], key


@pytest.mark.slow
def test_values_are_those_of_stock_collectives(two):
    with Ranks(["grpc"] * 2, server=False) as ranks:
        assert _fitted(ranks) == _fitted(two)


def test_values_in_other_numbers_of_processes(others):
    _check(_fitted(others))
    here, loop = _fitted(others, sharded=True), _fitted(others, how="loop")
    for key in _VALUES:
        assert [one[key] for one in here] == [one[key] for one in loop]


@pytest.mark.parametrize(
    ("how", "steps"),
    [
        pytest.param(
            "generator", 1, marks=pytest.mark.xfail(reason="now and then wrong after an epoch")
        ),
        slow("sequence", 1),
        ("fit", 2),
        slow("sequence", 2),
    ],
)
def test_data_in_each_form_gives_the_same(two, how, steps):
    """Also with several steps in one call, of which the last call has fewer."""
    array, here = _fitted(two), _fitted(two, how=how, steps=steps)
    _check(here)
    for key in (*_VALUES, "history", "evaluated", "predicted"):
        assert here[0][key] == array[0][key], key
    assert [batch for batch, _ in here[0]["batches"]] == ([0, 1, 2] if steps == 1 else [1, 3]) * 2


@pytest.mark.parametrize(
    ("policy", "files", "expected"),
    [
        # (Batches of four rows: each process has two of them.)
        ("DATA", [], [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]),
        ("AUTO", [], [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]),
        ("OFF", [], [[[0, 1], [2, 3], [4, 5], [6, 7], [8], [9]]] * 2),
        ("FILE", [[0, 1, 2], [3, 4, 5, 6, 7]], [[[0, 1], [2], []], [[3, 4], [5, 6], [7]]]),
        slow("AUTO", [[0, 1, 2], [3, 4, 5, 6, 7]], [[[0, 1], [2], []], [[3, 4], [5, 6], [7]]]),
    ],
)
def test_rows_are_dealt_by_the_policy(two, tmp_path, policy, files, expected):
    for i, numbers in enumerate(files):
        (tmp_path / f"{i}.txt").write_text("".join(f"{number}\n" for number in numbers))
    told = _fitted(two, "rows_seen", policy=policy, folder=str(tmp_path) if files else "")
    assert [one["seen"] for one in told] == expected
    # The log is the mean over both processes of the last step.
    assert [one["rows"] for one in told] == [[sum(len(one[-1]) for one in expected) / 2]] * 2
    if policy != "OFF":
        rows = sorted(row for one in expected for batch in one for row in batch)
        assert [one["predicted"] for one in told] == [rows] * 2


@pytest.mark.parametrize("sharded", [slow(False), True])
def test_the_chief_alone_saves(two, tmp_path, sharded):
    """Others' callbacks of the same path write nothing; the chief reads all shards."""
    plain = _fitted(two, sharded=sharded)
    saved = _fitted(two, sharded=sharded, folder=str(tmp_path), saves=("backup", "checkpoint"))
    assert saved == plain
    alone = _fitted(
        two, sharded=sharded, folder=str(tmp_path / "alone"), saves=("checkpoint", "alone")
    )
    assert alone == plain
    for folder in (tmp_path, tmp_path / "alone"):
        names = {path.name for path in folder.iterdir() if path.is_file()}
        assert names == {"saved-1.keras", "saved-2.keras"}


@pytest.mark.parametrize("saves", [("backup",), slow(("backup", "alone"))])
def test_a_job_that_was_killed_goes_on(two, tmp_path, saves):
    """With the chief's backup, wherever the others look for one."""
    plain = _fitted(two, sharded=True, epochs=3)
    with Ranks([_FUSE] * 2, server=False) as ranks:
        args = {"sharded": True, "epochs": 3, "folder": str(tmp_path), "saves": saves}
        ranks.start("keras_fit", [0], **args)
        ranks.start("keras_fit", [1], dies=1, **args)
        lost, dead = ranks.wait(seconds=_SECONDS)
        assert dead is Ended
        assert isinstance(lost, Error) and lost.kind == "UnavailableError", lost
    with Ranks([_FUSE] * 2, server=False) as ranks:
        again = _fitted(ranks, **args)
    assert [one["epochs"] for one in again] == [[1, 2]] * 2
    for key in (*_VALUES, "evaluated", "predicted"):
        assert [one[key] for one in again] == [one[key] for one in plain], key
    assert not (tmp_path / "backup").exists()
