# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What collectives cost on the machine that `tf-fuse calibrate` ran on."""

from __future__ import annotations

import dataclasses
import math
import os
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
            if not isinstance(given, dict):
                raise ScaleError(
                    f"{path} has no costs of collectives by {way}; run: tf-fuse calibrate --out "
                    f"{path}"
                )
            found[way] = WayRates(
                *(
                    checked_cost(given.get(name), f"{name} of {way}", path, name == "threads")
                    for name in names
                )
            )
        return cls(found)


def checked_cost(
    value: Any, name: str, path: str | os.PathLike[str], is_divisor: bool = False
) -> float:
    """Return a value of a file of costs.

    Args:
      value: what the file has.
      name: of the value, for errors.
      path: of the file, for errors.
      is_divisor: whether it must not be 0.

    Raises:
      ScaleError: it is not a number, or too small, or infinite.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf or (is_divisor and value == 0):
        least = "above 0" if is_divisor else "0 or more"
        raise ScaleError(
            f"{path}: {name} is {value!r}, must be a number, {least}; run: tf-fuse calibrate --out "
            f"{path}"
        )
    return float(value)
