# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Counts the RPCs that a task gets, from the bytes of its connections."""

from __future__ import annotations

import collections
import threading

import hpack

from tests.fault import http2_proxy

_PADDED, _PRIORITY, _END_HEADERS = 8, 32, 4


class CallCounter:
    """A proxy in front of a task.

    Attributes:
      port: where clients connect.
    """

    def __init__(self, target: int):
        """Starts.

        Args:
          target: the port of the task.
        """
        self._lock = threading.Lock()
        self._calls: collections.Counter[str] = collections.Counter()
        self.port = http2_proxy.Proxy(target, self._look).port

    def take(self) -> dict[str, int]:
        """Returns the number of calls by method since the last time."""
        with self._lock:
            found, self._calls = dict(self._calls), collections.Counter()
        return found

    def _look(self) -> http2_proxy.Look:
        decoder = hpack.Decoder()

        def look(is_client: bool, frame: http2_proxy.Frame) -> None:
            if is_client and frame.kind == http2_proxy.HEADERS:
                method = _method(decoder, frame)
                with self._lock:
                    self._calls[method] += 1

        return look


def _method(decoder: hpack.Decoder, frame: http2_proxy.Frame) -> str:
    """The name of the method that a client's headers call."""
    assert frame.flags & _END_HEADERS, "gRPC's headers fit one frame"
    block = frame.payload
    if frame.flags & _PADDED:
        block = block[1 : len(block) - block[0]]
    if frame.flags & _PRIORITY:
        block = block[5:]
    path: str = dict(decoder.decode(block))[":path"]
    return path.rpartition("/")[2]
