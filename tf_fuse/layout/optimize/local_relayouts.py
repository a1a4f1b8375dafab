# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the relayouts that need no other device, and those that lists of tensors have: none."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from tf_fuse.layout.types.tensor_layout import TensorLayout

_KEPT = 1 << 16


def only_alike(
    seconds: np.ndarray, sources: Sequence[TensorLayout], targets: Sequence[TensorLayout]
) -> np.ndarray:
    """Return seconds that are infinite where a list of tensors would get another layout.

    Args:
      seconds: [sources, targets], of relayouts.
      sources: layouts.
      targets: layouts.
    """
    alike = [[source == target for target in targets] for source in sources]
    return np.where(np.array(alike, bool).reshape(seconds.shape), seconds, np.inf)


@functools.lru_cache(maxsize=_KEPT)
def is_local(source: TensorLayout, target: TensorLayout) -> bool:
    """Return whether each device has all of its target already: it slices, or fills with zeros."""
    longer = all(
        new[: len(old)] == old for old, new in zip(source.splits, target.splits, strict=True)
    )
    return longer and set(source.partial) <= set(target.partial)
