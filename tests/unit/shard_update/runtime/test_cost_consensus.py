# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whose figures a replica plans with; the other one is played here."""

import os
import types

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tf_fuse.shard_update.cost_figures import DEFAULTS, UpdateCosts
from tf_fuse.shard_update.cost_model import update_measurement
from tf_fuse.shard_update.runtime.cost_consensus import CostConsensus
from tf_fuse.shard_update.runtime.plan_consensus import PlanConsensus, describe
from tf_fuse.sharded_variable.peers import Peers

_HERE = "/job:localhost/replica:0/task:0"
_THERE = "/job:worker/replica:0/task:1"
_MEASURED = UpdateCosts(0.05, 0.1, 20.0, origin="measured by someone")


class _Other:
    """Another replica: after how many questions its option is on, what its word is, its plan."""

    def __init__(self, late=0, word="", plan=""):
        self.late, self.word, self.plan = late, word, plan

    def run(self, key, build):
        what, name = key
        if what == "read":
            return (self.word if name == "tf_fuse/plan/on" else self.plan).encode()
        if name == "tf_fuse/plan/on":
            self.late -= 1
            return self.late < 0
        return True


class _Dead:
    def run(self, key, build):
        raise tf.errors.UnavailableError(None, None, "it is gone")


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """How often was measured, for how many replicas."""
    calls = []

    def costs_here(beside, task):
        calls.append((beside, task))
        return _MEASURED

    monkeypatch.setattr(update_measurement, "costs_here", costs_here)
    monkeypatch.delenv("TF_FUSE_UPDATE_COSTS", raising=False)
    monkeypatch.setenv("TF_FUSE_PLAN_WAIT_S", "60")
    return calls


def _first(other=None):
    """The first of two replicas, on one host."""
    devices = (f"{_HERE}/device:CPU:0", f"{_THERE}/device:CPU:0")
    return _made(Peers(devices, (0,), "", 2), {1: other})


def _second(other=None):
    """The second one; the first is the other."""
    devices = (f"{_THERE}/device:CPU:0", f"{_HERE}/device:CPU:0")
    return _made(Peers(devices, (1,), "", 2), {0: other})


def _made(peers, readers):
    calibration = CostConsensus(peers)
    return calibration, PlanConsensus(peers, readers, calibration.word)


def _on(consensus):
    """What others read."""
    return consensus._on.read().numpy().decode()


def test_the_first_replica_measures_and_tells(measured):
    calibration, consensus = _first()
    assert calibration.costs(consensus) == _MEASURED
    assert _on(consensus) == _MEASURED.word()
    assert measured == [(2, _HERE)]


def test_others_wait_for_its_figures(measured):
    other = _Other(3, _MEASURED.word())
    calibration, consensus = _second(other)
    assert calibration.costs(consensus) == _MEASURED
    assert other.late < 0
    # It asks once.
    other.word = DEFAULTS.word()
    assert calibration.costs(consensus) == _MEASURED
    assert measured == []


def test_pinned_figures_are_not_measured_or_asked_for(measured, monkeypatch):
    monkeypatch.setenv("TF_FUSE_UPDATE_COSTS", "share_us=7")
    pinned = UpdateCosts(share_us=7.0, origin=f"TF_FUSE_UPDATE_COSTS of {_HERE}")
    for made in (_first, _second):
        calibration, consensus = made(_Dead())
        assert calibration.costs(consensus) == pinned
    assert _on(_first()[1]) == pinned.word()
    assert measured == []


def test_one_process_measures_for_all_its_replicas(measured):
    devices = ["/job:localhost/replica:0/task:0/device:CPU:0", "/device:CPU:1", "/device:CPU:2"]
    calibration, consensus = _made(Peers.here(devices), {})
    assert calibration.costs(consensus) == _MEASURED
    assert measured == [(3, _HERE)]


@pytest.mark.parametrize(
    ("addresses", "beside"),
    [
        (["a:1", "a:2", "b:1"], 2),
        (["b:1", "a:2", "a:1"], 1),
        (["[::1]:1", "[::1]:2", "[::2]:1"], 2),
        # One host, for all that the addresses say, may be two.
        (["a:1", "localhost:1", "127.0.0.1:1"], 1),
    ],
)
def test_who_shares_a_machine_is_seen_by_the_addresses(addresses, beside):
    server = tf.train.ServerDef(job_name="worker", task_index=0, protocol="grpc+fuse")
    worker = server.cluster.job.add(name="worker")
    for task, address in enumerate(addresses):
        worker.tasks[task] = address
    # It does not train.
    server.cluster.job.add(name="ps").tasks[0] = addresses[0]
    context = types.SimpleNamespace(
        _collective_ops_server_def=server, list_logical_devices=lambda kind: []
    )
    assert Peers.of(context).beside == beside


def test_other_figures_are_an_error_on_both(monkeypatch):
    monkeypatch.setenv("TF_FUSE_UPDATE_COSTS", "share_us=7")
    calibration, _ = _first()
    pinned = calibration.costs(None)
    plans = [describe("f", None, "why", costs=costs) for costs in (pinned, _MEASURED)]
    for made, mine, theirs in (
        (_first, pinned, plans[1]),
        (_second, _MEASURED, plans[0]),
    ):
        _, consensus = made(_Other(plan=theirs))
        with pytest.raises(tf.errors.FailedPreconditionError) as caught:
            consensus.reach(describe("f", None, "why", costs=mine))
        for costs in (pinned, _MEASURED):
            assert f"it decides by {costs.text()}: {costs.origin}" in caught.value.message


def test_the_same_figures_may_come_from_elsewhere(monkeypatch):
    monkeypatch.setenv("TF_FUSE_UPDATE_COSTS", _MEASURED.text())
    calibration, consensus = _second(_Other(plan=describe("f", None, "why", costs=_MEASURED)))
    costs = calibration.costs(consensus)
    assert costs.origin == f"TF_FUSE_UPDATE_COSTS of {_HERE}"
    consensus.reach(describe("f", None, "why", costs=costs))


def test_a_wrong_pin_is_an_error_on_all(monkeypatch):
    for made, there in ((_first, _second), (_second, _first)):
        monkeypatch.setenv("TF_FUSE_UPDATE_COSTS", "fast")
        calibration, consensus = made()
        with pytest.raises(tf.errors.InvalidArgumentError, match="'fast' is not NAME=NUMBER") as e:
            calibration.costs(consensus)
        assert f"TF_FUSE_UPDATE_COSTS='fast' of {_HERE}" in e.value.message
        monkeypatch.delenv("TF_FUSE_UPDATE_COSTS")
        published = consensus._published[0].read().numpy().decode()
        calibration, consensus = there(_Other(word=_on(consensus), plan=published))
        with pytest.raises(tf.errors.FailedPreconditionError) as caught:
            consensus.reach(describe("f", None, "why", costs=calibration.costs(consensus)))
        assert e.value.message in caught.value.message
        if made is _first:
            assert caught.value.message == (
                f"tf_fuse: {_THERE} does not say what an update of weights costs, so it is not "
                f"known what to shard: {e.value.message}"
            )


@pytest.mark.parametrize("word", ["", "share_us=1", "figures\tof another kind"])
def test_a_replica_that_tells_no_figures_is_an_error(word):
    calibration, consensus = _second(_Other(word=word))
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        calibration.costs(consensus)
    assert caught.value.message.startswith(
        f"tf_fuse: {_THERE} does not say what an update of weights costs, so it is not known what "
        f"to shard: it says {word!r}; perhaps it runs another version of tf_fuse ("
    )


def test_a_first_replica_without_a_sign_of_the_option_is_an_error(monkeypatch):
    monkeypatch.setenv("TF_FUSE_PLAN_WAIT_S", "0")
    calibration, consensus = _second(_Other(10**9))
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        calibration.costs(consensus)
    assert f"After 0 s (TF_FUSE_PLAN_WAIT_S) {_THERE}/device:CPU:0 has not called" in (
        caught.value.message
    )


def test_a_first_replica_that_is_gone_is_an_error():
    calibration, consensus = _second(_Dead())
    with pytest.raises(tf.errors.UnavailableError, match="it is gone"):
        calibration.costs(consensus)
    # If it comes back, it does not wait for this one.
    assert consensus._published[0].read().numpy() == b"refused\tit is gone"


def test_what_is_no_text_is_an_error():
    other = _Other()
    other.run = lambda key, build: b"\xff" if key[0] == "read" else True
    calibration, consensus = _second(other)
    with pytest.raises(tf.errors.FailedPreconditionError, match="it says ''; perhaps"):
        calibration.costs(consensus)
