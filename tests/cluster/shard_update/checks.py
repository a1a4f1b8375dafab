# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What tests of the option `shard_weight_update` compare, of the model that `trained` trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from tests.cluster.collectives.ranks import Ranks

# Of the model's weights, in the order of the bucket: the strategy reduces the last ones first.
SIZES = [1, 5 * 1, 5, 37 * 5, 37, 10 * 37]
ELEMENTS = sum(SIZES)
_SAME = ("losses", "seen", "slots", "weights")
_stock: WeakKeyDictionary[Ranks, dict[str, list[Any]]] = WeakKeyDictionary()


def stock_values(ranks: Ranks, case: str, **args: Any) -> list[Any]:
    """Return what a case gives in each rank with the option off; train for it only once."""
    known = _stock.setdefault(ranks, {})
    key = f"{case} {sorted(args.items())}"
    if key not in known:
        known[key] = ranks.values(case, on=False, **args)
    return known[key]


def check_equal(stock: Iterable[Mapping[str, Any]], here: Iterable[Mapping[str, Any]]) -> None:
    """All ranks have the losses, weights and slots of stock TensorFlow, to the last bit."""
    for one, other in zip(stock, here, strict=True):
        for key in _SAME:
            assert one[key] == other[key], key
