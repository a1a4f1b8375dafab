# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks whose processes run on two hosts: the options of the link, and the hosts.

The hosts are network namespaces of this machine (root is needed), as `examples/two_hosts.py` makes
them; they are removed however the command ends.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.common.rank_group import LOOPBACK, Network
from examples import tun_relay, two_hosts

EXIT_SKIPPED = 77  # as automake's tests say it


@dataclasses.dataclass(frozen=True)
class Condition:
    """What the link does to packets, in each direction.

    Attributes:
      delay_ms: milliseconds on the way.
      loss: probability that one is dropped.
      mbit: megabits per second; 0 for no limit.
    """

    delay_ms: float = 0.0
    loss: float = 0.0
    mbit: float = 0.0

    @property
    def name(self) -> str:
        """For people."""
        parts = [f"{self.delay_ms:g} ms"]
        parts += [f"{self.mbit:g} Mbit/s"] if self.mbit else []
        parts += [f"{self.loss:.0%} loss"] if self.loss else []
        return ", ".join(parts)


def add_options(parser: argparse.ArgumentParser, sides: str) -> None:
    """Add `--hosts`, `--mbit`, `--delay-ms` and `--emulator`.

    Args:
      parser: of the benchmark.
      sides: which processes run on which host, for `--help`.
    """
    parser.add_argument("--hosts", type=int, choices=(1, 2), default=1,
                        help=f"2: {sides} in another network namespace (needs root)")  # fmt: skip
    parser.add_argument("--mbit", type=float, default=0.0,
                        help="with --hosts 2: the link's rate, each way; unlimited if 0",
                        )  # fmt: skip
    parser.add_argument("--delay-ms", type=float, default=0.0,
                        help="with --hosts 2: the link's delay, each way")  # fmt: skip
    parser.add_argument("--emulator", choices=two_hosts.EMULATORS,
                        help="with --hosts 2: what makes the link; veth by default, and with a "
                        "delay netem or, where the kernel lacks it, relay")  # fmt: skip


def settle(args: argparse.Namespace) -> str | None:
    """Choose the emulator where none is given.

    Returns:
      What is wrong with the options; None if nothing is.
    """
    for name in ("mbit", "delay_ms"):
        option, value = f"--{name.replace('_', '-')}", getattr(args, name)
        if not 0 <= value < math.inf:
            return f"{option} must be at least 0 and finite, got {value:g}"
        if value and args.hosts == 1:
            return f"{option} {value:g} is of no use on loopback: give --hosts 2"
    if args.emulator and args.hosts == 1:
        return f"--emulator {args.emulator} is of no use on loopback: give --hosts 2"
    if args.emulator == "veth" and args.delay_ms:
        return f"--delay-ms {args.delay_ms:g}: the emulator veth cannot delay; take netem or relay"
    if args.hosts == 2 and not args.emulator and not args.delay_ms:
        args.emulator = "veth"
    return None


def why_not(args: argparse.Namespace) -> str | None:
    """Return why there can be no such link here; None if there can."""
    return two_hosts.why_not(args.emulator) if args.hosts == 2 else None


@contextlib.contextmanager
def joined(
    args: argparse.Namespace, say: Callable[[str], None]
) -> Iterator[tuple[two_hosts.TwoHosts | None, dict[str, Any]]]:
    """Make the hosts and their link, for as long as the block runs.

    Args:
      args: the command line.
      say: prints a line for people.

    Yields:
      The hosts, and what `--json` writes of the link; None and nothing for loopback.

    Raises:
      TwoHostsError: there can be no such link.
    """
    if args.hosts == 1:
        yield None, {}
        return
    condition = Condition(args.delay_ms, mbit=args.mbit)
    with two_hosts.TwoHosts(args.emulator) as hosts:
        hosts.shape(**dataclasses.asdict(condition))
        link = {
            "emulator": hosts.emulator,
            "mtu": tun_relay.MTU,
            "name": condition.name if args.delay_ms or args.mbit else "nothing limited",
            **dataclasses.asdict(condition),
            "round_trip_ms": hosts.round_trip_ms(),
            "stream_mbit": hosts.stream_mbit(),
        }
        say(
            f"two hosts, link by {link['emulator']}: {link['name']}; measured: round trip "
            f"{link['round_trip_ms']:.2f} ms, one TCP stream {link['stream_mbit']:.0f} Mbit/s"
        )
        yield hosts, {"link": link}


def of_ranks(hosts: two_hosts.TwoHosts | None) -> Network:
    """Return where ranks run: the first half of them on the first host."""
    if hosts is None:
        return LOOPBACK
    places = hosts.of({"first": 0, "second": 1}).values()
    return Network(
        [place["address"] for place in places],
        [place["command"] for place in places],
        two_hosts.DEVICE,
    )


def of_tasks(hosts: two_hosts.TwoHosts | None) -> Mapping[str, Any]:
    """Return what a session's specification gets: the servers run on the second host."""
    return {"hosts": hosts.of({"chief": 0, "worker": 0, "ps": 1})} if hosts else {}
