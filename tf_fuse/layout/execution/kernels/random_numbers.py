# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draw a device's part of random numbers that all devices draw together.

TensorFlow draws numbers in groups, in the order of memory, and Philox reaches the group at any
place by adding to its counter. So a device draws the rows of its slice alone, with the bits that
they have in the whole.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Final

import numpy as np
import tensorflow as tf

from tf_fuse.layout.execution.kernels.local_operation import LocalOperation
from tf_fuse.layout.operators.random_numbers import STATELESS, outer_dimension

# Philox makes four numbers of 4 bytes for a step of its counter. A group of truncated normal ones
# has so many steps in reserve for each number.
_BYTES: Final = 16
_MOST_IN_GROUP: Final = 4
_RESERVED: Final = 64


def draw(device: LocalOperation, *inputs: Any) -> list[Any]:
    """Run a draw with key and counter."""
    key, counter, *limits = inputs
    return [_part(device, device.operation.kind, key, counter, limits)]


def seeded_draw(device: LocalOperation, *limits: Any) -> list[Any]:
    """Run a draw that has a state in TensorFlow: with the operation's seed and the call's number.

    As in TensorFlow, operations with the same seeds draw the same numbers.
    """
    assert device.seed is not None
    seeds = device.node_attribute("seed"), device.node_attribute("seed2")
    text = f"{seeds}" if any(seeds) else f"{device.seed.base} {device.operation.name}"
    own = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(
        seed=tf.stack([tf.constant(own, tf.int64), device.seed.call])
    )
    kind = STATELESS[device.operation.kind]
    return [_part(device, kind, key, counter, limits)]


def _part(device: LocalOperation, kind: str, key: Any, counter: Any, limits: Any) -> Any:
    """Return the device's slice of a draw."""
    whole = device.operation.outputs[0]
    shape = whole.shape
    at = device.instruction.strategy.outputs[0].slice_of(device.device)
    rows = outer_dimension(shape)
    row = math.prod(shape[rows + 1 :])
    first, end = (at[rows].start * row, at[rows].stop * row) if shape else (0, 1)
    group = min(_MOST_IN_GROUP, _BYTES // whole.item_bytes)
    skipped = first // group
    steps = skipped * (group * _RESERVED if "Truncated" in kind else 1)
    given: dict[str, Any] = {"dtype": tf.as_dtype(whole.dtype)}
    if kind == "StatelessRandomUniformIntV2":
        given = dict(zip(("minval", "maxval"), limits, strict=True))
    drawn = getattr(tf.raw_ops, kind)(
        shape=tf.constant([end - skipped * group], tf.int64),
        key=key,
        counter=_later(counter, steps),
        alg=tf.constant(int(device.attribute("alg", tf.random.Algorithm.AUTO_SELECT.value))),
        **given,
    )
    mine = [one.stop - one.start for one in at]
    lines = tf.reshape(drawn[first - skipped * group :], [*mine[: rows + 1], *shape[rows + 1 :]])
    if mine == lines.shape.as_list():
        return lines
    begin = [0 if i <= rows else one.start for i, one in enumerate(at)]
    return tf.slice(lines, begin, mine)


def _later(counter: Any, steps: int) -> Any:
    """Add to a counter: 128 bits, the lower half first."""
    if not steps:
        return counter
    low = counter[0] + tf.constant(np.uint64(steps))
    carried = tf.cast(low < counter[0], tf.uint64)
    return tf.stack([low, counter[1] + carried])
