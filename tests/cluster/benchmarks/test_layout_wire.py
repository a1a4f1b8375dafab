# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans say how many bytes go over the wire: docs/benchmarks.md says how exactly."""

import re
from pathlib import Path

import pytest

from benchmarks.layout import wire

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

_DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "benchmarks.md"


def test_bytes_on_the_wire(run_benchmark):
    if not wire.can_be_apart():
        pytest.skip("others' bytes would be counted: unshare makes no network namespace here")
    text = _DOCUMENT.read_text()
    percent = float(re.search(r"with headers, are at most ([\d.]+) % more than planned", text)[1])
    rows = run_benchmark("layout", "--parts wire")["wire"]
    assert len(rows) > 10
    over = {row["name"]: row["measured_bytes"] / row["predicted_bytes"] for row in rows}
    most = 1 + percent / 100
    assert [name for name, ratio in over.items() if not 1 <= ratio <= most] == [], over
