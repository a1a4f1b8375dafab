# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of `fit` on servers, on a small model."""

import numpy as np
import pytest

from benchmarks.keras_fit import run, variant

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


_LINES = [
    "1,1,,3.0,4,5,6,7,8,9,10,11,12,13," + ",".join(f"{i:08x}" for i in range(26)),
    "0,-1,2,3,4,5,6,7,8,9,10,11,12,13," + ",".join(f"{i:08x}" for i in range(25)) + ",",
]


@pytest.fixture
def criteo(tmp_path):
    path = tmp_path / "criteo.csv"
    path.write_text("".join(f"{line}\n" for line in _LINES))
    return path


def test_a_file_in_criteos_format_is_read(criteo):
    settings = {"data": str(criteo), "batch": 3, "rows": 50}
    (numeric, ids), labels = variant.read(settings)
    assert (numeric.shape, ids.shape, labels.tolist()) == ((2, 13), (2, 26), [[1.0], [0.0]])
    assert numeric[0, 1] == 0.0  # is missing
    assert numeric[0, 0] == -numeric[1, 0] == np.float32(np.log1p(1.0) / 10)
    assert ids.min() >= 0 and ids.max() < 50
    assert ids[0, :25].tolist() == ids[1, :25].tolist()
    batches = list(variant.batches(settings, worker=1).take(variant._POOL + 2))
    assert [tuple(one.shape) for one in (*batches[0][0], batches[0][1])] == [
        (3, 13),
        (3, 26),
        (3, 1),
    ]
    # The pool repeats.
    for one, again in zip(batches[:2], batches[-2:], strict=True):
        np.testing.assert_array_equal(one[0][1], again[0][1])


def test_a_file_in_another_format_is_named(criteo, capsys):
    criteo.write_text("1,2\n")
    with pytest.raises(SystemExit):
        run.parse(["--data", str(criteo)])
    assert "expected 40 comma-separated columns" in capsys.readouterr().err


def test_rows_are_compared_with_fit_and_with_the_first_number_in_flight():
    times = {("loop", 1): 6.0, ("fit", 1): 8.0, ("loop", 4): 3.0, ("fit", 4): 2.0}
    rounds = {row: [{"ms_per_step": one}] for row, one in times.items()}

    def compared(name, count):
        return {key: one["median"] for key, one in run.ratios(rounds, name, count).items()}

    assert compared("loop", 1) == {"over_fit": 0.75}
    assert compared("fit", 1) == {}
    assert compared("loop", 4) == {"over_fit": 1.5, "speedup": 2.0}
    assert compared("fit", 4) == {"speedup": 4.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", ["", "--metrics --steps-per-execution 2", "--steps-in-flight 1 2 --data criteo.csv"]
)
def test_variants(run_benchmark, more, tmp_path, criteo):
    result = run_benchmark(
        "keras_fit",
        f"--workers 1 --ps 1 --width 8 --batch 8 --rows 9 --steps 4 --rounds 1 --plot a.svg {more}",
    )
    assert (tmp_path / "a.svg").stat().st_size > 0
    rows = {(one["variant"], one["steps_in_flight"]): one for one in result["rows"]}
    names = ["loop", "loop_mean", "fit", "fit_coordinator", "tf_keras"]
    more_rows = [(name, 2) for name in names[:-1]] if "--steps-in-flight" in more else []
    assert list(rows) == [(name, 1) for name in names] + more_rows
    for (name, count), row in rows.items():
        assert ("over_fit" in row, "speedup" in row) == (name != "fit", count > 1)
        assert min(row[key]["min"] for key in ("ms_per_step", "cpu_ms_per_step", "loss")) > 0
