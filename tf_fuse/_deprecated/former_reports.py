# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read reports of weight updates that earlier versions wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

#: Keys of a function in a report: from the former name to the new one.
FUNCTION_KEYS: Final = {"packs": "buckets", "is_parted": "state_is_sharded"}

#: Reasons: from the former name to the new one.
REASONS: Final = {"not_redundant": "not_replicated", "nothing_to_cut": "nothing_to_shard"}

#: Sums that `tf-fuse explain` also writes by their former names: from that to the new one.
TOTALS: Final = {"functions_cut": "functions_sharded", "gradients_cut": "gradients_sharded"}


def with_new_names(report: Any) -> Any:
    """Return a report of any version with the names of this one; other data unchanged."""
    return _changed(report, "functions", _function)


def _function(function: Any) -> Any:
    if not isinstance(function, Mapping):
        return function
    named = {FUNCTION_KEYS.get(key, key): value for key, value in function.items()}
    return _changed(_reasoned(named), "buckets", _bucket)


def _bucket(bucket: Any) -> Any:
    return _changed(_reasoned(bucket), "gradients", _reasoned)


def _reasoned(data: Any) -> Any:
    """Return a dict with the new name of its reason; other data unchanged."""
    if not isinstance(data, Mapping) or not isinstance(reason := data.get("reason"), str):
        return data
    return {**data, "reason": REASONS.get(reason, reason)}


def _changed(data: Any, key: str, change: Callable[[Any], Any]) -> Any:
    """Return a dict with each item of its list at a key changed; other data unchanged."""
    if not isinstance(data, Mapping) or not isinstance(data.get(key), list):
        return data
    return {**data, key: [change(one) for one in data[key]]}
