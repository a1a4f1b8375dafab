# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Joins two TUN devices and delays, drops and limits what passes: netem for kernels without it.

Each device lies in a network namespace of its own; `two_hosts.py` starts this. Commands come as
JSON lines on stdin: {"delay_ms": 1.0, "loss": 0.01, "mbit": 100.0}; each is answered by a line
"ok". A direction is a `Link`: what enters leaves it in its order, after the time that its bytes
take at the given rate and then the delay. The process ends when stdin does.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import json
import os
import random
import select
import struct
import sys
import time

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 1, 0x1000
_CLONE_NEWNET = 0x40000000
_PR_SET_TIMERSLACK = 29
# Of what waits for its turn at the rate's end; more is dropped, as a switch's buffer does.
QUEUE_BYTES = 4 << 20
MTU = 9000
_NICE = -10  # a wire does not wait for busy processes


@dataclasses.dataclass
class Link:
    """One direction.

    Attributes:
      delay_s: from the end of its sending until a packet arrives.
      loss: the probability that a packet is dropped.
      bytes_per_s: the rate; 0 for no limit.
      random: decides which are dropped.
      dropped: packets so far.
    """

    delay_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float = 0.0
    random: random.Random = dataclasses.field(default_factory=lambda: random.Random(1))
    dropped: int = 0
    _under_way: collections.deque[tuple[float, bytes]] = dataclasses.field(
        default_factory=collections.deque
    )
    _free_at: float = 0.0  # when the last packet will have been sent

    def enter(self, packet: bytes, now: float) -> None:
        """Take a packet, or drop it."""
        start = max(now, self._free_at)
        waiting = (start - now) * self.bytes_per_s
        if waiting > QUEUE_BYTES or (self.loss and self.random.random() < self.loss):
            self.dropped += 1
            return
        self._free_at = start + (len(packet) / self.bytes_per_s if self.bytes_per_s else 0.0)
        self._under_way.append((self._free_at + self.delay_s, packet))

    def leave(self, now: float) -> list[bytes]:
        """Return the packets that have arrived."""
        arrived = []
        while self._under_way and self._under_way[0][0] <= now:
            arrived.append(self._under_way.popleft()[1])
        return arrived

    def next_at(self) -> float | None:
        """When the next packet arrives; None if there is none."""
        return self._under_way[0][0] if self._under_way else None


def open_tun(namespace: str, device: str) -> int:
    """Make a TUN device in a namespace; the calling thread stays there.

    Args:
      namespace: as `ip netns` calls it.
      device: the device's name.

    Returns:
      Its descriptor; the device lives as long.

    Raises:
      OSError: there is no such namespace, or this is not allowed.
    """
    enter_namespace(namespace)
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(
        descriptor, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI)
    )
    return descriptor


def enter_namespace(namespace: str) -> None:
    """Move the calling thread into a network namespace; OSError if it may not."""
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter {namespace}: {os.strerror(number)}")
    finally:
        os.close(descriptor)


def relay(devices: list[int]) -> None:
    """Pass packets between two devices until stdin ends."""
    links = [Link(random=random.Random(i)) for i in range(2)]  # the i-th leads away from device i
    while True:
        due = [at for link in links if (at := link.next_at()) is not None]
        wait_s = max(0.0, min(due) - time.monotonic()) if due else None
        # In seconds and exact, unlike poll's milliseconds.
        ready, _, _ = select.select([0, *devices], [], [], wait_s)
        if 0 in ready and not _command(links):
            return
        for source, link in zip(devices, links, strict=True):
            if source in ready:
                _read_all(source, link)
        now = time.monotonic()
        for link, target in zip(links, reversed(devices), strict=True):
            for packet in link.leave(now):
                _write(target, packet)


def _command(links: list[Link]) -> bool:
    line = sys.stdin.readline()
    if not line:
        return False
    settings = json.loads(line)
    for link in links:
        link.delay_s = settings["delay_ms"] / 1e3
        link.loss = settings["loss"]
        link.bytes_per_s = settings["mbit"] * 1e6 / 8
    print("ok", flush=True)
    return True


def _read_all(source: int, link: Link) -> None:
    for _ in range(64):
        try:
            link.enter(os.read(source, MTU + 64), time.monotonic())
        except BlockingIOError:
            return


def _write(target: int, packet: bytes) -> None:
    try:
        os.write(target, packet)
    except OSError as error:
        # The receiver's queue is full, or it is not up yet: the packet is lost.
        if error.errno not in (errno.EAGAIN, errno.EIO):
            raise


def main() -> None:
    """Run the relay between argv[1:5]: namespace and device, twice."""
    # Without it every wait is 50 us longer than asked for.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with contextlib.suppress(PermissionError):
        os.nice(_NICE)
    devices = [open_tun(*sys.argv[1:3]), open_tun(*sys.argv[3:5])]
    print("ok", flush=True)
    relay(devices)


if __name__ == "__main__":
    main()
