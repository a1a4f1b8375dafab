# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is counted of weight updates in parts, for `tf_fuse.metrics()`."""

from __future__ import annotations

from collections import Counter
from typing import Any

#: What each counter counts, in the order of `weight_update_counters`; without `functions_left`.
DESCRIPTIONS = {
    "bundles": "Sets of variables of the optimizer that are kept in parts.",
    "state_bytes": "Bytes of the parts that are here.",
    "whole_state_bytes": "Bytes that those variables would take here without parts.",
    "steps": "Steps that have updated a part of the weights, and ended well.",
    "joins": "How often values were put together between steps.",
    "join_bytes": "Bytes that were read from other replicas for that.",
    "join_seconds": "Seconds that it took.",
    "functions_cut": "Functions whose update is cut.",
    "updates_fused": "Updates of weights that are one operation each, in all functions.",
    "assignments_left": "Assignments of those functions that are parts of longer updates.",
}

#: Those that may fall again.
GAUGES = frozenset({"bundles", "state_bytes", "whole_state_bytes"})


def weight_update_counters() -> dict[str, Any]:
    """What `DESCRIPTIONS` has; and `functions_left`, by reason how many functions are not cut."""
    from tensorflow.python.eager import context

    from tf_fuse.shard_update import server_report

    fused = server_report.decisions()
    updates = getattr(context.context(), "_tf_fuse_updates", None)
    decisions = [] if updates is None else list(updates.decisions)
    # (Of bundles that are gone, too: counters do not fall. Traces of a function share one.)
    ever = list({id(d.bundle): d.bundle for d in decisions if d.bundle is not None}.values())
    here = [bundle.bytes() for bundle in ([] if updates is None else updates.bundles())]
    left = Counter(decision.reason for decision in decisions if decision.reason is not None)
    return {
        "bundles": len(here),
        "state_bytes": sum(part for part, _ in here),
        "whole_state_bytes": sum(whole for _, whole in here),
        "steps": sum(bundle.version for bundle in ever),
        "joins": sum(bundle.joins.count for bundle in ever),
        "join_bytes": sum(bundle.joins.bytes for bundle in ever),
        "join_seconds": sum(bundle.joins.seconds for bundle in ever),
        "functions_cut": sum(decision.reason is None for decision in decisions),
        "updates_fused": sum(len(one.outline.cones) for one in fused),
        "assignments_left": sum(len(server_report.assignments_left(one)) for one in fused),
        "functions_left": dict(sorted(left.items())),
    }
