# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Three workers and three servers, with stock TensorFlow, and the option off, on and off again."""

import collections
import os
from pathlib import Path

import pytest

from tests import scripted

pytestmark = pytest.mark.cluster

_CASES = [
    "branch_on_another_server",
    "branches",
    "compiled",
    "crowded",
    "dtypes",
    "gradients",
    "kept_values",
    "local_dataset",
    "loop_bodies",
    "loop_conditions",
    "loop_gradients",
    "loops",
    "loops_and_branches",
    "nested",
    "nested_branches",
    "nested_loops",
    "python_function",
    "rare_types",
    "reads",
    "resource_handles",
    "scheduled",
    "shapes",
    "snapshots",
    "spread",
    "steps_in_a_loop",
    "strings",
    "sums",
    "switch_case",
    "updates_in_branches",
]
# `make slow` runs all with the option off.
_OFF = ["branches", "dtypes", "gradients", "loops", "reads", "strings"]
_DIVIDED = {
    "consumer": [
        "branches",
        "branch_on_another_server",
        "loops_and_branches",
        "nested_loops",
        "spread",
        "sums",
    ],
    "cost": ["branches", "loop_gradients", "sums", "updates_in_branches"],
}
_DIVIDED_CASES = [(case, phase) for phase, cases in _DIVIDED.items() for case in cases]


def _run(mode):
    script = Path(__file__).parent / "modes.py"
    spec = {"mode": mode, "workers": 3, "ps": 3, "off": _OFF, "divided": _DIVIDED}
    return scripted.run(script, spec, os.environ)


@pytest.fixture(scope="module")
def stock():
    return {e["case"]: e for e in _run("stock")}


@pytest.fixture(scope="module")
def plugin():
    emitted = _run("plugin")
    return {(e["case"], e.get("phase")): e for e in emitted}


@pytest.fixture(scope="module")
def off():
    return {e["case"]: e for e in _run("off")}


def test_every_case_ran_in_every_phase(stock, plugin):
    assert sorted(stock.keys() - {"environment", "options"}) == _CASES
    phases = {"off": _OFF, "on": _CASES, **_DIVIDED}
    for of_phase, cases in phases.items():
        ran = [case for case, phase in plugin if phase == of_phase and case != "options"]
        assert sorted(ran) == sorted(cases)


def test_no_environment_variable_is_needed(stock, plugin):
    assert stock["environment"]["plugin_loaded"] is False
    assert plugin["environment", None]["plugin_loaded"] is True
    assert stock["environment"]["ours"] == plugin["environment", None]["ours"] == []


def test_option_is_what_was_set(stock, plugin):
    assert stock["options"]["value"] is None
    options = {phase: e["value"] for (case, phase), e in plugin.items() if case == "options"}
    on = dict.fromkeys(["on", *_DIVIDED], True)
    assert options == {"off": None, **on, "off_again": False}


@pytest.mark.parametrize(
    ("phase", "case"),
    [("off", case) for case in _OFF]
    + [("on", case) for case in _CASES]
    + [(phase, case) for case, phase in _DIVIDED_CASES],
)
def test_values_are_the_same_bits(stock, plugin, case, phase):
    assert plugin[case, phase]["values"] == stock[case]["values"]


def _sum(event):
    total = collections.Counter()
    for of_call in event["counted"]:
        for counters in of_call.values():
            total.update({k: v for k, v in counters.items() if isinstance(v, int)})
    return total


def _total(plugin, case, phase):
    """What all tasks counted in all calls of a case."""
    return _sum(plugin[case, phase])


_FUSED = {"fused_rpcs", "served_rpcs", "groups", "functions", "errors"}


@pytest.mark.parametrize(
    ("case", "phase"), [*((case, "off") for case in _OFF), ("reads", "off_again")]
)
def test_nothing_is_fused_when_off(plugin, case, phase):
    assert not _FUSED & _total(plugin, case, phase).keys()


@pytest.mark.slow
@pytest.mark.parametrize("case", _CASES)
def test_every_case_is_stocks_when_off(stock, off, case):
    assert off[case]["values"] == stock[case]["values"]
    assert not _FUSED & _sum(off[case]).keys()


@pytest.mark.parametrize("case", _CASES)
def test_it_is_fused_when_on(plugin, case):
    total = _total(plugin, case, "on")
    assert total["fused_rpcs"] == total["served_rpcs"] > 0
    assert total["tensors"] == total["served_tensors"] > total["fused_rpcs"]
    assert "errors" not in total and "fallbacks" not in total


def _receives(plugin, case, phase):
    """Of the graphs: (groups, receives that were split off, receives in all)."""
    total = _total(plugin, case, phase)
    counted = [c for of_call in plugin[case, phase]["counted"] for c in of_call.values()]
    skipped = collections.Counter()
    for counters in counted:
        skipped.update(counters.get("skipped", {}))
    assert set(skipped) <= {"alone", "split_off"}
    return total["groups"], skipped["split_off"], total["fused_receives"] + sum(skipped.values())


@pytest.mark.parametrize(("case", "phase"), _DIVIDED_CASES)
def test_groups_are_divided(plugin, case, phase):
    groups, split_off, receives = _receives(plugin, case, phase)
    whole, none, all_receives = _receives(plugin, case, "on")
    assert none == 0 and receives == all_receives
    assert groups + split_off > whole, "more calls for the same receives"
    divided, level = _total(plugin, case, phase), _total(plugin, case, "on")
    assert not {"errors", "served_errors", "fallbacks"} & divided.keys()
    assert divided["fused_rpcs"] == divided["served_rpcs"]
    assert divided["fused_rpcs"] + divided["single_rpcs"] > (
        level["fused_rpcs"] + level["single_rpcs"]
    )
    # Each tensor travels once, with others or singly.
    assert divided["tensors"] + divided["single_rpcs"] == level["tensors"] + level["single_rpcs"]
    # What one of these branches reads is used by as many operations.
    assert (groups == 0) == ((case, phase) == ("branches", "consumer"))


@pytest.mark.parametrize("phase", _DIVIDED)
def test_parts_of_groups_are_fused(plugin, phase):
    assert _receives(plugin, "sums", phase)[0] > _receives(plugin, "sums", "on")[0]


@pytest.mark.parametrize(
    "case",
    [
        "branch_on_another_server",
        "branches",
        "nested_branches",
        "switch_case",
        "updates_in_branches",
    ],
)
def test_branches_are_fused(plugin, case):
    skipped = [c.get("skipped", {}) for of in plugin[case, "on"]["counted"] for c in of.values()]
    assert not any("may_be_dead" in reasons for reasons in skipped)


def _reported(plugin, case):
    """(groups, skips) of a case."""
    reports = [report for of in plugin["report", case]["of_tasks"].values() for report in of]
    return [[x for report in reports for x in report.get(what, [])] for what in ("groups", "skips")]


def test_a_server_that_only_takes_part_in_a_branch_has_no_receive_of_tensorflows(plugin):
    """So its executor would not look at dead tensors, if the slots had no Switch."""
    groups, skips = _reported(plugin, "branch_on_another_server")
    for server in (scripted.device("ps:1"), scripted.device("ps:2")):
        received = [g["slots"] for g in groups if g["recv_device"] == server]
        assert [len(slots) for slots in received] == [2] * 3  # of each worker's function
        assert all(slot["may_be_dead"] for slots in received for slot in slots)
        assert server not in {skip["recv_device"] for skip in skips}


def test_resource_handles_cross_in_frames(plugin):
    groups, _ = _reported(plugin, "resource_handles")
    handles = [[s["dtype"] for s in g["slots"]].count("resource") for g in groups]
    assert sum(handles) == 3 * 6  # of three workers
    total = _total(plugin, "resource_handles", "on")
    assert "beside_tensors" not in total


_LOOPS = [case for case in _CASES if "loop" in case]


@pytest.mark.parametrize("case", _LOOPS)
def test_loops_are_fused(plugin, case):
    skipped = [c.get("skipped", {}) for of in plugin[case, "on"]["counted"] for c in of.values()]
    assert set().union(*skipped) <= {"alone"}


def test_an_iteration_has_one_rpc_per_group(plugin):
    """Also the last one, in which the body is dead; one at a time and ten at a time."""
    # From each of two servers, its variables and a control edge; to each, whether the loop goes on
    # and a control edge.
    groups, tensors = 4, 2 * (3 + 1) + 2 * 2
    wanted = [(groups * (n + 1), tensors * (n + 1)) for n in (0, 1, 5)]
    found = []
    for of_call in plugin["loop_bodies", "on"]["counted"]:
        fused, served = (
            tuple(sum(c.get(name, 0) for c in of_call.values()) for name in names)
            for names in (("fused_rpcs", "tensors"), ("served_rpcs", "served_tensors"))
        )
        assert fused == served
        found.append(fused)
    assert found == 2 * wanted


def test_requests_of_iterations_are_not_remembered(plugin):
    # They would push out those that come again. Loops of one function, called for the second time.
    for of_call in plugin["loop_bodies", "on"]["counted"]:
        assert sum(c.get("served_rpcs", 0) for c in of_call.values()) > 0
        assert not any("remembered_requests" in c for c in of_call.values())
    first, second = plugin["reads", "on"]["counted"][0], plugin["reads", "on"]["counted"][3]
    assert sum(c.get("remembered_requests", 0) for c in first.values()) == 3  # one of each server
    assert not any("remembered_requests" in c for c in second.values())


def test_a_large_tensor_goes_beside_in_each_iteration(plugin):
    # Of three workers, five times each; in the last iteration and in loops of none it is dead.
    assert _total(plugin, "loops", "on")["beside_tensors"] == 3 * 5


def test_what_a_frame_cannot_hold_goes_beside(plugin):
    total = _total(plugin, "crowded", "on")
    assert total["fused_rpcs"] == 1
    assert total["beside_tensors"] == 3
    assert total["served_bytes"] < 17 << 20


def test_no_type_is_left_single(plugin):
    for case in ("dtypes", "rare_types", "strings"):
        counted = [c for of_call in plugin[case, "on"]["counted"] for c in of_call.values()]
        assert {name for c in counted for name in c.get("skipped", {})} <= {"alone"}
    workers = 3
    assert _total(plugin, "strings", "on")["beside_tensors"] == workers, "the one that is too long"
    # A ragged variant and two optionals: their decoders are not known to refuse what is malformed.
    assert _total(plugin, "rare_types", "on")["beside_tensors"] == 3 * workers


def test_every_type_is_fused(plugin):
    fused = set()
    for case in ("dtypes", "rare_types", "resource_handles", "strings"):
        groups, _ = _reported(plugin, case)
        fused |= {slot["dtype"] for group in groups for slot in group["slots"]}
    assert fused == set(plugin["types", None]["names"])


# (reason, sender, receiver) of the receives that are left alone in the cases.
_LEFT_ALONE = {
    ("alone", "ps", "ps"),
    ("alone", "ps", "worker"),
    ("alone", "worker", "ps"),
    ("alone", "ps", "chief"),
    ("alone", "chief", "ps"),
}


def test_every_skip_is_known(plugin):
    event = plugin["skips", None]
    assert event["reports"] == event["functions"], "reports of some functions were dropped"
    left = {
        (reason, *(task.split(":")[0] for task in tasks)) for reason, *tasks, _ in event["skips"]
    }
    assert left
    assert left - _LEFT_ALONE == set(), event["skips"]
    # Each names the operation whose value it is.
    assert [skip for skip in event["skips"] if not skip[-1]] == []


def test_no_request_is_left_waiting(plugin):
    assert set(plugin["gauges", None]["pending"].values()) == {0}
