# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of updates on servers, on small models: what is counted is exact."""

import pytest

# Nine processes that import TensorFlow at once: slow on a busy machine with few cores.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_KEYS = {
    "imbalance_bytes", "imbalance_update_ms", "losses", "recv_rpcs_per_step",
    "server_cpu_ms_per_step", "steps_per_s",
}  # fmt: skip


@pytest.mark.parametrize("model", ["dense", pytest.param("dlrm", marks=pytest.mark.slow)])
def test_modes(run_benchmark, model, tmp_path):
    result = run_benchmark(
        "parameter_server",
        f"--model {model} --width 16 --batch 8 --steps 3 --rounds 2 --plot a.svg",
    )
    assert (tmp_path / "a.svg").stat().st_size > 0
    modes = result["modes"]
    assert list(modes) == ["stock", "fuse_recv", "all"]
    for numbers in modes.values():
        assert set(numbers) >= _KEYS
        assert set(numbers["steps_per_s"]) == {"median", "min", "max"}
        assert numbers["losses"] == modes["stock"]["losses"]
        assert len(set(numbers["losses"])) == 6
        assert set(numbers["server_cpu_ms_by_server"]) == {"ps:0", "ps:1"}
    assert modes["stock"]["update_ms_by_server"] == modes["fuse_recv"]["update_ms_by_server"] == {}
    assert set(modes["all"]["update_ms_by_server"]) == {"ps:0", "ps:1"}
    assert all(ms > 0 for ms in modes["all"]["update_ms_by_server"].values())
    # In turn, as stock places them, kernels and biases are on one server each.
    assert modes["stock"]["imbalance_bytes"] == modes["fuse_recv"]["imbalance_bytes"]
    assert 1.0 <= modes["all"]["imbalance_bytes"] <= 1.1
    sizes = {name: sum(numbers["bytes_by_device"].values()) for name, numbers in modes.items()}
    assert sizes["stock"] == sizes["fuse_recv"] == sizes["all"]
    assert modes["fuse_recv"]["recv_rpcs_per_step"] < modes["stock"]["recv_rpcs_per_step"]
    assert set(result["ratio"]) == {"stock", "fuse_recv"}
