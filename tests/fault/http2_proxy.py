# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A proxy that passes connections on to a task, and shows the HTTP/2 frames that it passes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple

DATA, HEADERS = 0, 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Frame(NamedTuple):
    """A frame (RFC 9113, section 4.1)."""

    kind: int
    flags: int
    stream: int
    payload: bytes


# Gets whether the client sent a frame, and the frame, before it is passed on.
Look = Callable[[bool, Frame], None]


class _FrameReader:
    """The frames of one direction of a connection."""

    def __init__(self, is_client: bool):
        self._data = b""
        self._preface = len(_PREFACE) if is_client else 0

    def feed(self, data: bytes) -> list[Frame]:
        frames = []
        self._data += data
        if len(self._data) < self._preface:
            return []
        self._data, self._preface = self._data[self._preface :], 0
        while len(self._data) >= 9:
            end = 9 + int.from_bytes(self._data[:3], "big")
            if len(self._data) < end:
                break
            stream = int.from_bytes(self._data[5:9], "big")
            frames.append(Frame(self._data[3], self._data[4], stream, self._data[9:end]))
            self._data = self._data[end:]
        return frames


class Proxy:
    """Listens on a port of 127.0.0.1, and passes on what it gets.

    Attributes:
      port: where it listens.
    """

    def __init__(self, target: int, look: Callable[[], Look]):
        """Starts.

        Args:
          target: the port of the task, which need not listen yet.
          look: makes what looks at the frames of one connection, from two threads.
        """
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._target, self._look = target, look
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()  # the task is not there yet; its peer tries again
                continue
            look = self._look()
            for source, sink, is_client in ((client, server, True), (server, client, False)):
                arguments = (source, sink, is_client, look)
                threading.Thread(target=_pass_on, args=arguments, daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, is_client: bool, look: Look) -> None:
    reader = _FrameReader(is_client)
    with contextlib.suppress(OSError):  # one of the two has gone
        while data := source.recv(1 << 16):
            for frame in reader.feed(data):
                look(is_client, frame)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
