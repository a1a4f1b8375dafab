# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A gRPC client that does as it likes with HTTP/2: it opens calls and takes no answers.

Only what the tests need of RFC 9113 and RFC 7541: requests with literal headers, the server's
windows, and how far its answers got. No library of HTTP/2 would misbehave like this.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5
_FRAME_BYTES = 16384  # what every server takes


class Connection:
    """One connection. Its streams' windows are 0 unless said otherwise: no answer's body may come.

    Attributes:
      opened: streams that were opened.
      answered: streams whose answer's headers came.
      body_bytes: bytes of bodies that came.
      closed: whether the server ended the connection.
    """

    def __init__(self, address: str, window: int = 0):
        """Connects.

        Args:
          address: "host:port".
          window: bytes that the server may send of each answer before it has to wait.
        """
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._changed = threading.Condition()
        self._window = 65535
        self._may_read = threading.Event()
        self._may_read.set()
        self.opened = 0
        self.answered: set[int] = set()
        self.body_bytes = 0
        self.closed = False
        self._socket.sendall(
            _PREFACE + _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, window))
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def call(self, method: str, message: bytes) -> int:
        """Sends one request; returns its stream. Waits for the server's window, if need be.

        Args:
          method: "/package.Service/Method".
          message: the serialized request.
        """
        stream = 2 * self.opened + 1
        self.opened += 1
        frames = [_frame(_HEADERS, _END_HEADERS, stream, _headers(method))]
        body = struct.pack(">BI", 0, len(message)) + message
        with self._changed:
            if not self._changed.wait_for(lambda: self._window >= len(body) or self.closed, 60):
                raise TimeoutError(f"the server's window is {self._window}, of {len(body)} needed")
            self._window -= len(body)
        for at in range(0, len(body), _FRAME_BYTES):
            part = body[at : at + _FRAME_BYTES]
            last = _END_STREAM if at + len(part) == len(body) else 0
            frames.append(_frame(_DATA, last, stream, part))
        self._socket.sendall(b"".join(frames))
        return stream

    def reading(self, on: bool) -> None:
        """Whether the socket is read at all; at first it is. Off, the server's window is not known.

        The call that is being read may still end.
        """
        if on:
            self._may_read.set()
        else:
            self._may_read.clear()

    def cancel(self, stream: int) -> None:
        """Gives a request up."""
        self._socket.sendall(_frame(_RST_STREAM, 0, stream, struct.pack(">I", 8)))

    def close(self) -> None:
        """Ends the connection, and with it all requests."""
        self.reading(True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()

    def _read(self) -> None:
        buffered = b""
        while True:
            self._may_read.wait()
            try:
                more = self._socket.recv(1 << 16)
            except OSError:
                more = b""
            if not more:
                with self._changed:
                    self.closed = True
                    self._changed.notify_all()
                return
            buffered += more
            while len(buffered) >= 9:
                size = int.from_bytes(buffered[:3], "big")
                if len(buffered) < 9 + size:
                    break
                kind, flags = buffered[3], buffered[4]
                stream = int.from_bytes(buffered[5:9], "big")
                self._on_frame(kind, flags, stream, buffered[9 : 9 + size])
                buffered = buffered[9 + size :]

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        with self._changed:
            if kind == _WINDOW_UPDATE and stream == 0:
                self._window += int.from_bytes(payload, "big")
            elif kind == _HEADERS:
                self.answered.add(stream)
            elif kind == _DATA:
                self.body_bytes += len(payload)
            elif kind in (_SETTINGS, _PING) and not flags & _ACK:
                echo = payload if kind == _PING else b""
                with contextlib.suppress(OSError):
                    self._socket.sendall(_frame(kind, _ACK, 0, echo))
            self._changed.notify_all()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _headers(method: str) -> bytes:
    def literal(name: bytes, value: bytes) -> bytes:
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

    # Entries of the static table: ":method POST", ":scheme http".
    return b"\x83\x86" + b"".join(
        [
            literal(b":path", method.encode()),
            literal(b":authority", b"peer"),
            literal(b"te", b"trailers"),
            literal(b"content-type", b"application/grpc"),
        ]
    )
