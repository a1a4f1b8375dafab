# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""fuse_grouping="dynamic" on real processes. All other cases: `make dynamic`."""

import collections
import os
from pathlib import Path

import pytest

from tests import scripted

pytestmark = pytest.mark.cluster

# TF_FUSE_TEST_ALL_DYNAMIC=1 runs all.
_FEW = [
    "branch_on_another_server",
    "branches",
    "gradients",
    "kept_values",
    "loops",
    "nested_loops",
    "rare_types",
    "resource_handles",
    "shapes",
    "strings",
]


def _cases():
    if os.environ.get("TF_FUSE_TEST_ALL_DYNAMIC") != "1":
        return _FEW
    from tests.cluster.fuse_recv.cases import CASES

    return sorted(CASES)


_CASES = _cases()


def _run(**spec):
    return scripted.run(Path(__file__).parent / "dynamic.py", spec, os.environ)


@pytest.fixture(scope="module")
def stock():
    return {e["case"]: e for e in _run(part="stock", cases=sorted({*_CASES, "reads"}))}


@pytest.fixture(scope="module")
def values():
    """The events by case and phase: of a case that ran more than once all, in order."""
    events = collections.defaultdict(list)
    for event in _run(part="values", cases=_CASES):
        events[event["case"], event.get("phase")].append(event)
    return events


@pytest.fixture(scope="module")
def plain():
    return {(e["case"], e.get("phase")): e for e in _run(part="plain")}


def _total(event):
    total = collections.Counter()
    for of_call in event["counted"]:
        for counters in of_call.values():
            total.update({k: v for k, v in counters.items() if isinstance(v, int)})
    return total


@pytest.mark.parametrize("case", _CASES)
def test_values_are_the_same_bits(stock, values, case):
    assert stock["environment"]["plugin_loaded"] is False
    for event in values[case, "dynamic"]:
        assert event["values"] == stock[case]["values"]


@pytest.mark.parametrize("case", _CASES)
def test_requests_are_shared_and_nothing_is_received_twice(values, case):
    totals = [_total(event) for event in values[case, "dynamic"]]
    for total in totals:
        assert total["dynamic_requests"] == total["fused_rpcs"] == total["served_rpcs"]
        assert 0 < total["fused_rpcs"] <= total["tensors"] == total["served_tensors"]
        assert total["dynamic_rounds"] < total["dynamic_requests"]
        assert not {"errors", "fallbacks", "served_errors"} & total.keys()
    # The case runs again until some share one, which is up to the timing.
    assert totals[-1]["fused_rpcs"] < totals[-1]["tensors"]


def test_no_receive_is_left_and_no_tensor_is_kept(values):
    (event,) = values["gauges", None]
    assert set(map(tuple, event["values"].values())) == {(0, 0, 0)}


def test_what_a_frame_cannot_hold_goes_beside(values):
    for event in values["strings", "dynamic"]:
        assert _total(event)["beside_tensors"] == 1
    for event in values["shapes", "dynamic"]:
        assert _total(event)["beside_tensors"] == 4  # 2 of them, read twice


def test_a_tensor_that_depends_on_receives_that_are_issued_later(values):
    (event,) = values["later", None]
    # begin = 1.5, the function's results sum to 15, each iteration adds 6.
    late = 15.0 + 3 * 6.0
    assert event["values"] == [late * 2.0 + 1.0, late * 3.0 + 1.0] * 2
    assert event["total"]["dynamic_rounds"] > 0
    assert "errors" not in event["total"]


def test_senders_without_the_plugin_send_singly(stock, plain):
    for phase in ("off", "dynamic"):
        assert plain["reads", phase]["values"] == stock["reads"]["values"]
    total = _total(plain["reads", "dynamic"])
    assert "fused_rpcs" not in total and "errors" not in total
    # Those of the first requests are asked for in vain, all others at once singly.
    assert total["fallbacks"] > 0
    singles = _total(plain["reads", "off"])["single_rpcs"]
    # With the option a step does without a control edge from each of two servers.
    assert total["single_rpcs"] == singles - 2 * 2


def test_that_is_said_once_for_each(plain):
    lines = plain["log", None]["lines"]
    assert len(lines) == 2
    assert sorted(line.split("tf_fuse: ")[1].split(" does ")[0] for line in lines) == [
        "/job:ps/replica:0/task:0",
        "/job:ps/replica:0/task:1",
    ]
