# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One end of a data channel, spoken by hand: the consumer's, over a Unix socket or TCP."""

from __future__ import annotations

import array
import mmap
import os
import socket
import struct
from typing import Any

_MAGIC = 0x31434654
_HEADER = struct.Struct("<IIQ")
_TIMEOUT_S = 60.0
PARCEL_MAGIC = b"TFFP"


class Channel:
    """A connection to a process, by its card.

    Attributes:
      number: what the process calls the connection.
    """

    def __init__(self, card: Any, tcp: bool = False):
        """Connects and greets.

        Args:
          card: a PeerCard.
          tcp: over TCP, not the Unix socket.
        """
        if tcp:
            host, _, port = card.tcp_address.rpartition(":")
            self._socket = socket.create_connection((host, int(port)))
        else:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(f"\0{card.unix_socket}")
        self._socket.settimeout(_TIMEOUT_S)
        self._segments: dict[int, mmap.mmap] = {}
        self._calls = 0
        self._send(hello={"version": 1, "token": card.client_token, "shared_memory": not tcp})
        hello = self._receive()[0].hello
        assert hello.token == card.server_token
        self.number = hello.channel

    def take(self, parcel: Any, size: int | None = None) -> bytes:
        """Takes a parcel.

        Args:
          parcel: what the answer to a request has named.
          size: bytes to ask for; those of the parcel if None.

        Returns:
          Its bytes.

        Raises:
          ChannelError: the process answered with an error.
        """
        self.ask(parcel, size)
        return self.answer(parcel.bytes if size is None else size)

    def ask(self, parcel: Any, size: int | None = None) -> None:
        """Sends the request for a parcel; see `take`."""
        self._calls += 1
        self._send(
            request={
                "call": self._calls,
                "parcel": parcel.id,
                "bytes": parcel.bytes if size is None else size,
            }
        )

    def answer(self, size: int) -> bytes:
        """What comes for the last request; see `take`."""
        out = bytearray(size)
        came = 0
        while came < size:
            message, behind, fd = self._receive()
            if message.HasField("segment"):
                self._segments[message.segment.id] = mmap.mmap(
                    fd, message.segment.bytes, prot=mmap.PROT_READ
                )
                os.close(fd)
                continue
            answer = message.answer
            assert answer.call == self._calls
            if answer.code:
                raise ChannelError(answer.code, answer.text)
            if answer.lease:
                begin = answer.segment_offset
                behind = self._segments[answer.segment][begin : begin + answer.segment_bytes]
                self._send(release={"leases": [answer.lease]})
            out[answer.offset : answer.offset + len(behind)] = behind
            came += len(behind)
        return bytes(out)

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def _send(self, **kind: Any) -> None:
        from tf_fuse.v1 import collectives_pb2

        data = collectives_pb2.ChannelMessage(**kind).SerializeToString()
        self._socket.sendall(_HEADER.pack(_MAGIC, len(data), 0) + data)

    def _receive(self) -> tuple[Any, bytes, int]:
        from tf_fuse.v1 import collectives_pb2

        descriptors = array.array("i")
        head, fd = bytearray(), -1
        while len(head) < _HEADER.size:
            data, ancillary, _, _ = self._socket.recvmsg(_HEADER.size - len(head), 64)
            assert data, "the channel was closed"
            head += data
            for _, kind, content in ancillary:
                assert kind == socket.SCM_RIGHTS
                descriptors.frombytes(content)
        if descriptors:
            (fd,) = descriptors
        magic, size, behind = _HEADER.unpack(head)
        assert magic == _MAGIC
        message = collectives_pb2.ChannelMessage.FromString(self._exactly(size))
        return message, self._exactly(behind), fd

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the channel was closed"
            data += part
        return bytes(data)


class ChannelError(RuntimeError):
    """An answer that is an error.

    Attributes:
      code: its number.
    """

    def __init__(self, code: int, text: str):
        """Makes it of an answer."""
        super().__init__(text)
        self.code = code
