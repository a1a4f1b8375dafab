# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/collectives.py on real processes: values are checked, bytes are those of a ring."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

# Four processes that import TensorFlow at once: slow on a busy machine with few cores.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run_benchmark(isolated_env, tmp_path):
    """Runs the command with the given options, from another folder; returns its result."""

    def run(options):
        out = tmp_path / "out.json"
        script = _ROOT / "benchmarks" / "collectives.py"
        done = subprocess.run(
            [sys.executable, str(script), *options.split(), "--json", str(out)],
            cwd=tmp_path,
            env=isolated_env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(out.read_text())

    return run


def test_stock_and_ours(run_benchmark):
    options = "--op all_reduce --ranks 2 --sizes 4KB --rounds 1 --calls 3"
    result = run_benchmark(f"{options} --variants stock,tf_fuse")
    (row,) = result["rows"]
    assert (row["op"], row["ranks"], row["bytes"], row["calls"]) == ("all_reduce", 2, 4096, 3)
    for numbers in (row["ms"], row["wire_bytes"], row["cpu_ms"]):
        assert list(numbers) == ["stock", "tf_fuse"]
    for times in row["ms"].values():
        assert 0 < times["min"] <= times["median"] <= times["max"]
    assert min(row["cpu_ms"].values()) > 0
    # (p - 1) V for each half, and headers.
    assert row["wire_bytes"]["stock"] > 2 * 4096
    assert list(row["ratio"]) == ["stock/tf_fuse"]


def test_all_stock_ops_with_chunks_that_are_not_equal(run_benchmark):
    # 10001 elements on three ranks: each op's result is checked in each rank.
    options = "--op all_reduce,reduce_scatter,all_gather,rs_ag --ranks 3 --sizes 40004B"
    result = run_benchmark(f"{options} --rounds 1 --calls 1 --variants stock")
    wire = {row["op"]: row["wire_bytes"]["stock"] for row in result["rows"]}
    assert list(wire) == ["all_reduce", "reduce_scatter", "all_gather", "rs_ag"]
    half = (3 - 1) * 40004
    for op in ("all_reduce", "reduce_scatter", "rs_ag"):
        assert wire[op] > 2 * half
    assert wire["all_gather"] > half


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch (the extra gloo) is not installed"
)
def test_all_ops_of_gloo(run_benchmark):
    options = "--op all_reduce,reduce_scatter,all_gather,rs_ag --ranks 3 --sizes 40004B"
    result = run_benchmark(f"{options} --rounds 1 --calls 1 --variants gloo")
    wire = {row["op"]: row["wire_bytes"]["gloo"] for row in result["rows"]}
    # An op that this PyTorch lacks is left out, and the output says so.
    assert "all_reduce" in wire
    assert all(count > (3 - 1) * 40004 for count in wire.values())
