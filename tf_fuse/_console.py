# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Open the console that prints reports."""

from __future__ import annotations

import os
from typing import Any

# Characters of a line that no table reaches.
_UNLIMITED = 10_000


def open_console() -> Any:
    """Return standard output for `rich`.

    A terminal or a notebook keeps its width, and the variable COLUMNS sets another one. In a file
    or a pipe, `rich` would assume 80 columns and break names. There, lines are as long as
    necessary, so that a search finds each name.
    """
    from rich.console import Console

    made = Console()
    if not made.is_terminal and not made.is_jupyter and "COLUMNS" not in os.environ:
        made.width = _UNLIMITED
    return made
