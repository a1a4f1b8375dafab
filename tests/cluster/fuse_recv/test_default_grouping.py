# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Without fuse_grouping, runs group by cost; tasks of one small host have nothing to overlap.

Between hosts they have, and the options say what calls and bytes cost.
"""

import os
from pathlib import Path

import pytest

from tests import scripted

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def events():
    script = Path(__file__).parent / "default_grouping.py"
    return {event["case"]: event for event in scripted.run(script, {}, os.environ)}


_GROUPINGS = ["None", "level", "cost"]
_COSTS = ["slow link", "dear calls", "fast link"]


def test_values_do_not_depend_on_the_grouping(events):
    (value,) = {str(events[name]["value"]) for name in _GROUPINGS + _COSTS}
    assert value.startswith("['float32', [64, 256], ")


def test_cost_is_the_default(events):
    assert len(events["reports"]["calls"]) == len(_GROUPINGS + _COSTS)
    # Only cost needs estimates.
    assert events["reports"]["estimated"] == [True, False, True] + [True] * len(_COSTS)


def test_on_one_host_groups_are_those_of_a_level(events):
    by_default, level, cost = events["reports"]["calls"][: len(_GROUPINGS)]
    assert by_default == cost == level


def test_options_say_what_calls_and_bytes_cost(events):
    # With the default call, or a gigabyte per second, they are divided in another way.
    calls = dict(zip(_COSTS, events["reports"]["calls"][len(_GROUPINGS) :], strict=True))
    assert calls == {"slow link": 2, "dear calls": 1, "fast link": 1}
