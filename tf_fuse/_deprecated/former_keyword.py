# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Accept the former name of a keyword argument for one release, with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def former_keyword(
    old: str, new: str
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Return a decorator for functions whose keyword argument `old` is now called `new`.

    Calls with `old` cause a DeprecationWarning. Calls with both raise a TypeError.
    """

    def decorated(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def with_former(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            if old in kwargs:
                if new in kwargs:
                    raise TypeError(
                        f"{function.__name__}() got {old}= and {new}=, which are one argument; "
                        f"give {new}="
                    )
                warn_of(f"{old}=", f"{new}=", stacklevel=3)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return with_former

    return decorated


def warn_of(old: str, new: str, stacklevel: int) -> None:
    """Warn of a former name."""
    warnings.warn(
        f"{old} is deprecated and goes in 0.4.0: use {new}", DeprecationWarning, stacklevel
    )
