# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Data channels between hosts and containers (namespaces), over IPv6, and by names of all kinds."""

import os
import subprocess

import pytest

from examples import two_hosts
from tests.cluster.collectives.ranks import Ranks, Reduce

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

# In one step, through the socket, and in pieces.
_SPECS = [Reduce(2, "float32", elements) for elements in (5, 9_000, 700_001)]
_LOCAL = "127.0.0.1 localhost\n::1 localhost\n"


@pytest.fixture(scope="module")
def expected():
    with Ranks(["grpc+fuse"] * 2) as ranks:
        return ranks.values("reduce", specs=_SPECS)


@pytest.fixture(scope="module")
def hosts():
    if reason := two_hosts.why_not():
        pytest.skip(reason)
    with two_hosts.TwoHosts() as hosts:
        yield hosts


def _check(expected, path, places, paths, user=0):
    """Check that two ranks reduce as two of this host do, and that all bytes take one path."""
    with Ranks(["grpc+fuse"] * 2, {"TF_FUSE_COLLECTIVE_PATHS": paths}, places=places) as ranks:
        if user:
            ranks.values("becomes", [1], user=user)
        results, counted = ranks.counted("reduce", specs=_SPECS)
        assert results == expected
        for rank, of_rank in enumerate(counted):
            taken = {key for key in of_rank if key.startswith("collective_bytes_")}
            assert taken == {f"collective_bytes_{path}"}, (rank, of_rank, ranks.log(rank)[-3000:])
        assert not any("no data channel to" in ranks.log(rank) for rank in range(2))


def _containers(hosts, **more):
    """Return places in two network namespaces of this kernel, which have a link."""
    names = [host["command"][-1] for host in hosts.of({"a": 0, "b": 1}).values()]
    return [
        {"host": address, "netns": name, **{key: of_rank[i] for key, of_rank in more.items()}}
        for i, (address, name) in enumerate(zip(hosts.addresses, names, strict=True))
    ]


@pytest.mark.parametrize(("paths", "path"), [("shm,tcp", "tcp"), ("shm,grpc", "grpc")])
def test_containers_of_one_host(expected, hosts, paths, path):
    """They have one kernel, and do not see each other's Unix sockets."""
    _check(expected, path, _containers(hosts), paths)


def test_users_of_one_host(expected):
    """They see each other's Unix sockets and are refused there."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    _check(expected, "tcp", [], "shm,tcp", user=65534)


@pytest.mark.parametrize(("paths", "path"), [("tcp", "tcp"), ("shm", "shm")])
def test_ipv6(expected, paths, path):
    _check(expected, path, [{"host": "[::1]"}] * 2, paths)


@pytest.fixture
def host_without_ipv4():
    """The name of a namespace whose loopback has an IPv6 address alone."""
    if reason := two_hosts.why_not():
        pytest.skip(reason)
    name = f"tf_fuse_{os.getpid()}_ipv6"
    ip = ["ip", "-n", name]
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run([*ip, "link", "set", "dev", "lo", "up"], check=True)
        subprocess.run([*ip, "-4", "address", "flush", "dev", "lo"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def test_a_host_without_ipv4(expected, host_without_ipv4):
    """Its /etc/hosts has an address of IPv4 for localhost all the same."""
    place = {"host": "[::1]", "netns": host_without_ipv4, "names": "127.0.0.1 localhost\n"}
    _check(expected, "tcp", [place] * 2, "tcp")


@pytest.mark.parametrize("own", ["127.0.0.1", "::1"])
def test_a_name_with_several_addresses(expected, own):
    """At one of them nobody listens: peers may know more addresses than the host itself has."""
    if reason := two_hosts.why_not():
        pytest.skip(reason)
    both = "127.0.0.1 {0}\n::1 {0}\n"
    names = ["first.localhost", "second.localhost"]
    places = [
        {"host": name, "names": f"{_LOCAL}{own} {name}\n{both.format(other)}"}
        for name, other in zip(names, reversed(names), strict=True)
    ]
    _check(expected, "tcp", places, "tcp")


def test_a_name_that_is_loopback_on_its_own_host(expected, hosts):
    """As Debian has it: peers know the host by another address than it does itself."""
    names = ["first.example", "second.example"]
    texts = [
        f"{_LOCAL}127.0.1.1 {names[i]}\n{hosts.addresses[1 - i]} {names[1 - i]}\n" for i in range(2)
    ]
    _check(expected, "tcp", _containers(hosts, host=names, names=texts), "tcp")
