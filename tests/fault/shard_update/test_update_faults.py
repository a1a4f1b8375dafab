# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Replicas that die or stop while updates are sharded: the errors of the others, and what is left.

In stock each replica has all of the optimizer's state; here each has a part. What follows from that
are rows of docs/faults.md.
"""

import time

import pytest

from tests.cluster.collectives.ranks import Ended, Error, Ranks
from tests.fault import table

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(300)]

_STATE_TIMEOUT_S = 3
# Whether a rank that waits would have an answer by then; no outcome depends on it.
_A_WHILE_S = 1.0
_TOLD = "restart the program from its last checkpoint"


def _trained(ranks, folder, on, steps=3, **args):
    ranks.values("between_steps", folder=folder, readers=[], on=on, **args)
    if steps:
        ranks.values("makes_steps", steps=steps)


def _asked(ranks, case, **args):
    """How a case of rank 0 ends, and how long it takes."""
    start = time.monotonic()
    ranks.start(case, [0], **args)
    (result,) = ranks.wait([0])
    return _outcome(result), round(time.monotonic() - start, 3)


def _outcome(result):
    if isinstance(result, Error):
        return f"`{result.kind}`" + (" (says what to do)" if _TOLD in result.text else "")
    return "the process dies" if result is Ended else "its values"


def _in_a_step(ranks, folder, on):
    _trained(ranks, folder, on)
    ranks.start("steps_without_end")
    ranks.begun(0)
    start = time.monotonic()
    ranks.kill(1)
    (result,) = ranks.wait([0])
    return {"killed_in_a_step": (_outcome(result), time.monotonic() - start)}


def _between_steps(ranks, folder, on):
    _trained(ranks, folder, on)
    told = {"stopped_in_a_step": _stopped_in_a_step(ranks)}
    told["stopped_before_a_read"] = _stopped_before_a_read(ranks)
    assert ranks.values("managed", [0], folder=folder) == [["1"]]
    ranks.values("makes_steps", steps=1)
    ranks.kill(1)
    told["killed_before_a_read"] = _asked(ranks, "reads_all")
    told["killed_before_a_save"] = _saved(ranks, folder)
    told["killed_between_steps"] = _asked(ranks, "makes_steps", steps=1)
    return told


def _before_a_step(ranks, folder, on):
    _trained(ranks, folder, on)
    ranks.values("reads_all", [0])
    ranks.values("put_aside")
    # Others, which make no steps.
    _trained(ranks, folder, on, steps=0, optimizer="Lion")
    ranks.kill(1)
    told = {"killed_after_a_read": _asked(ranks, "reads_all", put_aside=True)}
    told["killed_before_the_first_step"] = _asked(ranks, "makes_steps", steps=1)
    return told


def _saved(ranks, folder):
    start = time.monotonic()
    ((*error, latest),) = ranks.values("managed", [0], folder=folder)
    seconds = time.monotonic() - start
    if error:
        assert _TOLD in error[1]
        return f"`{error[0]}` (says what to do); checkpoint {latest} is the latest", seconds
    return f"saved; checkpoint {latest} is the latest", seconds


def _stopped_in_a_step(ranks):
    ranks.pause(1)
    start = time.monotonic()
    ranks.start("makes_steps", steps=1)
    assert not ranks.answers(0, _A_WHILE_S)
    ranks.resume(1)
    assert ranks.wait() == [None, None]
    return "waits, and goes on when it does", time.monotonic() - start


def _stopped_before_a_read(ranks):
    ranks.pause(1)
    first, seconds = _asked(ranks, "reads_all")
    ranks.resume(1)
    again, _ = _asked(ranks, "reads_all")
    return f"{first}; {again} when it goes on", seconds


# Each has ranks of its own, and several faults.
_SCENARIOS = {
    _before_a_step: {"killed_after_a_read", "killed_before_the_first_step"},
    _between_steps: {
        "killed_before_a_read",
        "killed_before_a_save",
        "killed_between_steps",
        "stopped_before_a_read",
        "stopped_in_a_step",
    },
    _in_a_step: {"killed_in_a_step"},
}


def _observe(scenario, folder, protocol):
    env = {"TF_FUSE_STATE_TIMEOUT_S": str(_STATE_TIMEOUT_S)} if protocol == "grpc+fuse" else {}
    with Ranks([protocol] * 2, env, server=False) as ranks:
        told = scenario(ranks, str(folder / protocol), protocol == "grpc+fuse")
    return {
        case: {"outcome": outcome, "seconds": round(seconds, 3)}
        for case, (outcome, seconds) in told.items()
    }


def test_the_table_has_each_fault():
    assert set(table.cases(__file__)) == set().union(*_SCENARIOS.values())


@pytest.mark.parametrize("scenario", _SCENARIOS)
def test_outcomes(scenario, tmp_path):
    stock = _observe(scenario, tmp_path, "grpc")
    here = _observe(scenario, tmp_path, "grpc+fuse")
    assert stock.keys() == here.keys() == _SCENARIOS[scenario]
    for case in sorted(stock):
        table.check(__file__, case, stock[case], here[case])
