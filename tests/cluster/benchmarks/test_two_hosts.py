# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training across two hosts (network namespaces) on a bad link: values and receives are as ever."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import standalone, two_hosts

# Nine processes that import TensorFlow at once: slow on a busy machine with few cores.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

_ROOT = Path(__file__).resolve().parents[3]
_FEATURES = 10


@pytest.fixture(scope="module", autouse=True)
def _namespaces_are_allowed():
    if reason := two_hosts.why_not():
        pytest.skip(reason)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2])
def test_training_across_hosts(isolated_env, tmp_path, rounds):
    out = tmp_path / "network.json"
    table, picture = tmp_path / "network.md", tmp_path / "network.svg"
    command = [sys.executable, str(_ROOT / "benchmarks" / "fuse_recv" / "network.py")]
    command += [
        "--features",
        str(_FEATURES),
        "--batch",
        "16",
        "--steps",
        "4",
        "--rounds",
        str(rounds),
    ]
    # The groups by cost would depend on what a call takes.
    command += ["--grouping", "level"]
    command += ["--delays", "1", "--mbits", "--losses", "0.01", "--base-delay", "1"]
    command += ["--json", str(out), "--plot", str(picture), "--markdown", str(table)]
    done = subprocess.run(
        command, cwd=tmp_path, env=isolated_env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    # The same values as stock, on every kind of link, and they are not constant.
    assert result["losses_equal"] is True
    assert len(set(result["losses"])) == 2 * (rounds + 1) * 4
    # As on loopback: per table ids, rows and gradient; fused, one each way per server and depth.
    assert result["recv_rpcs_per_step"] == {"stock": 3 * _FEATURES + 5, "fused": 9}
    assert [row["name"] for row in result["conditions"]] == ["1 ms", "1 ms, 1% loss"]
    for row in result["conditions"]:
        # What is delayed by 1 ms each way cannot be back sooner, however fast the machine.
        assert row["round_trip_ms"] >= 2.0
    assert result["link"]["emulator"] in ("netem", "relay")
    assert f"the link is made bad by: {result['link']['emulator']}" in done.stdout
    rows = [line for line in table.read_text().splitlines() if line.startswith("| 1 ms")]
    assert len(rows) == len(result["conditions"])
    assert picture.stat().st_size > 0


def test_a_cluster_on_two_hosts(tmp_path):
    package = standalone.cluster_package()
    with two_hosts.TwoHosts() as hosts:
        placed = {job: package.Host(**host) for job, host in hosts.of({"ps": 1}).items()}
        with package.LocalCluster(1, 1, "grpc", tmp_path, hosts=placed) as cluster:
            assert cluster.cluster_spec["worker"][0].startswith("localhost:")
            assert cluster.cluster_spec["ps"][0].startswith(f"{hosts.addresses[1]}:")
            networks = {t: os.readlink(f"/proc/{p}/ns/net") for t, p in cluster.pids.items()}
            own = os.readlink("/proc/self/ns/net")
            assert networks["worker:0"] == own != networks["ps:0"]
            # The pid is the task's own, so signals reach it.
            assert f"pid={cluster.pids['ps:0']}" in cluster.logs("ps:0")


def test_the_link_of_netem_joins_the_hosts():
    # Nothing is shaped, so this runs in kernels without netem, too.
    try:
        hosts = two_hosts.TwoHosts("netem")
    except two_hosts.TwoHostsError as error:
        if "Unknown device type" not in str(error) and "not supported" not in str(error):
            raise
        pytest.skip(f"the kernel has no veth: {error}")
    with hosts:
        assert hosts.round_trip_ms() > 0.0


def test_a_veth_has_a_rate_alone():
    if reason := two_hosts.why_not("veth"):
        pytest.skip(reason)
    with two_hosts.TwoHosts("veth") as hosts:
        hosts.shape(mbit=20)
        # A slow machine makes it less, and nothing makes it much more.
        limited = hosts.stream_mbit()
        assert 0 < limited < 40
        hosts.shape()
        assert hosts.stream_mbit() > limited
        text = "has a rate alone, but is to have a delay of 1 ms and a loss of 0.5; take netem or"
        with pytest.raises(two_hosts.TwoHostsError, match=text):
            hosts.shape(delay_ms=1.0, loss=0.5)


def test_nothing_is_left_of_the_hosts():
    with two_hosts.TwoHosts() as hosts:
        names = {host["command"][-1] for host in hosts.of({"worker": 0, "ps": 1}).values()}
        assert len(names) == 2 and names <= set(os.listdir("/run/netns"))
    assert not names & set(os.listdir("/run/netns"))


def test_a_relay_that_cannot_work_says_why():
    with two_hosts.TwoHosts("relay") as hosts:
        hosts._relay.kill()
        hosts._relay.wait()
        with pytest.raises(two_hosts.TwoHostsError, match="the relay failed"):
            hosts.shape(delay_ms=1.0)
