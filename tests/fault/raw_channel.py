# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Both ends of data channels, spoken by hand."""

from __future__ import annotations

import array
import contextlib
import fcntl
import mmap
import os
import queue
import secrets
import socket
import struct
import threading
from typing import Any

MAGIC = 0x31434654
HEADER = struct.Struct("<IIQ")
_TIMEOUT_S = 60.0
PARCEL_MAGIC = b"TFFP"
VERSION = 2
_STAMP = struct.Struct("<Q")


def packed(
    message: Any,
    behind: bytes = b"",
    announced: int | None = None,
    size: int | None = None,
    magic: int = MAGIC,
) -> bytes:
    """A message as it goes over a channel.

    Args:
      message: a ChannelMessage.
      behind: bytes that follow it.
      announced: how many it says these are; None for the truth.
      size: how long it says it is itself, in bytes; None for the truth.
      magic: what it begins with.
    """
    data = message.SerializeToString()
    header = HEADER.pack(
        magic,
        len(data) if size is None else size,
        len(behind) if announced is None else announced,
    )
    return header + data + behind


class Loan:
    """Shared memory that a process lends, and that is not given back."""

    def __init__(self, memory: mmap.mmap, answer: Any):
        """Note what an answer lends."""
        self._memory, self._answer = memory, answer

    def intact(self) -> bool:
        """Return whether the process has not used the memory for something else."""
        stamp = _STAMP.unpack_from(self._memory, self._answer.stamp_offset)[0]
        return stamp == self._answer.lease

    def read(self) -> bytes:
        """Return the bytes that lie there now."""
        begin = self._answer.segment_offset
        return self._memory[begin : begin + self._answer.segment_bytes]


class Channel:
    """The consumer's end: a connection to a process, by its card.

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
        self._send(hello={"version": VERSION, "token": card.client_token, "shared_memory": not tcp})
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
                raise ChannelError(answer.code, answer.text.decode(errors="replace"))
            if answer.lease:
                begin = answer.segment_offset
                behind = self._segments[answer.segment][begin : begin + answer.segment_bytes]
                self._send(release={"leases": [answer.lease]})
            out[answer.offset : answer.offset + len(behind)] = behind
            came += len(behind)
        return bytes(out)

    def loan(self) -> Loan:
        """Return the first part of what comes for the last request, which stays lent."""
        while True:
            message, _, fd = self._receive()
            if not message.HasField("segment"):
                return Loan(self._segments[message.answer.segment], message.answer)
            self._segments[message.segment.id] = mmap.mmap(
                fd, message.segment.bytes, prot=mmap.PROT_READ
            )
            os.close(fd)

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def _send(self, **kind: Any) -> None:
        from tf_fuse.v1 import collectives_pb2

        self._socket.sendall(packed(collectives_pb2.ChannelMessage(**kind)))

    def _receive(self) -> tuple[Any, bytes, int]:
        from tf_fuse.v1 import collectives_pb2

        descriptors = array.array("i")
        head, fd = bytearray(), -1
        while len(head) < HEADER.size:
            data, ancillary, _, _ = self._socket.recvmsg(HEADER.size - len(head), 64)
            assert data, "the channel was closed"
            head += data
            for _, kind, content in ancillary:
                assert kind == socket.SCM_RIGHTS
                descriptors.frombytes(content)
        if descriptors:
            (fd,) = descriptors
        magic, size, behind = HEADER.unpack(head)
        assert magic == MAGIC
        message = collectives_pb2.ChannelMessage.FromString(_exactly(self._socket, size))
        return message, _exactly(self._socket, behind), fd


class ChannelError(RuntimeError):
    """An answer that is an error.

    Attributes:
      code: its number.
    """

    def __init__(self, code: int, text: str):
        """Makes it of an answer."""
        super().__init__(text)
        self.code = code


class Producer:
    """The producer's end of data channels: it answers as the test says.

    Attributes:
      card: what leads there.
      answers: how each request is answered, in turn: called with the connection and the request.
      asked: the requests that came.
    """

    CHANNEL = 0x1234567812345678
    """What it calls each connection."""

    def __init__(self) -> None:
        """Listens at a Unix socket of its own."""
        from tf_fuse.v1 import collectives_pb2

        self._messages = collectives_pb2
        self._listener = socket.socket(socket.AF_UNIX)
        name = f"tf_fuse_test.{secrets.token_hex(8)}"
        self._listener.bind(f"\0{name}")
        self._listener.listen()
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            host = f"{file.read().strip()}.{os.stat('/proc/self/ns/net').st_ino}"
        self.card = collectives_pb2.PeerCard(
            version=VERSION, host_id=host, unix_socket=name,
            client_token=secrets.token_bytes(16), server_token=secrets.token_bytes(16),
        )  # fmt: skip
        self.answers: queue.Queue[Any] = queue.Queue()
        self.asked: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while True:
                _, size, _ = HEADER.unpack(_exactly(connection, HEADER.size))
                message = self._messages.ChannelMessage.FromString(_exactly(connection, size))
                if message.HasField("hello"):
                    assert message.hello.token == self.card.client_token
                    hello = {"version": VERSION, "token": self.card.server_token}
                    self.send(connection, hello={**hello, "channel": self.CHANNEL})
                elif message.HasField("request"):
                    self.asked.put(message.request)
                    self.answers.get(timeout=_TIMEOUT_S)(connection, message.request)

    def lend(self, connection: socket.socket, request: Any, content: bytes, intact: bool) -> None:
        """Answer a request by shared memory.

        Args:
          connection: where it came from.
          request: the request.
          content: what lies there.
          intact: whether the stamp is that of the loan.
        """
        lease, stamp = 5, -(-len(content) // _STAMP.size) * _STAMP.size
        segment = {"id": 7, "bytes": stamp + _STAMP.size}
        memory = os.memfd_create("lent", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.pwrite(memory, content, 0)
        os.pwrite(memory, _STAMP.pack(lease if intact else lease + 1), stamp)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        socket.send_fds(
            connection, [packed(self._messages.ChannelMessage(segment=segment))], [memory]
        )
        os.close(memory)
        lent = {"segment": segment["id"], "segment_bytes": len(content), "stamp_offset": stamp}
        self.send(connection, answer={"call": request.call, "lease": lease, "last": True, **lent})

    def send(
        self,
        connection: socket.socket,
        behind: bytes = b"",
        announced: int | None = None,
        **kind: Any,
    ) -> None:
        """Sends a message, and bytes behind it; see `packed`."""
        connection.sendall(packed(self._messages.ChannelMessage(**kind), behind, announced))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the channel was closed")
        data += part
    return bytes(data)
