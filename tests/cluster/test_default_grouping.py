# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Without fuse_grouping, runs group by cost; tasks of one small host have nothing to overlap."""

import os
from pathlib import Path

import pytest
import scripted

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def events():
    script = Path(__file__).parent / "default_grouping.py"
    return {event["case"]: event for event in scripted.run(script, {}, os.environ)}


def test_values_do_not_depend_on_the_grouping(events):
    assert events["None"]["value"] == events["level"]["value"] == events["cost"]["value"]


def test_cost_is_the_default(events):
    assert len(events["reports"]["calls"]) == 3
    # Only cost needs estimates.
    assert events["reports"]["estimated"] == [True, False, True]


def test_overlap_needs_cores(events):
    by_default, level, cost = events["reports"]["calls"]
    assert by_default == cost
    if len(os.sched_getaffinity(0)) <= 2:  # No more than there are tasks.
        assert cost == level
    else:
        assert cost >= level
