# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where processes listen, as the kernel says."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path

_LISTENS = "0A"  # the state in /proc/net/tcp


def tcp_addresses(pids: Iterable[int]) -> dict[int, set[str]]:
    """Return the addresses at which processes listen for TCP, by process."""
    by_inode: dict[str, str] = {}
    for name in ("tcp", "tcp6"):
        table = Path("/proc/net", name)
        lines = table.read_text().splitlines()[1:] if table.exists() else []
        for fields in map(str.split, lines):
            if fields[3] == _LISTENS:
                by_inode[fields[9]] = _address(fields[1].partition(":")[0])
    found: dict[int, set[str]] = {}
    for pid in pids:
        links = map(_target, Path(f"/proc/{pid}/fd").iterdir())
        inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
        found[pid] = {by_inode[inode] for inode in inodes & set(by_inode)}
    return found


def _target(link: Path) -> str:
    """Return where a link leads; nowhere if it has gone meanwhile."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def _address(text: str) -> str:
    """Return an address of a table, which has words of four bytes in the order of the machine."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    found = ipaddress.ip_address(b"".join(words))
    return str(getattr(found, "ipv4_mapped", None) or found)
