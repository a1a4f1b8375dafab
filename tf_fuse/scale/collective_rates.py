# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What collectives cost on the machine that `tf-fuse calibrate` ran on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tf_fuse.scale.errors import ScaleError

#: TensorFlow's ring; ours in shared memory; ours by gRPC, which is the default between hosts.
STOCK, SHARED, GRPC = "stock", "shm", "grpc"
WAYS = (STOCK, SHARED, GRPC)


@dataclasses.dataclass(frozen=True)
class WayRates:
    """CPU seconds of a member of a collective, and how long a message is on the way.

    Attributes:
      call_s: for a collective.
      message_s: for a message, half of it the sender's.
      byte_s: for a byte of a message: to pack it, send it, receive it and add it; half of it the
        sender's.
      wake_s: from the end of sending to the beginning of receiving.
      threads: cores that a member uses at once.
    """

    call_s: float
    message_s: float
    byte_s: float
    wake_s: float = 0.0
    threads: float = 1.0


@dataclasses.dataclass(frozen=True)
class CollectiveRates:
    """Those of each way."""

    ways: Mapping[str, WayRates]

    def as_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads."""
        return {name: dataclasses.asdict(one) for name, one in self.ways.items()}

    @classmethod
    def from_dict(cls, content: Any, path: str) -> CollectiveRates:
        """Read rates.

        Args:
          content: what `as_dict` returned.
          path: of the file, for errors.

        Raises:
          ScaleError: the content is something else.
        """
        names = [field.name for field in dataclasses.fields(WayRates)]
        found = {}
        for way in WAYS:
            given = content.get(way) if isinstance(content, dict) else None
            values = [given.get(name) if isinstance(given, dict) else None for name in names]
            numbers = [float(one) for one in values if isinstance(one, (int, float)) and one >= 0]
            if len(numbers) < len(names):
                raise ScaleError(
                    f"{path} has no costs of collectives by {way}; run: tf-fuse calibrate --out "
                    f"{path}"
                )
            found[way] = WayRates(*numbers)
        return cls(found)
