# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What tests of the option `shard_weight_update` compare, of the model that `trained` trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Of the model's weights, in the order of the pack: the strategy reduces the last ones first.
SIZES = [1, 5 * 1, 5, 37 * 5, 37, 10 * 37]
ELEMENTS = sum(SIZES)
_SAME = ("losses", "seen", "slots", "weights")


def check_equal(stock: Iterable[Mapping[str, Any]], here: Iterable[Mapping[str, Any]]) -> None:
    """All ranks have the losses, weights and slots of stock TensorFlow, to the last bit."""
    for one, other in zip(stock, here, strict=True):
        for key in _SAME:
            assert one[key] == other[key], key
