# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The sizes of biases that a model is traced with, and that others have at run time (`resized`)."""

from __future__ import annotations

LAST = 4097
_MODELS = 36  # Each is large: Grappler sorts by names, and Mul_100 is before Mul_99.


def sizes_of_model(index: int) -> list[int]:
    """The sizes of one of several models that have every size together, each one also that of 1.

    Of those of Keras 3's Adam with weight_decay (the fourth row), 1, 37, 73 and so on, the first
    had another last bit when `shard_weight_update_exact` did not leave it whole; with other sizes
    it had not.
    """
    return [1, *range(2 + (index - 4) % _MODELS, LAST + 1, _MODELS)]
