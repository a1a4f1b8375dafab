# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Add up tensors in one order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def total(terms: Sequence[Any]) -> Any:
    """Return the sum of tensors: of the first two, then with the third one, and so on.

    So it has the same bits in each run, and slices of it those of the sums of slices.
    """
    # Not by AddN, which Grappler sorts by name, and which begins with the first term whose memory
    # it can take: that depends on who has read the terms by then. Grappler makes it of sums of
    # sums, too, but not through a Snapshot, which takes the sum's memory.
    made, *others = terms
    for i, one in enumerate(others):
        made = (tf.raw_ops.Snapshot(input=made) if i else made) + one
    return made
