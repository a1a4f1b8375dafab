# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Estimate what a variable costs its server per step.

Each worker reads a dense weight whole in each step, and sends its gradient back whole. If a program
gathers rows from a variable (an embedding), only those rows travel; their number is estimated or
given (`Costs.rows_per_step`). An update reads and writes the weight and the optimizer's variables
beside it (slots), whole: Adam and most others change slots in rows without a gradient, too. Only
without slots (SGD) does it touch the gathered rows alone. Its operations have a cost however small
they are. Variables that are not trained are read, and not updated.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tf_fuse.parameter_server import arguments

# Of a string or another value without a size of its own; as TensorFlow's partitioners take.
_BYTES_OF_UNKNOWN = 16
# Names of embedding variables, from which programs gather rows.
_GATHERED = ("*embedding*",)
# Rows that a worker gathers in a step, by default.
_ROWS = 1024
# Seconds of an update, per byte and at least: TensorFlow's own, and as one operation.
_UPDATES = {False: (0.42e-9, 50e-6), True: (0.15e-9, 30e-6)}
_ORIGINS = {
    False: "built in, of updates as TensorFlow runs them",
    True: "built in, of updates that are one operation each",
}


@dataclass(frozen=True)
class Costs:
    """The figures by which variables are placed and partitioned. All are the user's to set.

    Only the ratios between them decide. The built-in times of updates are those of Keras 3's Adam
    on one core.

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
        """Check the figures.

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
        """Return these costs with measured times of updates, where the program has set none.

        Args:
          is_fused: whether servers do each update as one operation.
        """
        is_told = self.update_s_per_byte is not None and self.update_s is not None
        origin = self.origin if is_told else _ORIGINS[is_fused]
        return replace(self, is_fused=is_fused, origin=origin)

    def update_times(self) -> tuple[float, float]:
        """Return an update's seconds per byte of weight and slots, and of the smallest one."""
        per_byte, least = _UPDATES[self.is_fused]
        return (
            per_byte if self.update_s_per_byte is None else self.update_s_per_byte,
            least if self.update_s is None else self.update_s,
        )

    def figures(self) -> dict[str, float | str]:
        """Return all by which it is decided, by name, and the origin."""
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
        """Return the rows that one worker gathers in a step; None if it reads all rows."""
        if not shape:
            return None
        for pattern in sorted(self.rows_per_step):
            if fnmatch.fnmatchcase(name, pattern):
                return min(float(self.rows_per_step[pattern]), float(shape[0])) or None
        if len(shape) > 1 and any(fnmatch.fnmatchcase(name.lower(), one) for one in _GATHERED):
            return float(min(_ROWS, shape[0]))
        return None


@dataclass(frozen=True, order=True)
class VariableSpec:
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
        """Return what the variable costs its server.

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
        changed = costs.workers * self.bytes if slots else touched
        updated = changed * (1 + slots) if is_trained else 0.0
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
    """The cost of variables for a server.

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
        """Return the sum of both."""
        return Load(
            self.kept + other.kept,
            self.read + other.read,
            self.updated + other.updated,
            self.update_s + other.update_s,
            self.sent_back + other.sent_back,
        )

    def balanced(self) -> tuple[float, float, float]:
        """Return the loads to balance: bytes kept, bytes read, seconds of updates."""
        return self.kept, self.read, self.update_s

    def seconds(self, costs: Costs) -> float:
        """Return how long a step keeps the server's link, either direction, and updates busy."""
        return (self.read + self.sent_back) / costs.link_bytes_per_s + self.update_s


def bytes_of(dtype: str) -> int:
    """Return the bytes of an element of a type; an estimate for strings."""
    from tensorflow.python.framework import dtypes

    kind = dtypes.as_dtype(dtype)
    if kind in (dtypes.string, dtypes.resource, dtypes.variant):
        return _BYTES_OF_UNKNOWN
    return int(kind.size)
