# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What strangers send to the sockets of data channels: the ranks go on, and nothing stays.

A socket's name is not secret (/proc/net/unix); its tokens are, which only members of a group have.
"""

import contextlib
import ctypes
import os
import random
import re
import signal
import socket
from pathlib import Path

import psutil
import pytest

from tests.cluster.collectives.ranks import Ranks, Reduce
from tests.fault import coordinator, raw_channel
from tests.fault.soak import faults as soak_faults

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_SPEC = Reduce(2, "float32", 300_000)
_MEMORY = "/memfd:tf_fuse"
_PTRACE_ATTACH, _PTRACE_DETACH, _WALL = 16, 17, 0x40000000


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

    hello = collectives_pb2.ChannelMessage(
        hello={"version": raw_channel.VERSION, "token": bytes(16)}
    )
    old = collectives_pb2.ChannelMessage(hello={"version": 1, "token": b""})
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


def _areas(pid):
    """Return where a process has the memory that it lends: eight blocks and their stamps each."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    areas = [line.split()[0].split("-") for line in lines if "rw-s" in line and _MEMORY in line]
    return [(int(begin, 16), int(end, 16)) for begin, end in areas]


def _use_for_others(pid):
    """Do to lent memory what its owner, which is stopped, would do to use it for others."""
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for begin, end in _areas(pid):
            for stamp in range(end - 4096, end, 64):
                os.pwrite(memory.fileno(), b"\xff" * 8, stamp)
            for slot in range(begin, end - 4096, 1 << 20):
                os.pwrite(memory.fileno(), b"\x3f" * (1 << 20), slot)


@pytest.mark.skipif(bool(soak_faults.may_drop()), reason=soak_faults.may_drop() or "-")
@pytest.mark.parametrize(
    "op",
    [
        pytest.param("all_reduce", marks=pytest.mark.slow),
        "reduce_scatter",
        pytest.param("all_gather", marks=pytest.mark.slow),
    ],
)
def test_what_was_read_of_memory_in_other_use_is_an_error_and_no_value(op):
    """A rank that lost the channel of one that still reads uses the memory for others."""
    with Ranks(["grpc+fuse"] * 3) as ranks:
        args = {"op": op, "elements": 3_000_000}
        ranks.values("attempt", **args)
        ranks.start("attempt", calls=10_000_000, **args)
        ranks.begun(0)
        for _ in range(500):
            ranks.pause(2)
            _use_for_others(ranks._ranks[2].pid)
            ranks.resume(2)
            if ranks.answers(0, seconds=0.01):
                break
        results = ranks.wait()
        assert [result.get("wrong") for result in results] == [None] * 3
        for result in results:
            assert result["error"].code == 14, result
            assert "the data channel was lost while its bytes were read" in result["error"].text
        for result in results[:2]:
            assert re.search(r"task:2\b", result["error"].text), result


def test_a_child_that_is_forked_keeps_no_channel():
    """Else peers would wait for what a rank that is dead cannot send, and its memory would stay."""
    with Ranks(["grpc+fuse"] * 3, {"TF_FUSE_COLLECTIVE_PATHS": "shm,tcp,grpc"}) as ranks:
        args = {"op": "all_reduce", "elements": 3_000_000}
        ranks.values("attempt", **args)
        pid = ranks._ranks[2].pid
        sockets = {
            c.fd for c in psutil.Process(pid).net_connections("unix") if "tf_fuse" in c.laddr
        }
        assert len(sockets) >= 3 and _areas(pid)  # a listener, and two consumers
        (child,) = ranks.values("forks", [2])
        try:
            links = [os.readlink(file) for file in Path(f"/proc/{child}/fd").iterdir()]
            assert not [link for link in links if _MEMORY in link]
            assert _MEMORY not in Path(f"/proc/{child}/maps").read_text()
            kept = [c for c in psutil.Process(child).net_connections("all") if _is_ours(c, pid)]
            assert not kept
            ranks.values("attempt", **args)  # the parent has all of it
            ranks.start("attempt", calls=10_000_000, **args)
            ranks.begun(0)
            ranks.kill(2)
            for result in ranks.wait([0, 1]):
                assert re.search(r"task:2\b", result["error"].text), result
            assert coordinator.wait_until(lambda: not _names(pid))
        finally:
            os.kill(child, signal.SIGKILL)


def _is_ours(connection, pid):
    """Return whether it belongs to a Unix socket of data channels."""
    return isinstance(connection.laddr, str) and connection.laddr.startswith(f"@tf_fuse.{pid}.")


def test_a_process_that_does_not_greet_is_reached_by_grpc():
    """Its channels' thread has stopped; the connection is made, and nobody answers there."""
    from tests.cluster.collectives.values import digest, values

    spec = {"op": "all_reduce", "elements": 300_000}
    with Ranks(["grpc+fuse"] * 2) as ranks:
        # A group of its own: rank 1 listens from now on.
        ranks.values("attempt", [1], n=1, key=70, **spec)
        with _stopped_thread(_channel_thread(ranks._ranks[1].pid)):
            results, counted = ranks.counted("attempt", n=2, key=71, **spec)
        total = values("float32", 300_000, 0) + values("float32", 300_000, 1)
        assert [result["digest"] for result in results] == [digest(total)] * 2
        for rank, of_rank in enumerate(counted):
            assert of_rank["collective_bytes_grpc"] > 0, rank
            assert "collective_bytes_shm" not in of_rank
            assert "no greeting came within 10s; its chunks take another path" in ranks.log(rank)


def _channel_thread(pid):
    """Return the thread that waits for the sockets of data channels."""
    (name,) = _names(pid)
    (listener,) = [
        c.fd
        for c in psutil.Process(pid).net_connections("unix")
        if c.laddr == f"@{name}" and c.status == "NONE"
    ]
    (epoll,) = [
        file.name
        for file in Path(f"/proc/{pid}/fdinfo").iterdir()
        if re.search(rf"^tfd: +{listener} ", file.read_text(), re.MULTILINE)
    ]

    def waits(task):
        words = (task / "syscall").read_text().split()
        return len(words) > 1 and words[1] == hex(int(epoll))

    found = []
    assert coordinator.wait_until(
        lambda: found.extend(filter(waits, Path(f"/proc/{pid}/task").iterdir())) or found
    )
    return int(found[0].name)


@contextlib.contextmanager
def _stopped_thread(thread):
    """Stop one thread of another process, as a debugger does."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(_PTRACE_ATTACH, thread, None, None):
        pytest.skip(f"threads cannot be stopped here: {os.strerror(ctypes.get_errno())}")
    try:
        os.waitpid(thread, _WALL)
        yield
    finally:
        libc.ptrace(_PTRACE_DETACH, thread, None, None)


def _kept_alive(pid):
    """How many established TCP connections of a process the kernel probes when they are silent."""
    inodes = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        link = os.readlink(file)
        if link.startswith("socket:["):
            inodes.add(link.removeprefix("socket:[").removesuffix("]"))
    count = 0
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            established, timer = fields[3] == "01", fields[5].partition(":")[0]
            count += established and timer == "02" and fields[9] in inodes
    return count


def _limits_ms(pid):
    """TCP_USER_TIMEOUT of the TCP sockets of a process that the kernel probes."""
    limits = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(file).startswith("socket:["):
            with soak_faults.take(pid, int(file.name)) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockopt(
                    socket.SOL_SOCKET, socket.SO_KEEPALIVE
                ):
                    limits.append(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    return limits


@pytest.mark.skipif(bool(soak_faults.may_drop()), reason=soak_faults.may_drop() or "-")
def test_the_kernel_asks_a_host_that_is_silent_whether_it_lives():
    """A host that lost power says no word; a collective without a time limit would wait for ever.

    Here the timers alone are looked at: that the kernel has found out takes a minute.
    """
    with Ranks(["grpc+fuse"] * 2, {"TF_FUSE_COLLECTIVE_PATHS": "tcp"}) as ranks:
        ranks.values("reduce", specs=[_SPEC])
        # Each asks the other for chunks: one connection each way, at both ends. (A timer of data
        # that is not acknowledged yet is in the place of this one for a moment.)
        for rank in ranks._ranks:
            assert coordinator.wait_until(lambda pid=rank.pid: _kept_alive(pid) == 2)
            # The kernel also counts the time in which a stopped process takes no chunks. So only
            # the side that sends requests has a limit of what is not acknowledged.
            assert sorted(_limits_ms(rank.pid)) == [0, 40_000]
