# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Forbid relayouts for which devices would communicate within loops and conditionals."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from tf_fuse.layout.types.tensor_layout import TensorLayout

_KEPT = 1 << 16


def allowed_locally(
    sources: Sequence[TensorLayout], targets: Sequence[TensorLayout], is_list: bool = False
) -> np.ndarray:
    """Return, by source and target, whether no device needs anything of others.

    Args:
      sources: layouts.
      targets: layouts.
      is_list: whether they are of a list of tensors, which nothing brings into another layout.
    """
    found = [
        [source == target if is_list else is_local(source, target) for target in targets]
        for source in sources
    ]
    return np.array(found, bool).reshape(len(sources), len(targets))


@functools.lru_cache(maxsize=_KEPT)
def is_local(source: TensorLayout, target: TensorLayout) -> bool:
    """Return whether each device has all of its target already: it slices, or fills with zeros."""
    longer = all(
        new[: len(old)] == old for old, new in zip(source.splits, target.splits, strict=True)
    )
    return longer and set(source.partial) <= set(target.partial)
