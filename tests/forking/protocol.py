# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the two sides say: a request with files, the id of the process, at last its status."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_HEADER = struct.Struct("<II")  # bytes of the request, number of files
_NUMBER = struct.Struct("<q")
_MAX_FILES = 64


def send_request(connection: socket.socket, request: dict[str, Any], files: list[int]) -> None:
    """Sends a request; the server gets files of its own."""
    payload = json.dumps(request).encode()
    socket.send_fds(connection, [_HEADER.pack(len(payload), len(files))], files)
    connection.sendall(payload)


def receive_request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receives what `send_request` sent.

    Raises:
      EOFError: the other side is gone.
    """
    header, files, _, _ = socket.recv_fds(connection, _HEADER.size, _MAX_FILES)
    if len(header) < _HEADER.size:
        raise EOFError
    size, count = _HEADER.unpack(header)
    assert len(files) == count, (len(files), count)
    return json.loads(_receive(connection, size)), list(files)


def send_number(connection: socket.socket, number: int) -> None:
    """Sends the id of a process, or the status with which it ended."""
    connection.sendall(_NUMBER.pack(number))


def receive_number(connection: socket.socket) -> int:
    """Receives what `send_number` sent.

    Raises:
      EOFError: the other side is gone.
    """
    return _NUMBER.unpack(_receive(connection, _NUMBER.size))[0]


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
