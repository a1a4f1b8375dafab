# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check the arguments of programs; errors name the argument, its value and what it may be."""

from __future__ import annotations

import math
import operator
from typing import Any

# A larger number is a mistake: loads are kept for each server.
MOST_SERVERS = 1 << 16
MOST = 1_000_000


def servers(value: Any) -> int:
    """Return a checked number of parameter servers.

    Raises:
      TypeError: it is not a whole number.
      ValueError: it is not from 1 to `MOST_SERVERS`.
    """
    number = _whole(value)
    if number is None:
        raise TypeError(
            f"servers is {described(value)}, must be how many parameter servers there are"
        )
    if number < 1:
        raise ValueError(f"there are {number} parameter servers, at least 1 is needed")
    if number > MOST_SERVERS:
        raise ValueError(f"there are {number} parameter servers, at most {MOST_SERVERS} may be")
    return number


def axis(value: Any) -> int | None:
    """Return a checked axis, or None for any.

    Raises:
      TypeError: it is neither None nor a whole number.
      ValueError: it is negative.
    """
    if value is None:
        return None
    number = _whole(value)
    if number is None:
        raise TypeError(f"axis is {described(value)}, must be 0 or more, or None for any")
    if number < 0:
        raise ValueError(f"axis is {number}, must be 0 or more, or None for any")
    return number


def whole(name: str, value: Any, least: int) -> int:
    """Return a checked whole number from `least` to `MOST`.

    Raises:
      TypeError: it is not a whole number.
      ValueError: it is out of range.
    """
    number = _whole(value)
    kind = TypeError if number is None else ValueError
    if number is None or not least <= number <= MOST:
        what = described(value) if number is None else number
        raise kind(f"{name} is {what}, must be a whole number from {least} to {MOST}")
    return number


def positive(name: str, value: Any) -> float:
    """Return a checked finite number above 0; raise as `whole`."""
    return _real(name, value, "must be a positive number", lambda number: number > 0)


def not_negative(name: str, value: Any) -> float:
    """Return a checked finite number, 0 or more; raise as `whole`."""
    return _real(name, value, "must be 0 or more", lambda number: number >= 0)


def instance(name: str, value: Any, cls: type, more: str = "") -> None:
    """Check a type.

    Args:
      name: of the argument.
      value: that was passed.
      cls: what it must be.
      more: of the text, after the type's name.

    Raises:
      TypeError: it is something else.
    """
    if not isinstance(value, cls):
        text = f"tf_fuse.parameter_server.{cls.__name__}"
        raise TypeError(f"{name} is {described(value)}, must be a {text}{more}")


def function(value: Any, does: str) -> None:
    """Check that something can be called; raises a TypeError that says what it is to do."""
    if not callable(value):
        raise TypeError(f"function is {described(value)}, must be a function that {does}")


def described(value: Any) -> str:
    """Return a value for an error's text: what it is, and its type."""
    text = " ".join(repr(value).split())
    if len(text) > 60:
        text = f"{text[:57]}..."
    return f"{text} ({type(value).__name__})"


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return int(operator.index(value))
    except TypeError:
        return None


def _real(name: str, value: Any, needs: str, is_in_range: Any) -> float:
    if isinstance(value, bool | str | bytes):
        raise TypeError(f"{name} is {described(value)}, {needs}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {described(value)}, {needs}") from None
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and is_in_range(number)):
        raise ValueError(f"{name} is {value!r}, {needs}")
    return number
