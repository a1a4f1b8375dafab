# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases of tests that only `make slow` runs: each is one more case of what another one shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """Return a slow case of these arguments."""
    return pytest.param(*values, marks=pytest.mark.slow)


def slow_but(cases: Iterable[Any], is_fast: Callable[[Any], bool]) -> list[Any]:
    """Return the cases; all but those for which `is_fast` holds are slow.

    Args:
      cases: of a test: its argument, or a tuple of them.
      is_fast: of a case.
    """
    return [
        case if is_fast(case) else slow(*case) if isinstance(case, tuple) else slow(case)
        for case in cases
    ]
