# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Count sharded weight updates, for `tf_fuse.metrics()`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tf_fuse._deprecated.former_keys import FormerKeys
from tf_fuse._deprecated.former_reports import REASONS

#: What each counter counts, in the order of `weight_update_counters`; without `functions_left`.
DESCRIPTIONS = {
    "shard_groups": "Sets of variables of the optimizer that are kept in shards.",
    "state_bytes": "Bytes of the shards that are here.",
    "whole_state_bytes": "Bytes that those variables would take here without shards.",
    "steps": "Steps that have updated a shard of the weights, and ended well.",
    "joins": "How often values were put together between steps.",
    "join_bytes": "Bytes that were read from other replicas for that.",
    "join_seconds": "Seconds that it took.",
    "functions_sharded": "Functions whose update is sharded.",
    "updates_fused": "Updates of weights that are one operation each, in all functions.",
    "assignments_left": "Assignments of those functions that are parts of longer updates.",
}

#: Counters that may fall.
GAUGES = frozenset({"shard_groups", "state_bytes", "whole_state_bytes"})

#: The former name of a counter, and the new one.
FORMER = {"bundles": "shard_groups", "functions_cut": "functions_sharded"}


def weight_update_counters() -> dict[str, Any]:
    """Return the counters in `DESCRIPTIONS`, and `functions_left`: of unsharded ones, by reason."""
    from tensorflow.python.eager import context

    updates = getattr(context.context(), "_tf_fuse_updates", None)
    fuser = getattr(context.context(), "_tf_fuse_fuser", None)
    groups = [] if updates is None else updates.shard_groups()
    here = [group.bytes() for group in groups]
    decided = Counter[str]() if updates is None else Counter(updates.counts)
    fused = {"updates_fused": 0, "assignments_left": 0} if fuser is None else dict(fuser.counts)
    # (These include functions and shard groups that are gone: counters do not fall.)
    done = dict.fromkeys(["steps", "joins", "join_bytes", "join_seconds"], 0)
    counters = {
        "shard_groups": len(here),
        "state_bytes": sum(part for part, _ in here),
        "whole_state_bytes": sum(whole for _, whole in here),
        **done,
        **({} if updates is None else updates.done()),
        "functions_sharded": decided.pop("", 0),
        **fused,
        "functions_left": FormerKeys(sorted(decided.items()), REASONS),
    }
    return FormerKeys(counters, FORMER)
