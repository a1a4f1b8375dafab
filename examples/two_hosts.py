# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Two hosts on one machine: network namespaces, and a link between them that can be made bad.

    with TwoHosts() as hosts:
        hosts.shape(delay_ms=1.0, loss=0.01, mbit=100.0)
        cluster = LocalCluster(1, 2, hosts=hosts.of({"chief": 0, "worker": 0, "ps": 1}))

The link is a veth pair with the queueing discipline netem. Where the kernel has no netem, it is a
pair of TUN devices and a process between them (`tun_relay.py`), which does the same to packets.
That process carries a few gigabits per second. Where the rate alone matters, the emulator "veth" is
a veth pair with the queueing discipline tbf, which most kernels have: as fast as the machine, or as
slow as the given rate, and without delay or loss.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from examples import tun_relay

_RELAY = Path(__file__).resolve().parent / "tun_relay.py"
# 198.18.0.0/15 is for benchmarks of networks (RFC 2544), so it is nobody's.
_NETWORK = "198.18.0"
DEVICE = "link"  # in both namespaces
EMULATORS = ("netem", "relay", "veth")
_PINGS = 30
#: What a limited veth lets pass at once: a few of the largest packets. With fewer, a late timer of
# the kernel costs a part of a high rate.
BURST_BYTES = 256 << 10
_STREAM_S = 0.5
_NO_METRICS = "/proc/sys/net/ipv4/tcp_no_metrics_save"
_numbers = itertools.count()


class TwoHostsError(RuntimeError):
    """Namespaces or the link could not be made; the text has the command and what it said."""


class TwoHosts:
    """Two network namespaces and their link; both are gone after `close`.

    Attributes:
      emulator: what makes the link bad, of `EMULATORS`.
      addresses: of the two hosts.
    """

    def __init__(self, emulator: str | None = None):
        """Make both; `why_not` says whether it can.

        Args:
          emulator: of `EMULATORS`; None for netem where the kernel has it, and relay elsewhere.

        Raises:
          TwoHostsError: a command failed.
        """
        number = next(_numbers)
        self._names = [f"tf_fuse_{os.getpid()}_{number}_{side}" for side in "ab"]
        self.addresses = [f"{_NETWORK}.{i + 1}" for i in range(2)]
        self._relay: subprocess.Popen[str] | None = None
        try:
            for name in self._names:
                _run("ip", "netns", "add", name)
                _run("ip", "-n", name, "link", "set", "dev", "lo", "up")
                # Linux begins a connection with what it knows of the last one to the same host, so
                # that the first of several jobs in turn would leave the others less of a window.
                _run("ip", "netns", "exec", name, "sh", "-c", f"echo 1 > {_NO_METRICS}")
            self.emulator = emulator or ("netem" if self._has_netem() else "relay")
            if self.emulator == "relay":
                self._join_by_relay()
            else:
                self._join_by_veth()
            for i, name in enumerate(self._names):
                _run("ip", "-n", name, "address", "add", f"{self.addresses[i]}/30", "dev", DEVICE)
                _run(
                    "ip", "-n", name, "link", "set", "dev", DEVICE, "mtu", str(tun_relay.MTU), "up"
                )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TwoHosts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def of(self, sides: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        """Return what `LocalCluster` and `Session` take as hosts.

        Args:
          sides: job or task to the host it runs on, 0 or 1.
        """
        return {
            job: {
                "address": self.addresses[side],
                "command": ["ip", "netns", "exec", self._names[side]],
            }
            for job, side in sides.items()
        }

    def shape(self, *, delay_ms: float = 0.0, loss: float = 0.0, mbit: float = 0.0) -> None:
        """Make the link bad, in both directions.

        Args:
          delay_ms: milliseconds that each packet takes.
          loss: the probability that a packet is dropped.
          mbit: megabits per second; 0 for no limit.

        Raises:
          TwoHostsError: the kernel or the relay refused, or the emulator cannot do that.
        """
        if self._relay:
            self._tell({"delay_ms": delay_ms, "loss": loss, "mbit": mbit})
            return
        if self.emulator == "netem":
            options = ["netem", "limit", "20000", "delay", f"{delay_ms}ms"]
            options += ["loss", f"{loss * 100}%"] if loss else []
            options += ["rate", f"{mbit}mbit"] if mbit else []
        else:
            options = _rate_alone(delay_ms, loss, mbit)
        for name in self._names:
            _run("tc", "-n", name, "qdisc", "replace", "dev", DEVICE, "root", *options)

    def round_trip_ms(self) -> float:
        """Return the median round trip of a small packet; lost ones do not count."""
        sockets = [_socket_in(name) for name in self._names]
        try:
            near, far = sockets
            far.bind((self.addresses[1], 0))
            threading.Thread(target=_echo, args=(far,), daemon=True).start()
            near.settimeout(1.0)
            times = []
            for i in range(_PINGS):
                start = time.perf_counter()
                near.sendto(str(i).encode(), far.getsockname())
                with contextlib.suppress(TimeoutError):
                    while near.recv(64) != str(i).encode():
                        pass  # the late answer to an earlier one
                    times.append(time.perf_counter() - start)
            return statistics.median(times) * 1e3
        finally:
            for each in sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def stream_mbit(self) -> float:
        """Megabits per second that one plain TCP connection carries, from the first host on."""
        near, far = (_socket_in(name, socket.SOCK_STREAM) for name in self._names)
        with near, far:
            far.bind((self.addresses[1], 0))
            far.listen()
            near.connect(far.getsockname())
            sender = threading.Thread(target=_send_for, args=(near, _STREAM_S))
            with far.accept()[0] as receiver:
                sender.start()
                count, begin = 0, time.perf_counter()
                while data := receiver.recv(1 << 20):
                    count += len(data)
                seconds = time.perf_counter() - begin
            sender.join()
        return count * 8 / seconds / 1e6

    def close(self) -> None:
        """Remove all; processes that still run in a namespace keep it alive for themselves."""
        if self._relay:
            assert self._relay.stdin and self._relay.stdout  # opened as pipes
            with contextlib.suppress(BrokenPipeError):  # it has ended by itself
                self._relay.stdin.close()
            self._relay.wait()
            self._relay.stdout.close()
            self._relay = None
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def _has_netem(self) -> bool:
        command = ["tc", "-n", self._names[0], "qdisc", "replace", "dev", "lo", "root", "netem"]
        return (
            _has("tc") and not subprocess.run(command, capture_output=True, check=False).returncode
        )

    def _join_by_veth(self) -> None:
        a, b = self._names
        # "name", since the device has the name of a keyword of ip.
        _run("ip", "-n", a, "link", "add", "name", DEVICE, "type", "veth",
             "peer", "name", DEVICE, "netns", b)  # fmt: skip

    def _join_by_relay(self) -> None:
        a, b = self._names
        # Not a task of a cluster but a part of its network: it ends when the network does.
        self._relay = subprocess.Popen(
            [sys.executable, str(_RELAY), a, DEVICE, b, DEVICE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._expect_ok()

    def _tell(self, command: Mapping[str, float]) -> None:
        assert self._relay and self._relay.stdin  # opened as a pipe
        with contextlib.suppress(BrokenPipeError):  # its last words say why
            self._relay.stdin.write(json.dumps(command) + "\n")
            self._relay.stdin.flush()
        self._expect_ok()

    def _expect_ok(self) -> None:
        assert self._relay and self._relay.stdout  # opened as a pipe
        if (line := self._relay.stdout.readline()) != "ok\n":
            raise TwoHostsError(f"the relay failed: {line}{self._relay.stdout.read()}")


def why_not(emulator: str | None = None) -> str:
    """Why there can be no two hosts here; empty if there can.

    Args:
      emulator: as `TwoHosts` takes it.
    """
    if not _has("ip"):
        return "the command ip (iproute2) is missing"
    try:
        with TwoHosts(emulator) as hosts:
            hosts.shape()
    except (TwoHostsError, OSError) as error:
        return f"network namespaces are not allowed here: {error}"
    return ""


def _has(command: str) -> bool:
    return shutil.which(command) is not None


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TwoHostsError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")


def _rate_alone(delay_ms: float, loss: float, mbit: float) -> list[str]:
    """Return the queueing discipline of a veth pair that delays and drops nothing."""
    if delay_ms or loss:
        raise TwoHostsError(
            "the link of the emulator veth has a rate alone, but is to have a delay of "
            f"{delay_ms:g} ms and a loss of {loss:g}; take netem or relay"
        )
    if not mbit:
        return ["noqueue"]
    return ["tbf", "rate", f"{mbit}mbit", "burst", str(BURST_BYTES),
            "limit", str(tun_relay.QUEUE_BYTES)]  # fmt: skip


def _socket_in(namespace: str, kind: int = socket.SOCK_DGRAM) -> socket.socket:
    """Return a socket in a namespace, of UDP or another kind; it stays there, whoever uses it."""
    made: list[socket.socket] = []

    def make() -> None:
        tun_relay.enter_namespace(namespace)  # this thread alone
        made.append(socket.socket(socket.AF_INET, kind))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if not made:
        raise TwoHostsError(f"cannot enter {namespace}")
    return made[0]


def _send_for(near: socket.socket, seconds: float) -> None:
    """Send for so many seconds, then end the stream."""
    data, end = bytes(1 << 20), time.perf_counter() + seconds
    with contextlib.suppress(OSError):  # the receiver has gone
        while time.perf_counter() < end:
            near.sendall(data)
        near.shutdown(socket.SHUT_WR)


def _echo(far: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed: there is no more to echo
        while True:
            data, sender = far.recvfrom(64)
            if not data:
                return
            far.sendto(data, sender)
