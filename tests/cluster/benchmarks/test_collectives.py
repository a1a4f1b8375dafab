# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/collectives on real processes: values are checked, bytes are those of a ring."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples import two_hosts

# Four processes that import TensorFlow at once: slow on a busy machine with few cores.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def _namespaces_are_allowed():
    if reason := two_hosts.why_not("veth"):
        pytest.skip(reason)


@pytest.mark.slow
@pytest.mark.usefixtures("_namespaces_are_allowed")
def test_between_two_hosts(run_benchmark):
    options = "--hosts 2 --mbit 1000 --ranks 2 --sizes 1MB --rounds 1 --calls 2"
    result = run_benchmark(
        "collectives", f"{options} --variants stock,tf_fuse --paths shm,grpc,tcp"
    )
    link = result["link"]
    assert (link["emulator"], link["mbit"], link["name"]) == ("veth", 1000, "0 ms, 1000 Mbit/s")
    assert link["round_trip_ms"] > 0
    (row,) = result["rows"]
    size = 1 << 20
    # What is left to the library is gRPC there, and each tensor passes the link once each way.
    taken = {"tf_fuse": "grpc", "tf_fuse[grpc]": "grpc", "tf_fuse[tcp]": "tcp"}
    assert row["path_bytes"] == {
        name: {path: 2 * size if path == one else 0 for path in ("shm", "tcp", "grpc")}
        for name, one in taken.items()
    }
    assert list(row["wire_bytes"]) == ["stock", *taken]
    for count in row["wire_bytes"].values():
        assert 2 * size < count < 2.5 * size
    assert row["calls"] == 2


@pytest.mark.usefixtures("_namespaces_are_allowed")
@pytest.mark.parametrize(
    ("number", "whole_group"), [(signal.SIGINT, True), (signal.SIGTERM, False)]
)
def test_nothing_is_left_when_it_is_interrupted(isolated_env, tmp_path, number, whole_group):
    script = _ROOT / "benchmarks" / "collectives" / "run.py"
    options = "--hosts 2 --ranks 2 --sizes 4KB --variants stock"
    process = subprocess.Popen(
        [sys.executable, str(script), *options.split()],
        cwd=tmp_path,
        env=isolated_env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        assert "two hosts, link by veth: nothing limited" in process.stdout.readline()
        made = {name for name in os.listdir("/run/netns") if f"_{process.pid}_" in name}
        assert len(made) == 2
        # A terminal's Ctrl-C reaches the ranks as well.
        (os.killpg if whole_group else os.kill)(process.pid, number)
        error = process.communicate()[1]
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, error
    assert "interrupted: all ranks have been ended" in error
    assert "Traceback" not in error
    assert not made & set(os.listdir("/run/netns"))


def test_stock_and_ours(run_benchmark):
    options = "--op all_reduce --ranks 2 --sizes 4KB --rounds 1 --calls 3"
    result = run_benchmark("collectives", f"{options} --variants stock,tf_fuse")
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
    result = run_benchmark("collectives", f"{options} --rounds 1 --calls 1 --variants stock")
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
    result = run_benchmark("collectives", f"{options} --rounds 1 --calls 1 --variants gloo")
    wire = {row["op"]: row["wire_bytes"]["gloo"] for row in result["rows"]}
    # An op that this PyTorch lacks is left out, and the output says so.
    assert "all_reduce" in wire
    assert all(count > (3 - 1) * 40004 for count in wire.values())
