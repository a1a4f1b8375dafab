# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of large tables, on small ones: what is counted and restored is exact."""

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_SMALL = "--rows 3000 --batch 8 --width 8 --dim 4 --servers 2 --steps 2 --warm-up 1"


def test_phases(run_benchmark, tmp_path):
    result = run_benchmark(
        "large_tables", f"{_SMALL} --workers 1 --modes all --restore 1 --plot a.svg"
    )
    assert (tmp_path / "a.svg").stat().st_size > 0
    saved, restored = result["rows"]
    assert [*saved["phases"]] == [
        "start", "build", "prepare", "train", "evaluate", "save", "samples",
    ]  # fmt: skip
    assert [*restored["phases"]] == ["start", "build", "restore", "samples"]
    assert result["restores_equal"] == {"all": True}
    found = saved["phases"]["samples"]
    assert found["digests"] == restored["phases"]["samples"]["digests"]
    # A weight and two slots of 26 tables, and of the dense layers' kernels and biases.
    assert len(found["digests"]) == 3 * (26 + 10) and found["changed"] > 0
    assert set(saved["phases"]["train"]["peaks"]) == {"coordinator", "worker:0", "ps:0", "ps:1"}
    # 3000 rows of 4 numbers, three times, and the dense layers.
    assert saved["phases"]["save"]["bytes"] > 3 * 3000 * 4 * 4


@pytest.mark.slow
@pytest.mark.parametrize("table, numbers", [("workers", "1 2"), ("tables", "4 6")])
def test_rows_by_number(run_benchmark, table, numbers):
    result = run_benchmark(
        "large_tables",
        f"{_SMALL} --workers 1 --table {table} --numbers {numbers} --modes stock stock_gather all",
    )
    rows = result["rows"]
    assert [row["mode"] for row in rows] == ["stock", "stock_gather", "all"] * 2
    assert [row[table] for row in rows[::3]] == [int(number) for number in numbers.split()]
    for stock, _, mine in (rows[:3], rows[3:]):
        counted = [one["phases"]["train"]["recv_rpcs_per_step"] for one in (stock, mine)]
        assert counted[0] > counted[1] > 0
