# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a variable costs the server that keeps it, per step.

A dense weight is read whole by each worker in each step, and its gradient comes back whole. Of a
variable that rows are gathered from (an embedding), only those rows travel; how many cannot be seen
from the variable, so it is estimated or told (`Costs.rows_per_step`). An update reads and writes
the weight and the optimizer's variables beside it (slots), and consists of operations that cost
something however small they are. What is not trained is read, and not updated.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tf_fuse.parameter_server import arguments

# Of a string or another value whose size the type does not tell; as TensorFlow's partitioners take.
_BYTES_OF_UNKNOWN = 16
# Names of variables that rows are gathered from, in Keras and beside it.
_GATHERED = ("*embedding*",)
# Rows that a worker gathers in a step, if nobody says.
_ROWS = 1024
# What an update takes, per byte and at least: as TensorFlow runs it, and as one operation.
_UPDATES = {False: (0.42e-9, 50e-6), True: (0.15e-9, 30e-6)}
_ORIGINS = {
    False: "built in, of updates as TensorFlow runs them",
    True: "built in, of updates that are one operation each",
}


@dataclass(frozen=True)
class Costs:
    """The figures by which variables are placed and partitioned. All are the user's to set.

    Only the ratios between them decide. The built-in times of updates are of Keras 3's Adam on one
    core.

    Attributes:
      workers: how many read all variables in each step.
      slots: variables of the same size that the optimizer will keep beside each trained one, as
        long as none has been seen: 2 as Adam's; 1 for momentum, 0 for plain SGD.
      rows_per_step: pattern of names (as of `fnmatch`) to the rows that one worker gathers from
        such a variable in a step; 0 says that it is dense, whatever its name.
      link_bytes_per_s: what a server sends or receives.
      update_s_per_byte: time of an update per byte of the weight and of each slot; None for the
        built-in figure of what will run: an update that is one operation, or TensorFlow's own.
      update_s: time of an update of the smallest variable: its operations alone; None likewise.
      memory_bytes_per_s: how fast a worker puts pieces of a variable together.
      piece_s: what one more piece costs the worker.
      origin: where the times of an update come from, for people.
      is_fused: whether updates will be one operation each, if that is known.
    """

    workers: int = 1
    slots: int = 2
    rows_per_step: Mapping[str, float] = field(default_factory=dict)
    link_bytes_per_s: float = 1e9
    update_s_per_byte: float | None = None
    update_s: float | None = None
    memory_bytes_per_s: float = 4e9
    piece_s: float = 50e-6
    origin: str = field(default="set by the program", compare=False)
    is_fused: bool = False

    def __post_init__(self) -> None:
        """Checks the figures.

        Raises:
          TypeError: one is of another type; the text has its name, value and range.
          ValueError: one is out of range; likewise.
        """
        arguments.whole("Costs.workers", self.workers, 1)
        arguments.whole("Costs.slots", self.slots, 0)
        for name in ("link_bytes_per_s", "memory_bytes_per_s"):
            arguments.positive(f"Costs.{name}", getattr(self, name))
        for name in ("update_s_per_byte", "update_s", "piece_s"):
            if getattr(self, name) is not None or name == "piece_s":
                arguments.not_negative(f"Costs.{name}", getattr(self, name))
        if not isinstance(self.rows_per_step, Mapping):
            raise TypeError(
                f"Costs.rows_per_step is {arguments.described(self.rows_per_step)}, must be a dict "
                "of a pattern of names to a number of rows"
            )
        for pattern, rows in self.rows_per_step.items():
            if not isinstance(pattern, str):
                raise TypeError(
                    f"Costs.rows_per_step has the key {arguments.described(pattern)}, must be a "
                    "pattern of names"
                )
            arguments.not_negative(f"Costs.rows_per_step[{pattern!r}]", rows)

    def of_updates(self, is_fused: bool) -> Costs:
        """With the times of the updates that will run, where the program has not set them.

        Args:
          is_fused: whether servers do each update as one operation.
        """
        is_told = self.update_s_per_byte is not None and self.update_s is not None
        origin = self.origin if is_told else _ORIGINS[is_fused]
        return replace(self, is_fused=is_fused, origin=origin)

    def update_times(self) -> tuple[float, float]:
        """Seconds of an update per byte of the weight and each slot, and of the smallest one."""
        per_byte, least = _UPDATES[self.is_fused]
        return (
            per_byte if self.update_s_per_byte is None else self.update_s_per_byte,
            least if self.update_s is None else self.update_s,
        )

    def figures(self) -> dict[str, float | str]:
        """All by which it is decided, by name, and the origin."""
        per_byte, least = self.update_times()
        return {
            "workers": self.workers,
            "slots": self.slots,
            "link_bytes_per_s": self.link_bytes_per_s,
            "update_s_per_byte": per_byte,
            "update_s": least,
            "memory_bytes_per_s": self.memory_bytes_per_s,
            "piece_s": self.piece_s,
            "origin": self.origin,
        }

    def rows_of(self, name: str, shape: tuple[int, ...]) -> float | None:
        """Rows that one worker gathers from a variable in a step; None if it reads all of it."""
        if not shape:
            return None
        for pattern in sorted(self.rows_per_step):
            if fnmatch.fnmatchcase(name, pattern):
                return min(float(self.rows_per_step[pattern]), float(shape[0])) or None
        if len(shape) > 1 and any(fnmatch.fnmatchcase(name.lower(), one) for one in _GATHERED):
            return float(min(_ROWS, shape[0]))
        return None


@dataclass(frozen=True, order=True)
class Variable:
    """A variable, or a piece of one, before it exists.

    Attributes:
      name: with its scopes, without ":0".
      shape: of its value; empty for what has none.
      dtype: name of the type of its elements.
      trainable: whether steps update it.
      slots: how many variables the optimizer keeps beside it; None if that is not known yet.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True
    slots: int | None = None

    @property
    def bytes(self) -> int:
        """Of its value."""
        return math.prod(self.shape) * bytes_of(self.dtype)

    @property
    def is_trained(self) -> bool:
        """Whether an optimizer updates it: what has no gradient, as a counter, is not."""
        from tensorflow.python.framework import dtypes

        kind = dtypes.as_dtype(self.dtype)
        return self.trainable and bool(kind.is_floating or kind.is_complex)

    def load(self, costs: Costs, share: float = 1.0) -> Load:
        """What it costs its server.

        Args:
          costs: the figures.
          share: of a piece, which part of the rows that are gathered from the whole are its own.
        """
        is_trained = self.is_trained
        slots = 0
        if is_trained:
            slots = costs.slots if self.slots is None else self.slots
        rows = costs.rows_of(self.name, self.shape)
        part = 1.0
        if rows is not None and self.shape[0]:
            part = min(1.0, rows * share / self.shape[0])
        touched = costs.workers * part * self.bytes
        updated = touched * (1 + slots) if is_trained else 0.0
        per_byte, least = costs.update_times()
        seconds = updated * per_byte
        return Load(
            kept=float(self.bytes * (1 + slots)),
            read=touched,
            updated=updated,
            update_s=seconds + costs.workers * least if is_trained else 0.0,
            sent_back=touched if is_trained else 0.0,
        )


@dataclass(frozen=True)
class Load:
    """What variables cost a server.

    Attributes:
      kept: bytes, with those of the slots.
      read: bytes that all workers read in a step.
      updated: bytes of weights and slots that the updates of a step go over.
      update_s: seconds that those updates take, on one core.
      sent_back: bytes of gradients that all workers send in a step.
    """

    kept: float = 0.0
    read: float = 0.0
    updated: float = 0.0
    update_s: float = 0.0
    sent_back: float = 0.0

    def __add__(self, other: Load) -> Load:
        """Of both."""
        return Load(
            self.kept + other.kept,
            self.read + other.read,
            self.updated + other.updated,
            self.update_s + other.update_s,
            self.sent_back + other.sent_back,
        )

    def balanced(self) -> tuple[float, float, float]:
        """What is made even: bytes that are kept, bytes that are read, time of updates."""
        return self.kept, self.read, self.update_s

    def seconds(self, costs: Costs) -> float:
        """How long a step keeps the server busy: its link in either direction, and its updates."""
        return (self.read + self.sent_back) / costs.link_bytes_per_s + self.update_s


def bytes_of(dtype: str) -> int:
    """Bytes of an element of a type; an estimate for strings."""
    from tensorflow.python.framework import dtypes

    kind = dtypes.as_dtype(dtype)
    if kind in (dtypes.string, dtypes.resource, dtypes.variant):
        return _BYTES_OF_UNKNOWN
    return int(kind.size)
