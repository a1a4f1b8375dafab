# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The README's benchmark on a small job: counts and losses are exact, times are only there."""

import pytest

# Nine processes that import TensorFlow at once: slow on a busy machine with few cores.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_FEATURES = 10


def test_benchmark_from_another_folder(run_benchmark):
    result = run_benchmark("fuse_recv", f"--features {_FEATURES} --batch 16 --steps 4 --rounds 2")
    assert result["workload"] == "features"
    modes = result["modes"]
    assert list(modes) == ["stock", "fused", "local"]
    for numbers in modes.values():
        assert {"steps_per_s", "recv_rpcs_per_step", "cpu_ms_per_step", "losses"} <= set(numbers)
        assert set(numbers["steps_per_s"]) == {"median", "min", "max"}
        assert {"worker", "ps"} <= set(numbers["cpu_ms_per_step"])
        # The same seeds, the same losses: to the last bit, and they are not constant.
        assert numbers["losses"] == modes["stock"]["losses"]
        assert len(set(numbers["losses"])) == 8
    # Per table: ids to the server, rows back, gradient to the server. Five are the same for any
    # number of tables, the dense layer's weights and their gradient among them.
    stock, fused = (modes[mode]["recv_rpcs_per_step"] for mode in ("stock", "fused"))
    assert stock == 3 * _FEATURES + 5
    assert fused < 3 * _FEATURES
    assert fused == int(fused)
    made = modes["fused"]["pass"]
    assert made["groups"] > 0
    assert made["fused_receives"] >= 3 * _FEATURES
    assert (made["fallbacks"], made["errors"]) == (0, 0)
    assert result["rpc_reduction"] == 1 - fused / stock
    rates = {mode: numbers["steps_per_s"]["median"] for mode, numbers in modes.items()}
    assert result["speedup"] == rates["fused"] / rates["stock"]
    assert result["vs_local"] == rates["local"] / rates["fused"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_losses_of_several_workers_are_equal_too(run_benchmark, workers):
    result = run_benchmark(
        "fuse_recv",
        f"--synchronous --workload rfc --workers {workers} --ps 1 --features 6 --steps 6 --rounds 2"
        " --modes stock fused",
    )
    assert result["losses_equal"] is True
    assert len(set(result["modes"]["fused"]["losses"])) == 12
    assert result["modes"]["fused"]["pass"]["groups"] > 0


def test_ablation_of_groupings(run_benchmark):
    result = run_benchmark(
        "fuse_recv",
        "--workload mixed --features 4 --batch 8 --steps 3 --rounds 2"
        " --grouping level,consumer,cost --modes stock fused",
    )
    assert result["losses_equal"] is True
    modes = result["modes"]
    assert list(modes) == ["stock", "level", "consumer", "cost"]
    rpcs = {mode: numbers["recv_rpcs_per_step"] for mode, numbers in modes.items()}
    # The option arrived: a call for each first user are more than one for a level.
    assert rpcs["level"] < rpcs["consumer"] < rpcs["stock"]
    # On one host "cost" divides no group, and joins some.
    assert rpcs["cost"] < rpcs["level"]
    assert all(modes[mode]["pass"]["groups"] > 0 for mode in ("level", "consumer", "cost"))
    assert set(result["cost_vs"]) == {"stock", "level", "consumer"}
