# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables in processes whose memory is limited."""

from __future__ import annotations

import pytest
from rich.progress import Progress

from benchmarks.layout import large_table

pytestmark = pytest.mark.slow


def test_a_table_that_fits_trains_in_all_ways_alike():
    with Progress(disable=True) as progress:
        rows = large_table.measure(progress, ("found", "data"), rows=100_000)
    found, data = rows
    assert found["trains"] and data["trains"]
    assert found["losses"] == pytest.approx(data["losses"], rel=1e-5)
    assert found["losses"][-1] < found["losses"][0]
    assert data["layout"] == "[100000, 20] on x:4"
    assert "/x" in found["layout"]


def test_a_plan_trains_a_table_that_data_parallelism_cannot():
    """2 * 10^8 parameters in four processes of 1 GB."""
    with Progress(disable=True) as progress:
        found, data, stock = large_table.measure(progress)
    assert found["parameters"] == 200_000_000
    assert found["trains"]
    assert found["losses"][-1] < found["losses"][0]
    assert found["peak_bytes"] < large_table.LIMIT_BYTES
    for one in (data, stock):
        assert not one["trains"]
        assert "OOM when allocating tensor with shape[10000000,20]" in one["error"]
