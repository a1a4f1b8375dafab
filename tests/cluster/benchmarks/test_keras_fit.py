# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of `fit` on servers, on a small model."""

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "--metrics --steps-per-execution 2"])
def test_variants(run_benchmark, more, tmp_path):
    result = run_benchmark(
        "keras_fit",
        f"--workers 1 --ps 1 --width 8 --batch 8 --rows 9 --steps 4 --rounds 1 --plot a.svg {more}",
    )
    assert (tmp_path / "a.svg").stat().st_size > 0
    assert list(result["variants"]) == ["loop", "fit", "fit_coordinator", "tf_keras"]
    assert set(result["ratio"]) == {"loop", "fit_coordinator", "tf_keras"}
    for numbers in result["variants"].values():
        assert set(numbers) == {"ms_per_step", "cpu_ms_per_step", "loss"}
        assert all(one["min"] > 0 for one in numbers.values())
