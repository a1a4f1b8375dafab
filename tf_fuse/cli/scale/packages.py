# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Say what to install where a package of the extra `scale` is missing."""

from __future__ import annotations

import importlib.util


def missing(*names: str) -> str | None:
    """Return a sentence if one of some packages cannot be imported, else None."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    return f"{' and '.join(absent)} is missing; run: python -m pip install 'tf_fuse[scale]'"
