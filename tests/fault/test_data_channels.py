# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What strangers send to the sockets of data channels: the ranks go on, and nothing stays.

A socket's name is no secret (/proc/net/unix); its tokens are, which only members of a group have.
"""

import os
import random
import socket
from pathlib import Path

import psutil
import pytest
from cluster.collective_ranks import Ranks, Reduce
from fault import coordinator, raw_channel

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_SPEC = Reduce(2, "float32", 300_000)


def _names(pid):
    """The names of a process' sockets that listen for data channels."""
    words = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
    return sorted({word[1:] for word in words if word.startswith(f"@tf_fuse.{pid}.")})


def _rest(client):
    """What is still sent until the other side hangs up, perhaps without having read all."""
    try:
        return client.recv(1)
    except ConnectionResetError:
        return b""


def _attacks():
    from tf_fuse.v1 import collectives_pb2

    hello = collectives_pb2.ChannelMessage(hello={"version": 1, "token": bytes(16)})
    old = collectives_pb2.ChannelMessage(hello={"version": 0, "token": b""})
    request = collectives_pb2.ChannelMessage(request={"call": 1, "key": "k", "bytes": 1 << 40})
    release = collectives_pb2.ChannelMessage(release={"leases": range(1000)})
    noise = random.Random(1)
    return {
        "another magic": raw_channel.packed(hello, magic=7),
        "a message of 4 GiB": raw_channel.packed(hello, size=(1 << 32) - 1),
        "no message": raw_channel.HEADER.pack(raw_channel.MAGIC, 8, 0) + b"\xff" * 8,
        "an empty message": raw_channel.HEADER.pack(raw_channel.MAGIC, 0, 0),
        "a wrong token": raw_channel.packed(hello),
        "an older version": raw_channel.packed(old),
        "a request without a greeting": raw_channel.packed(request),
        "loans of nobody": raw_channel.packed(release),
        "bytes behind a greeting": raw_channel.packed(hello, bytes(100), announced=1 << 40),
        **{f"noise {i}": noise.randbytes(noise.randint(16, 5000)) for i in range(20)},
    }


class _Pair:
    """Two ranks; the first one is attacked."""

    def __init__(self):
        self.ranks = Ranks(["grpc+fuse"] * 2)
        self.expected = self.reduce()
        self.pid = self.ranks._ranks[0].pid
        (self.name,) = _names(self.pid)

    def reduce(self):
        return self.ranks.values("reduce", specs=[_SPEC])

    def connect(self):
        client = socket.socket(socket.AF_UNIX)
        client.connect(f"\0{self.name}")  # waits while the listener's queue is full
        client.settimeout(30)
        return client

    def descriptors(self):
        return psutil.Process(self.pid).num_fds()


@pytest.fixture(scope="module")
def pair():
    pair = _Pair()
    yield pair
    pair.ranks.close()


@pytest.mark.parametrize("attack", sorted(_attacks()))
def test_what_is_no_member_of_the_group_is_hung_up_on(pair, attack):
    before = pair.descriptors()
    with pair.connect() as client:
        client.sendall(_attacks()[attack])
        client.shutdown(socket.SHUT_WR)
        assert _rest(client) == b""  # nothing is answered
    assert pair.reduce() == pair.expected
    assert coordinator.wait_until(lambda: pair.descriptors() <= before)


def test_half_a_message_and_silence_keep_nobody_waiting(pair):
    before = pair.descriptors()
    silent = [pair.connect() for _ in range(50)]
    for i, client in enumerate(silent):
        client.sendall(raw_channel.HEADER.pack(raw_channel.MAGIC, 100, 0)[: i % 17])
    assert pair.reduce() == pair.expected
    for client in silent:
        client.close()
    assert coordinator.wait_until(lambda: pair.descriptors() <= before)


@pytest.mark.parametrize("count", [1, 2])
def test_descriptors_of_a_stranger_are_closed(pair, count):
    before = pair.descriptors()
    pipes = [os.pipe() for _ in range(count)]
    with pair.connect() as client:
        greeting = next(iter(_attacks().values()))
        socket.send_fds(client, [greeting], [writing for _, writing in pipes])
        for _, writing in pipes:
            os.close(writing)
        client.shutdown(socket.SHUT_WR)
        assert _rest(client) == b""
    for reading, _ in pipes:
        # The other side has closed its copy, or this would wait.
        assert os.read(reading, 1) == b""
        os.close(reading)
    assert coordinator.wait_until(lambda: pair.descriptors() <= before)


def test_strangers_that_wait_are_hung_up_on_when_there_are_many(pair):
    """The oldest ones: 128 may wait for their greeting."""
    before = pair.descriptors()
    strangers = [pair.connect() for _ in range(200)]
    assert [_rest(client) for client in strangers[:72]] == [b""] * 72
    for client in strangers[72:]:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
    assert pair.reduce() == pair.expected
    for client in strangers:
        client.close()
    assert coordinator.wait_until(lambda: pair.descriptors() <= before)


def test_without_descriptors_a_stranger_is_refused_and_does_not_wait(pair):
    """A connection that cannot be accepted would keep the channels' thread busy."""
    process = psutil.Process(pair.pid)
    soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
    # Descriptors are numbered from below: as many as are open, or fewer, cannot grow.
    process.rlimit(psutil.RLIMIT_NOFILE, (pair.descriptors(), hard))
    try:
        with pair.connect() as client:
            assert _rest(client) == b""
    finally:
        process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
    assert pair.reduce() == pair.expected


def test_the_socket_goes_with_its_process():
    with Ranks(["grpc+fuse"] * 2) as ranks:
        ranks.values("reduce", specs=[_SPEC])
        pids = [rank.pid for rank in ranks._ranks]
        assert all(_names(pid) for pid in pids)
    assert coordinator.wait_until(lambda: not any(_names(pid) for pid in pids))
    assert not list(Path("/dev/shm").glob("*tf_fuse*"))
