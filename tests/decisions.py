# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keeps what was decided about functions that are gone, for tests that ask afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


def keep() -> None:
    """Keeps it for the life of the process."""
    from tf_fuse.function_graph.decisions import Decided

    Decided.forget = lambda self, function: None  # type: ignore[method-assign]


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Keeps it within the context."""
    from tf_fuse.function_graph.decisions import Decided

    stock = Decided.forget
    keep()
    try:
        yield
    finally:
        Decided.forget = stock  # type: ignore[method-assign]
