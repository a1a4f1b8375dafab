# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Start the package when a program imports TensorFlow, and not before.

Layouts are planned where no TensorFlow is installed. Where it is, who imports it gets the plugin,
as after `import tf_fuse`.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_NAME = "tensorflow"


def call(start: Callable[[], None]) -> None:
    """Call a function now if TensorFlow is imported, or else when something imports it."""
    if _NAME in sys.modules:
        start()
    else:
        sys.meta_path.insert(0, _Finder(start))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds TensorFlow as others do, with a loader that calls a function at the end."""

    def __init__(self, start: Callable[[], None]):
        self._start = start
        self._asks_others = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of TensorFlow; None of other modules, and if it is not installed."""
        del path, target
        if fullname != _NAME or self._asks_others:
            return None
        self._asks_others = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asks_others = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._end)
        return spec

    def _end(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            self._start()
        except ImportError as error:
            # TensorFlow itself can be used, and layouts can be planned.
            warnings.warn(f"tf_fuse plans layouts only: {error}", stacklevel=2)


class _Loader(importlib.abc.Loader):
    """Loads a module as another loader does, which the module has in the end."""

    def __init__(self, inner: Any, end: Callable[[], None]):
        self._inner = inner
        self._end = end

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return what the other loader makes."""
        made: ModuleType | None = self._inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        self._end()
