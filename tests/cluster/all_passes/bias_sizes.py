# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every size of a bias that updates are tried with, in parts for tests and in models of a part."""

from __future__ import annotations

PARTS, LAST = 4, 4097
# The more variables a function has, the longer TensorFlow takes for each of them.
_SIZES_OF_A_MODEL = 128


def sizes_of_models(part: int) -> list[list[int]]:
    """The sizes of each model of a part, small and large ones."""
    sizes = range(1 + part, LAST + 1, PARTS)
    count = -(-len(sizes) // _SIZES_OF_A_MODEL)
    return [[*sizes[i::count]] for i in range(count)]
