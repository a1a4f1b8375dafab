# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reserve ports while a cluster uses them."""

from __future__ import annotations

import socket
from types import TracebackType


class HeldPorts:
    """Distinct free ports, asked from the system and held until `close`.

    A port that is only asked for and given up may go to another process, or to the near end of
    somebody's connection, before the task that is to have it has started, and again while a killed
    task has not been started anew. Here each stays bound by a socket that does not listen. With
    SO_REUSEADDR, which gRPC sets too, a task may still bind and listen; a second one may not, and
    the system chooses the port for nobody.

    Attributes:
      numbers: the ports.
    """

    def __init__(self, count: int):
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(count):
                one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                self._sockets.append(one)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(("", 0))
        except BaseException:
            self.close()
            raise
        self.numbers = [one.getsockname()[1] for one in self._sockets]

    def __enter__(self) -> HeldPorts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the ports up; may be repeated."""
        for one in self._sockets:
            one.close()
