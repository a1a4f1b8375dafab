# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A host that loses power leaves connections that nobody ends: here its link goes down.

The kernel asks such a host after 20 s, and gives up after 20 s more. The test takes the sockets for
which the plugin has asked for that, and lets the kernel ask at once.
"""

import concurrent.futures
import contextlib
import os
import socket
import subprocess
import sys

import pytest

from examples import tun_relay, two_hosts
from tests.cluster.collectives.ranks import Ranks
from tests.fault import coordinator, queue_steps
from tests.fault.soak import faults as soak_faults

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(300)]

_UNAVAILABLE = 14
_PS, _WORKER = "/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0"


@pytest.fixture(autouse=True)
def _is_allowed():
    if reason := two_hosts.why_not("veth") or soak_faults.may_drop():
        pytest.skip(reason)


def _sockets(pid):
    """The TCP sockets of a process whose other host the kernel is to ask."""
    sockets = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # it has been closed, or is not a socket
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:"):
                one = soak_faults.take(pid, int(fd))
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockopt(
                    socket.SOL_SOCKET, socket.SO_KEEPALIVE
                ):
                    sockets.append(one)
                else:
                    one.close()
    return sockets


def _ask_at_once(pid):
    """Let the kernel ask within seconds; return how many sockets there were."""
    sockets = _sockets(pid)
    for one in sockets:
        with one:
            for name, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3)):
                one.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            # Where that is set, it is in the place of the count.
            if one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3000)
            # The timer that runs was set before.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return len(sockets)


def _lose_power(hosts):
    """Takes the link of the second host away; the first one is not told."""
    first, second = _names(hosts)
    # As behind a router: on one link, nobody answers for an address, which is an error at once.
    neighbour = [hosts.addresses[1], "lladdr", "02:00:00:00:00:02", "nud", "permanent"]
    for command in (
        ["ip", "-n", first, "neigh", "replace", *neighbour, "dev", two_hosts.DEVICE],
        ["ip", "-n", second, "link", "set", "dev", two_hosts.DEVICE, "down"],
    ):
        subprocess.run(command, check=True)


def _names(hosts):
    return [host["command"][-1] for host in hosts.of({"a": 0, "b": 1}).values()]


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter"])
def test_a_collective_ends(op):
    """By TCP channels, without a time limit; the other one does not come."""
    with two_hosts.TwoHosts("veth") as hosts:
        places = [
            {"host": address, "netns": name}
            for address, name in zip(hosts.addresses, _names(hosts), strict=True)
        ]
        env = {"TF_FUSE_COLLECTIVE_PATHS": "tcp"}
        with Ranks(["grpc+fuse"] * 2, env, places=places) as ranks:
            ranks.values("attempt", op=op, elements=1000)
            ranks.start("attempt", [0], op=op, elements=1000)
            # One connection each way.
            assert _ask_at_once(ranks._ranks[0].pid) == 2
            _lose_power(hosts)
            (result,) = ranks.wait([0])
            error = result["error"]
            assert error.code == _UNAVAILABLE, error
            assert "/task:1/device:CPU:0" in error.text, error
            assert "the data channel was lost: " in error.text, error
            assert "Connection timed out" in error.text, error


def test_a_fused_receive_ends():
    """By gRPC, without a time limit."""
    cases = coordinator.run(__file__)
    assert cases["waits"] == {"entered": True, "fused": True}
    assert cases["asked"] >= 1
    assert cases["error"]["code"] == _UNAVAILABLE, cases["error"]
    assert "Connection timed out" in cases["error"]["text"], cases["error"]


def _main():
    hosts = two_hosts.TwoHosts("veth")
    tun_relay.enter_namespace(_names(hosts)[0])  # before there are other threads
    import tensorflow as tf

    from tf_fuse.cluster import Host

    sides = hosts.of({"chief": 0, "worker": 0, "ps": 1})
    job = coordinator.Job(
        "on",
        workers=1,
        ps=1,
        hosts={name: Host(**host) for name, host in sides.items()},
        env={"TF_FUSE_STEP_WAIT_MS": "500"},
    )
    steps = queue_steps.QueueSteps(job)
    steps.run(1)
    worker = job.cluster.pids["worker:0"]

    def blocks():
        with tf.device(_WORKER):
            return steps.blocks()

    pool = concurrent.futures.ThreadPoolExecutor(1)
    step = pool.submit(coordinator.caught, blocks)

    def waits():
        import tf_fuse

        entered = coordinator.wait_until(lambda: int(steps.entered.numpy()) == 1)
        fused = coordinator.wait_until(
            lambda: any(
                one["peer"] == _PS and not one["sending"]
                for one in tf_fuse.cluster_waiting()[_WORKER] or ()
            )
        )
        return {"entered": bool(entered), "fused": bool(fused)}

    def asked():
        coordinator.wait_until(lambda: _sockets(worker))
        count = _ask_at_once(worker)
        _lose_power(hosts)
        return count

    def error():
        try:
            return step.result(60)
        finally:
            job.cluster.close()
            hosts.close()

    coordinator.finish({"waits": waits, "asked": asked, "error": error})


if __name__ == "__main__":
    sys.exit(_main())
