# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rule by which a soak test is flat: what it lets pass, and what it finds."""

import json

import pytest

from tests.fault.soak import faults as soak_faults
from tests.fault.soak import job as soak_job
from tests.fault.soak import report as soak_report
from tests.fault.soak import soak
from tests.fault.soak.run_with_faults import unanswered

_COUNT = 100


def _samples(rss, gauges=None, pid=lambda i: 7, waiting=None):
    rest = dict.fromkeys(soak_job.GAUGES, 0)
    return [
        {
            "steps": 1000 * i,
            "coordinators": 1,
            "gauges": {"/job:ps/replica:0/task:0": gauges or rest},
            "waiting": waiting or {},
            "faults": {"cancelled": i},
            "tasks": {"ps:0": {"pid": pid(i), "rss_mib": rss(i), "threads": 100, "fds": 14}},
        }
        for i in range(_COUNT)
    ]


def _points(values, restarts=lambda i: 0):
    return [
        soak_report.Point(100 * i, restarts(i), {"fds": value}) for i, value in enumerate(values)
    ]


def _waiting(task, peer, sending, step=7):
    return {"task": task, "peer": peer, "sending": sending, "step_id": step, "tensors": 3}


def test_a_receive_that_its_peer_knows_of_is_not_lost():
    both = {"w": [_waiting("w", "p", False)], "p": [_waiting("p", "w", True)]}
    assert unanswered(both) == []
    # Of another step, for another task, and without any.
    for of_p in ([_waiting("p", "w", True, 8)], [_waiting("p", "v", True)], []):
        assert unanswered({**both, "p": of_p}) == ["w, step 7: 3 tensors of p"]
    assert unanswered({**both, "p": None}) == []  # it gave no answer: nothing is known
    assert unanswered({"p": both["p"], "w": []}) == []


def _forsaken(count, peer_knows=True):
    receiver, sender = "/job:worker/replica:0/task:1", "/job:ps/replica:0/task:0"
    requests = [
        _waiting(sender, receiver, True, step) | {"step_not_begun": True} for step in range(count)
    ]
    receives = [_waiting(receiver, sender, False, step) for step in range(count)]
    return {sender: requests, receiver: receives if peer_knows else []}


def test_receives_that_a_death_left_for_ever_are_no_finding():
    left = dict.fromkeys(soak_job.GAUGES, 0) | {"pending_requests": 4, "pending_bytes": 99}
    samples = _samples(lambda i: 600, left, waiting=_forsaken(4))
    for sample in samples:
        sample["faults"] = {"server_killed": 1}
        sample["gauges"]["/job:worker/replica:0/task:1"] = dict.fromkeys(soak_job.GAUGES, 0) | {
            "pending_receives": 4,
            "open_steps": 5,  # one is the coordinator's
        }
    assert soak_report.restless(samples) == []
    # Without a death, or where the receiver does not know of them, they are lost requests.
    samples[3]["faults"] = {}
    samples[4]["waiting"] = _forsaken(4, peer_knows=False)
    found = soak_report.restless(samples)
    assert [text.split(":")[0] for text in found] == [
        "after 3000 steps and 0 deaths 4 receives wait for steps that nobody runs",
        "after 4000 steps /job",
        "after 4000 steps /job",
    ]


def test_growth_is_steady_between_restarts_and_the_rest_in_all():
    # 0.001 a step, 50 with each of two restarts, and every tenth sample is far off.
    values = [0.1 * i + 50 * (i // 40) + (500 if i % 10 == 5 else 0) for i in range(100)]
    grown = soak_report.growth(_points(values, lambda i: i // 40), "fds")
    assert grown.steadily == pytest.approx(0.001 * (9900 - 1000))
    assert grown.in_all == pytest.approx(8.9 + 100)
    assert grown.restarts == 2


def test_samples_right_before_and_after_a_restart_are_no_steady_growth():
    values = [100.0 * (i // 2) for i in range(100)]
    assert soak_report.growth(_points(values, lambda i: i // 2), "fds").steadily == 0


def test_growth_shortly_after_a_restart_is_not_steady():
    # 20 samples, which are 2,000 steps, of each 50.
    values = [float(30 * (i // 50) + min(i % 50, 20)) for i in range(100)]
    assert soak_report.growth(_points(values, lambda i: i // 50), "fds").steadily == 0
    values[98:] = [99.0, 102.0]
    assert soak_report.growth(_points(values, lambda i: i // 50), "fds").in_all == 92.0


def test_flat_with_noise_is_no_finding():
    samples = _samples(lambda i: 600 + 20 * (i % 3))
    assert soak_report.grown(samples, ["ps:0"]) == soak_report.restless(samples) == []


def test_a_small_leak_is_found():
    a_megabyte_in_ten_samples = 1e5 / 2**20  # in 10,000 steps
    found = soak_report.grown(_samples(lambda i: 600 + a_megabyte_in_ten_samples * i), ["ps:0"])
    assert found == [
        "ps:0 (7): rss_mib grew steadily by 8.1, of 8.0",
        "ps:0 (7): rss_mib grew by 8.1 with 0 restarts, of 8.0",
    ]


def test_what_stock_keeps_for_a_restart_is_no_finding_and_more_is():
    def samples(by):
        made = _samples(lambda i: 600 + by * (i // 50))
        for i, sample in enumerate(made):
            sample["faults"]["worker_killed"] = i // 50
        return made

    assert soak_report.grown(samples(20.0), ["ps:0"]) == []
    found = soak_report.grown(samples(21.0), ["ps:0"])
    assert found == ["ps:0 (7): rss_mib grew by 21.0 with 1 restarts, of 20.0"]


@pytest.mark.parametrize("gauge", ["pending_requests", "partial_tensors"])
def test_a_task_that_does_not_come_to_rest_is_found(gauge):
    gauges = dict.fromkeys(soak_job.GAUGES, 0) | {gauge: 1}
    one = _waiting("p", "w", True) | {"step_not_begun": False}
    waiting = {"/job:ps/replica:0/task:0": [one]}
    found = soak_report.restless(_samples(lambda i: 600, gauges, waiting=waiting))
    assert len(found) == _COUNT and found[0] == (
        f"after 0 steps /job:ps/replica:0/task:0 is not at rest: {gauges}, waiting: {[one]}"
    )


@pytest.mark.parametrize(
    ("open_steps", "coordinators", "resting"), [(1, 1, True), (2, 1, False), (2, 2, True)]
)
def test_each_coordinator_may_have_one_open_step(open_steps, coordinators, resting):
    gauges = dict.fromkeys(soak_job.GAUGES, 0) | {"open_steps": open_steps}
    assert soak_job.is_at_rest(gauges, coordinators) is resting


def test_a_task_without_counters_is_not_at_rest():
    assert soak_job.is_at_rest({}, 1) is False


def test_a_kept_task_that_was_started_anew_is_found():
    samples = _samples(lambda i: 600, pid=lambda i: i)
    assert soak_report.grown(samples, ["ps:0"]) == ["ps:0: no process has 16 samples"]


def test_differing_losses_are_found():
    losses = [["a", "b"]] * 9
    assert soak.differences(losses, losses) == []
    other = [["a", "b"]] * 4 + [["a", "c"]] * 5
    found = soak.differences(losses, other)
    assert found[0] == "round 4: losses ['a', 'b'], without faults ['a', 'c']"
    assert found[-1] == "2 more rounds differ" and len(found) == 4


def test_growth_that_was_not_judged_is_not_said_to_be_flat():
    assert soak_report.verdict([], True, "all losses equal") == "flat, and all losses equal"
    assert soak_report.verdict([], False, "all losses equal") == (
        "all losses equal, growth not judged"
    )
    for judged in (True, False):
        assert soak_report.verdict(["a", "b"], judged, "all") == "FAILED, findings: 2"


@pytest.mark.parametrize(
    ("count", "last"),
    [(21, "flat"), (20, "at rest, growth not judged: no process has 16 samples")],
)
def test_a_report_of_too_few_samples_says_so(tmp_path, capsys, count, last):
    path = tmp_path / "soak.jsonl"
    path.write_text("".join(json.dumps(s) + "\n" for s in _samples(lambda i: 600)[:count]))
    assert soak_report.main([str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_both_copies_of_the_variables_are_read_both_ways():
    ways = {(number % 2, soak_job.grouping(number)) for number in range(8)}
    assert ways == {(0, "level"), (0, "dynamic"), (1, "level"), (1, "dynamic")}


def test_a_deck_has_every_fault_and_depends_on_its_seed_alone():
    size = sum(soak_faults.DECK.values())

    def deal(seed):
        deck = soak_faults.Deck(seed, soak_faults.DECK)
        return [deck.deal() for _ in range(2 * size)]

    assert deal(1) == deal(1) != deal(2)
    for first in (0, size):
        kinds = deal(1)[first : first + size]
        assert {kind: kinds.count(kind) for kind in set(kinds)} == soak_faults.DECK
