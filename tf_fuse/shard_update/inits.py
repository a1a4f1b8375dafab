# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Has classes of TensorFlow tell of each object that is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def tell_of_each(cls: Any, mark: str, tell: Callable[[Any], None]) -> None:
    """Extends a class's `__init__`, once per process.

    Args:
      cls: the class.
      mark: name of an attribute that says that it is extended.
      tell: gets each object when it has been made.
    """
    if getattr(cls, mark, False):
        return
    stock = cls.__init__

    def init(self: Any, *args: Any, **more: Any) -> None:
        stock(self, *args, **more)
        tell(self)

    init.__doc__ = stock.__doc__
    cls.__init__ = init
    setattr(cls, mark, True)
