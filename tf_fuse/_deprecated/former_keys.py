# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Accept the former names of the keys of a dict, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any


class FormerKeys(dict[str, Any]):
    """A dict that also finds values by the former names of their keys.

    Lengths, iteration, comparisons and JSON have the new names alone.
    """

    def __init__(
        self,
        items: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        former: Mapping[str, str] | None = None,
    ):
        """Copy a dict.

        Args:
          items: of the dict.
          former: from the former name to the new one. (Those who copy a dict give none.)
        """
        super().__init__(items)
        self._former = dict(former or {})

    def __missing__(self, key: str) -> Any:
        """Return the value of a key that had another name, and warn."""
        return self._by_former_name(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict, which does not use `__missing__` here."""
        if key in self or self._former.get(key) not in self:
            return super().get(key, default)
        return self._by_former_name(key)

    def _by_former_name(self, key: str) -> Any:
        new = self._former.get(key)
        if new is None or new not in self:
            raise KeyError(key)
        warnings.warn(
            f"key {key!r} is deprecated and goes in 0.4.0: use {new!r}",
            DeprecationWarning,
            stacklevel=3,
        )
        return self[new]
