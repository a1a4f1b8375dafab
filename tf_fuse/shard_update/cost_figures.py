# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the figures from which `profit.py` estimates what sharding saves and costs, and `Profit`.

They are measured, or pinned by an environment variable. All replicas have to use the same.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

VARIABLE = "TF_FUSE_UPDATE_COSTS"
# The value of `VARIABLE` that asks for the default figures below.
_DEFAULT = "default"
# By how much measured figures may differ from those below, both ways.
RANGE = 4.0
# Far beyond all that has a use, and far from overflows.
_LARGEST = 1e6
_LONGEST_ORIGIN = 300


@dataclass(frozen=True)
class UpdateCosts:
    """What an update and its exchange take. The defaults are of a machine with two cores.

    They are rounded to the side on which nothing is sharded.

    Attributes:
      operation_ns_per_byte: an elementwise operation, per byte of its result, where each replica
        has a core for itself.
      wire_ns_per_byte: a reduce-scatter and an all-gather in place of an all-reduce. As many bytes
        travel, but between two replicas the shard is half of the vector, and a tensor of its own;
        between more it makes no difference.
      gradient_us: the operations that there are more for each gradient.
      collective_us: that there are two collectives, not one.
      share_us: one exchange more, if there are several groups: the sums go to all that hold them.
      origin: where the figures come from, in words.
    """

    operation_ns_per_byte: float = 0.08
    wire_ns_per_byte: float = 0.15
    gradient_us: float = 30.0
    collective_us: float = 500.0
    share_us: float = 200.0
    origin: str = _DEFAULT

    def figures(self) -> dict[str, float]:
        """By name, in the order above."""
        return {name: getattr(self, name) for name in NAMES}

    def text(self) -> str:
        """Return the figures as `parse` takes them, without a loss."""
        return ",".join(f"{name}={value!r}" for name, value in self.figures().items())

    def __str__(self) -> str:
        """For people, with the origin."""
        listed = ", ".join(f"{name}={value:.3g}" for name, value in self.figures().items())
        return f"{listed} ({self.origin})"

    def word(self) -> str:
        """Return the text that other replicas get: figures and origin."""
        return f"{self.text()}\n{self.origin}"


DEFAULTS = UpdateCosts()
NAMES = tuple(field.name for field in fields(UpdateCosts) if field.name != "origin")


def parse(text: str, origin: str) -> UpdateCosts:
    """Read figures.

    Args:
      text: NAME=NUMBER, by commas; or "default".
      origin: of the result.

    Returns:
      The figures. Those that are not named have their defaults.

    Raises:
      ValueError: `text` is something else.
    """
    figures: dict[str, float] = {}
    for word in text.split(",") if text != _DEFAULT else []:
        name, _, number = (part.strip() for part in word.partition("="))
        if name not in NAMES:
            raise ValueError(f"{word!r} is not NAME=NUMBER with a NAME of {', '.join(NAMES)}")
        if name in figures:
            raise ValueError(f"{name} is there twice")
        figures[name] = _number(name, number)
    return _made(figures, origin)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _LARGEST:
        raise ValueError(f"{name} is a number from 0 to {_LARGEST:g}, got {text!r}")
    return value


def pinned(task: str) -> UpdateCosts | None:
    """Return the figures that the environment has.

    Args:
      task: this one, for their origin.

    Returns:
      The figures; None if it has none.

    Raises:
      ValueError: the variable has another form; the text has its value, and what it may be.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        return parse(text, f"{VARIABLE} of {task}")
    except ValueError as error:
        raise ValueError(
            f"tf_fuse: {VARIABLE}={text!r} of {task} cannot be used: {error}. Set it to figures as "
            f"'operation_ns_per_byte=0.08,wire_ns_per_byte=0.15', or to {_DEFAULT!r}, or unset it, "
            "in all processes"
        ) from None


def told(word: str) -> UpdateCosts:
    """Return the figures that another replica has told.

    Args:
      word: what `UpdateCosts.word` has made there.

    Raises:
      ValueError: it is something else.
    """
    text, _, origin = word.partition("\n")
    costs = parse(text, " ".join(origin.split())[:_LONGEST_ORIGIN])
    if costs.text() != text:
        raise ValueError(f"{text!r} does not have all of {', '.join(NAMES)}, in this order")
    return costs


def within_range(measured: Mapping[str, float], origin: str) -> UpdateCosts:
    """Return figures of a measurement, as far as they can be believed.

    Args:
      measured: some figures, by name.
      origin: of the result.

    Returns:
      The figures; those that are not measured have their defaults. One that is not within a range
      around its default is the next that is, and the origin says so.
    """
    figures, beyond = {}, []
    for name in (name for name in NAMES if name in measured):
        default = getattr(DEFAULTS, name)
        figures[name] = min(max(measured[name], default / RANGE), default * RANGE)
        if figures[name] != measured[name]:
            beyond.append(f"{name} was {measured[name]:.3g}")
    return _made(figures, "; ".join([origin, *beyond]))


def _made(figures: Mapping[str, float], origin: str) -> UpdateCosts:
    given: dict[str, Any] = {**DEFAULTS.figures(), **figures, "origin": origin}
    return UpdateCosts(**given)


@dataclass(frozen=True)
class Profit:
    """An estimate for one step.

    Attributes:
      saved: seconds of the update that others take.
      cost: seconds that are spent for that.
      passes: bytes of all results and assignments of the update.
      gradients: how many the bucket has.
      wire: bytes for which two collectives take longer than one.
      replicas: how many take part.
      groups: into how many groups they are divided.
      costs: the figures that it is made of.
    """

    saved: float
    cost: float
    passes: int = 0
    gradients: int = 0
    wire: int = 0
    replicas: int = 0
    groups: int = 1
    costs: UpdateCosts = DEFAULTS

    def __bool__(self) -> bool:
        """Return whether there is one."""
        return self.saved > self.cost

    def __str__(self) -> str:
        """With both figures."""
        return f"it would save {1e3 * self.saved:.2f} ms and cost {1e3 * self.cost:.2f} ms"

    def arithmetic(self) -> str:
        """Return how both figures come about."""
        costs = self.costs
        return (
            f"saves {1e3 * self.saved:.2f} ms = {costs.operation_ns_per_byte:.3g} ns x "
            f"{self.passes:,} bytes of the update x (1 - {self.groups}/{self.replicas}); "
            f"costs {1e3 * self.cost:.2f} ms = {costs.collective_us / 1e3:.3g} ms + "
            f"{costs.gradient_us:.3g} us x {self.gradients} gradients + "
            f"{costs.wire_ns_per_byte:.3g} ns x {self.wire:,} bytes on the wire"
            + (f" + {costs.share_us / 1e3:.3g} ms" if self.groups > 1 else "")
        )
