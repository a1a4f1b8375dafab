# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A small problem whose plans are known, and how tests read tables and errors."""

from __future__ import annotations

import os

import numpy as np
import pytest
from rich.console import Console

from tf_fuse.layout import LayoutError, Mesh
from tf_fuse.layout.optimize import Candidate, Edge, Node, Problem

MS = 1e-3


def example(limit: int | None = None, mesh: Mesh | None = None, fast: float = 1.0) -> Problem:
    """Two matmuls; splitting what they contract saves memory."""
    both = [
        Candidate("batch", 4 * MS, 1 * MS, 4_000, 0, frozenset({"data"})),
        Candidate("hidden", 4 * MS * fast, 2 * MS, 1_000),
    ]
    return Problem(
        [
            Node("up", tuple(both), "MatMul(64, 32)"),
            Node("down", tuple(both), "MatMul(32, 64)"),
        ],
        [Edge("up", "down", np.array([[0, 3 * MS], [2 * MS, 0]]), "h")],
        limit,
        mesh or Mesh({"x": 2}),
    )


def text_of(what) -> str:
    console = Console(width=180, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(what)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


def cells(what) -> list[list[str]]:
    """The cells of a table, with its header."""
    lines = [line.replace("┃", "│") for line in text_of(what).splitlines()]
    rows = [line.strip().strip("│").split("│") for line in lines if line.startswith("│")]
    return [[cell.strip() for cell in row] for row in rows]


def error(call, *args, **kwargs) -> str:
    with pytest.raises(LayoutError) as caught:
        call(*args, **kwargs)
    return str(caught.value)
