# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fill up distinct row numbers to a size that is known, and leave out what was filled in.

The number that is filled in is the least one of its type, which cannot be a row of a table.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_fuse.layout.execution.kernels.local_operation import LocalOperation
from tf_fuse.layout.types.operation import DISTINCT_ROWS


def distinct(device: LocalOperation, numbers: Any) -> list[Any]:
    """Run `Unique`, and fill up the distinct numbers."""
    found, places = device.again([numbers])
    if device.attribute(DISTINCT_ROWS):
        missing = tf.size(numbers) - tf.size(found)
        found = tf.concat([found, tf.fill([missing], _filled_in(numbers))], 0)
    return [found, places]


def with_meaning(device: LocalOperation, ids: Any) -> Any:
    """Return which row numbers were not filled in; None if none was."""
    return tf.not_equal(ids, _filled_in(ids)) if device.attribute(DISTINCT_ROWS) else None


def or_other(device: LocalOperation, ids: Any, other: int) -> Any:
    """Return row numbers, with another number in place of those that were filled in."""
    known = with_meaning(device, ids)
    return ids if known is None else tf.where(known, ids, tf.cast(other, ids.dtype))


def _filled_in(ids: Any) -> Any:
    return tf.constant(ids.dtype.min, ids.dtype)
