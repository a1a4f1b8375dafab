# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The sizes of biases that a model is traced with, and that others have at run time (`resized`)."""

from __future__ import annotations

LAST = 4097
_MODELS = (
    36  # Each has 114 or 115 sizes: Grappler sorts factors by name, and Mul_99 is after Mul_100.
)


def sizes_of_model(index: int) -> list[int]:
    """The sizes of one of several models that have every size together, each one that of 1."""
    return [1, *range(2 + index % _MODELS, LAST + 1, _MODELS)]
