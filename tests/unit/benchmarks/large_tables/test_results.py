# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The numbers of the benchmark of large tables; no process is started."""

import os

import pytest

from benchmarks.large_tables import memory, results, run
from benchmarks.large_tables.model import CRITEO_ROWS, rows_of_tables


def _row(mode, digest, **phases):
    peaks = {"coordinator": 3 << 20, "worker:0": 1 << 20, "ps:0": 5 << 20, "ps:1": 7 << 20}
    found = {name: {"seconds": 1.0, "peaks": peaks, **more} for name, more in phases.items()}
    found["samples"] = {"seconds": 1.0, "peaks": peaks, "digests": {"t": digest}}
    return {"mode": mode, "servers": 2, "workers": 1, "tables": 26, "phases": found}


def test_tables_have_the_shares_of_criteo():
    rows = rows_of_tables(4 * sum(CRITEO_ROWS), 26)
    assert rows == [4 * count for count in CRITEO_ROWS]
    assert abs(sum(rows_of_tables(42_000_000, 26)) - 42_000_000) < 26
    assert rows_of_tables(1000, 10) == [100] * 10
    assert min(rows_of_tables(1000, 26)) == 3


def test_the_largest_task_of_each_role_counts():
    peaks = _row("all", "a")["phases"]["samples"]["peaks"]
    assert results.largest(peaks) == {"coordinator": 3, "worker": 1, "ps": 7}


def test_what_was_restored_is_compared_by_mode():
    rows = [_row("all", "a"), _row("all", "a"), _row("stock", "b"), _row("stock", "c")]
    assert results.restores_equal(rows) == {"all": True, "stock": False}


@pytest.mark.parametrize("table", run.TABLES)
def test_tables_and_pictures(table, tmp_path):
    train = {"steps_per_s": 2.0, "recv_rpcs_per_step": 9.0, "coordinator_cpu_ms_per_step": 4.0}
    rows = [_row("stock", "a", build={}, prepare={}, train=train, save={"bytes": 10**9})]
    rows.append({**_row("all", "a"), "error": "the machine has only 9 MiB left; ended the job"})
    args = run.parse(["--table", table])
    result = {"table": table, "settings": vars(args), "rows": rows}
    shown = results.render(result)
    assert shown.row_count == (7 if table == "phases" else 2)
    results.plot(result, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 0


def test_the_peak_begins_anew():
    pids = {"me": os.getpid()}
    memory.begin(pids)
    before = memory.peaks(pids)["me"]
    held = bytearray(64 << 20)
    held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])
    assert memory.peaks(pids)["me"] >= before + (60 << 20)
    assert memory.available() > 0


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--rows 0", "--rows must be at least 1, got 0"),
        ("--restore 2 0", "--restore must be at least 1, got 0"),
        ("--table tables --data x", "--data has 26 columns"),
        ("--modes mine", "invalid choice: 'mine'"),
    ],
)
def test_wrong_flags(flags, text, capsys):
    with pytest.raises(SystemExit):
        run.parse(flags.split())
    assert text in capsys.readouterr().err
