# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`benchmarks/layout/run.py --parts processes`, with a small model."""

from __future__ import annotations

import pytest
from rich.progress import Progress

from benchmarks.layout import processes


@pytest.mark.slow
def test_all_ways_begin_with_the_same_loss():
    """A plan has the loss of one device, and of both strategies; tables are split by rows."""
    with Progress(disable=True) as progress:
        rows = processes.measure(progress, ["wide_deep"], [2], 1, {"batch": 64, "rows": 1000})
    assert [row["way"] for row in rows] == ["stock", "sharded", "plan"]
    assert all(row["ms"]["median"] > 0 for row in rows)
    found = rows[-1]["plan"]
    assert found["layouts"]["deep_table/embeddings"] == "[1000/x, 32] on x:2"
    assert rows[-1]["received_bytes"] > 0
    assert "CollectiveGatherV2" not in found["collectives"]
