# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Synthetic data, the encoding, the workers' dataset, and AUC."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.wide_deep.data import adult, criteo, encode, synthetic
from examples.wide_deep.data.common import stable_bucket
from examples.wide_deep.workload import roc_auc


@pytest.mark.parametrize("kind", ["criteo", "adult"])
def test_synthetic_is_deterministic_and_prefix_stable(kind):
    short = list(getattr(synthetic.Synthetic(10), kind)())
    long = itertools.islice(getattr(synthetic.Synthetic(9000), kind)(), 10)
    assert short == list(long)
    assert short != list(getattr(synthetic.Synthetic(10, seed=2), kind)())
    assert sum(1 for _ in getattr(synthetic.Synthetic(4097), kind)()) == 4097


def test_synthetic_first_row_is_pinned():
    row = next(synthetic.Synthetic(1).criteo())
    assert (row.label, row.numeric[:3], row.categorical[0]) == (0, (887.0, 0.0, 0.0), "42119955")


def test_synthetic_skew_and_cardinality():
    def top_share(skew):
        rows = list(synthetic.Synthetic(4000, cardinality=50, skew=skew).criteo())
        values = [row.categorical[0] for row in rows if row.categorical[0]]
        assert len(set(values)) <= 50
        return max(values.count(v) for v in set(values)) / len(values)

    assert top_share(0.0) < 0.04 < 0.15 < top_share(1.2)


@pytest.mark.parametrize("values", [{"rows": 0}, {"rows": 1, "skew": -1}, {"rows": 1, "seed": -1}])
def test_synthetic_bad_values(values):
    with pytest.raises(ValueError, match="synthetic data needs rows >= 1"):
        synthetic.Synthetic(**values)


@pytest.mark.parametrize(
    ("arguments", "read", "rows"),
    [
        ([], criteo.read, synthetic.Synthetic(20).criteo),
        (["--separator", "comma", "--header"], criteo.read, synthetic.Synthetic(20).criteo),
        (["--format", "adult"], adult.read, synthetic.Synthetic(20).adult),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_written_file_reads_back(tmp_path, arguments, read, rows, suffix):
    out = tmp_path / f"data{suffix}"
    assert synthetic.main(["--rows", "20", "--out", str(out), *arguments]) == 0
    assert list(read(out)) == list(rows())


def test_encode_row():
    (row,) = synthetic.Synthetic(1).adult()
    floats, ids = encode.ADULT.encode(row)
    assert floats[:2] == [float(row.label), math.log1p(row.numeric[0]) / 10]
    names = [name for name, _ in encode.ADULT.id_columns()]
    assert ids[0] == stable_bucket(f"workclass={row.categorical[0]}", 128)
    cross = names.index("education_x_occupation")
    values = dict(zip(adult.CATEGORICAL, row.categorical, strict=True))
    text = f"education_x_occupation={values['education']}\x1f{values['occupation']}"
    assert ids[cross] == stable_bucket(text, 1000)


@pytest.mark.parametrize(
    ("value", "category"),
    [(None, ""), (-3.0, "-3"), (0.0, "0"), (2.0, "2"), (3.0, "L1"), (1000.0, "L47")],
)
def test_magnitude(value, category):
    assert encode.magnitude(value) == category


@given(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_scaled_is_odd_and_finite(value):
    assert math.isfinite(encode.scaled(value))
    if value is not None:
        assert encode.scaled(-value) == -encode.scaled(value)


def test_file_round_trip_and_windows(tmp_path):
    rows = list(synthetic.Synthetic(50).criteo())
    plain = encode.encode_file(rows, encode.CRITEO, tmp_path / "a")
    windowed = encode.encode_file(rows, encode.CRITEO, tmp_path / "b", window=7)
    assert plain.path.read_bytes() == windowed.path.read_bytes()
    label, numeric, ids = plain.arrays()
    assert [int(v) for v in label] == [row.label for row in rows]
    assert numeric.shape == (50, 13)
    assert ids.shape == (50, 26 + 13 + 3)
    for column, (_, buckets) in enumerate(encode.CRITEO.id_columns()):
        assert 0 <= ids[:, column].min() <= ids[:, column].max() < buckets


def test_shuffle_permutes_by_seed(tmp_path):
    rows = list(synthetic.Synthetic(50).criteo())
    plain = encode.encode_file(rows, encode.CRITEO, tmp_path / "a")
    files = [
        encode.encode_file(rows, encode.CRITEO, tmp_path / f"s{i}", shuffle_seed=seed)
        for i, seed in enumerate((1, 1, 2))
    ]
    first, again, other = (f.path.read_bytes() for f in files)
    assert first == again != other

    def records(file):
        return sorted(map(bytes, np.hstack([file.arrays()[2], file.arrays()[1].view("i4")])))

    assert records(plain) == records(files[0])


@pytest.mark.parametrize("workers", [1, 2])
def test_dataset_deals_batches_to_workers(tmp_path, workers):
    file = encode.encode_file(synthetic.Synthetic(50).criteo(), encode.CRITEO, tmp_path / "a")
    label, numeric, ids = file.arrays()
    for worker in range(workers):
        mine = [batch for batch in range(50 // 8) if batch % workers == worker]
        dataset = file.dataset(8, worker, workers)
        for batch, element in zip(mine * 2, dataset.as_numpy_iterator(), strict=False):
            rows = slice(batch * 8, batch * 8 + 8)
            for expected, found in zip((label, numeric, ids), element, strict=True):
                np.testing.assert_array_equal(found, expected[rows])


def test_dataset_needs_a_batch_per_worker(tmp_path):
    file = encode.encode_file(synthetic.Synthetic(50).criteo(), encode.CRITEO, tmp_path / "a")
    with pytest.raises(ValueError, match=r"50 rows, that is 1 batches of 32; 2 worker\(s\) need"):
        file.dataset(32, 0, 2)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=30))
def test_auc_counts_pairs(examples):
    pairs = [(p > n) + (p == n) / 2 for yp, p in examples if yp for yn, n in examples if not yn]
    found = roc_auc(np.array([y for y, _ in examples]), np.array([s for _, s in examples]))
    assert found == pytest.approx(np.mean(pairs)) if pairs else math.isnan(found)
