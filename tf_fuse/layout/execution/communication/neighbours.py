# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exchange rows between a device and the next one of its group, in another process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_fuse import _native
from tf_fuse.layout.execution.communication.carried_types import CARRIED, shaped
from tf_fuse.layout.execution.communication.plugin_operations import flat, surely
from tf_fuse.layout.execution.communication.process_collectives import ProcessCollectives


def swap(
    collectives: ProcessCollectives, pair: Sequence[int], device: int, block: Any,
    shape: Sequence[int], instance: int,
) -> Any:  # fmt: skip
    """Return what the other device of a pair sends.

    The plugin gathers blocks of two lengths, so each receives only the other one's. TensorFlow's
    collectives take equal ones, so the shorter block travels with zeros.

    Args:
      collectives: that know the pair.
      pair: both devices.
      device: the one of this process.
      block: what it sends; perhaps without rows.
      shape: of what it gets.
      instance: key of the exchange, the same on both.
    """
    given, back = _carried(block)
    given, wanted = flat(given), math.prod(shape)
    own = given.shape.num_elements()
    ranked = collectives.ranked(pair)
    if collectives.plugin:
        sizes = [own if one == device else wanted for one in ranked]
        made = surely(_native.load().tf_fuse_all_gather)(
            shards=[given],
            shapes=[tf.constant([own + wanted], tf.int64)],
            bounds=[0, sizes[0], own + wanted],
            **collectives.member(pair, device, instance),
        )
        both = tf.split(shaped(made, [own + wanted]), sizes)
        taken = next(one for one, other in zip(both, ranked, strict=True) if other != device)
    else:
        length = max(own, wanted)
        if own < length:
            given = tf.concat([given, tf.zeros([length - own], given.dtype)], 0)
        made = tf.raw_ops.CollectiveGatherV2(
            input=given[None], **collectives.where(pair, device, instance)
        )
        rows = tf.unstack(shaped(made, [2, length]))
        taken = next(one for one, other in zip(rows, ranked, strict=True) if other != device)
        taken = taken[:wanted]
    return back(tf.reshape(taken, shape))


def _carried(block: Any) -> tuple[Any, Any]:
    """Return a block of a type that collectives carry, and the way back."""
    kind = block.dtype
    if kind in CARRIED:
        return block, lambda one: one
    if kind == tf.bfloat16:
        return tf.bitcast(block, tf.float16), lambda one: tf.bitcast(one, kind)
    return tf.cast(block, tf.int32), lambda one: tf.cast(one, kind)
