# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Counts the RPCs that a task gets, from the bytes of its connections."""

from __future__ import annotations

import collections
import contextlib
import socket
import threading

import hpack

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _PADDED, _PRIORITY, _END_HEADERS = 1, 8, 32, 4


class _Requests:
    """The names of the methods that a client's side of an HTTP/2 connection calls."""

    def __init__(self) -> None:
        self._data, self._preface = b"", len(_PREFACE)
        self._decoder = hpack.Decoder()

    def feed(self, data: bytes) -> list[str]:
        """Returns the methods of the calls that begin in the next bytes."""
        found = []
        self._data += data
        if len(self._data) < self._preface:
            return []
        self._data, self._preface = self._data[self._preface :], 0
        while len(self._data) >= 9:
            size = int.from_bytes(self._data[:3], "big")
            if len(self._data) < 9 + size:
                break
            kind, flags, block = self._data[3], self._data[4], self._data[9 : 9 + size]
            if kind == _HEADERS:
                assert flags & _END_HEADERS, "gRPC's headers fit one frame"
                if flags & _PADDED:
                    block = block[1 : len(block) - block[0]]
                if flags & _PRIORITY:
                    block = block[5:]
                headers = dict(self._decoder.decode(block))
                found.append(headers[":path"].rpartition("/")[2])
            self._data = self._data[9 + size :]
        return found


class CallCounter:
    """A port that passes its connections on to another one, and counts the calls.

    Attributes:
      port: where clients connect.
      target: where the task has to listen.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.target = probe.getsockname()[1]
        self._lock = threading.Lock()
        self._calls: collections.Counter[str] = collections.Counter()
        threading.Thread(target=self._accept, daemon=True).start()

    def take(self) -> dict[str, int]:
        """Returns the number of calls by method since the last time."""
        with self._lock:
            found, self._calls = dict(self._calls), collections.Counter()
        return found

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()  # the task is not there yet; its peer tries again
                continue
            requests = _Requests()
            for source, sink, reader in ((client, server, requests), (server, client, None)):
                arguments = (source, sink, reader)
                threading.Thread(target=self._pass_on, args=arguments, daemon=True).start()

    def _pass_on(
        self, source: socket.socket, sink: socket.socket, requests: _Requests | None
    ) -> None:
        with contextlib.suppress(OSError):  # one of the two has gone
            while data := source.recv(1 << 16):
                if requests is not None:
                    found = requests.feed(data)  # before the task can answer
                    with self._lock:
                        self._calls.update(found)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
