# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Simulated replicas against times that are added up by hand."""

import dataclasses

import pytest

pytest.importorskip("simpy")
pytest.importorskip("scipy")

from tf_fuse.scale.calibration import measure_replicas
from tf_fuse.scale.collective_rates import GRPC, SHARED, STOCK, CollectiveRates, WayRates
from tf_fuse.scale.errors import ScaleError
from tf_fuse.scale.replicas import step as replica_step
from tf_fuse.scale.replicas.job import DIRECT, RING, Setting, simulate
from tf_fuse.scale.replicas.step import Part, ReplicaStep, measured_step
from tf_fuse.shard_update.cost_figures import UpdateCosts

_NOTHING = UpdateCosts(gradient_us=0.0, collective_us=0.0)
_STEP = ReplicaStep("", 8e6, 10, Part(10e-3), Part(40e-3), Part(20e-3))


def _rates(**given):
    zero = WayRates(0.0, 0.0, 0.0)
    return CollectiveRates({way: given.get(way, zero) for way in (STOCK, SHARED, GRPC)})


@pytest.mark.parametrize(("mode", "ms"), [("stock", 50.0), ("fused", 30.0), ("sharded", 15.0)])
def test_a_shard_of_the_update_is_what_a_replica_does(mode, ms):
    found = simulate(_STEP, mode, _rates(), Setting(4, 4, 1.0), _NOTHING)
    assert found.step_s == pytest.approx(1e-3 * ms)
    assert found.cpu_s == pytest.approx(1e-3 * ms)


def test_stock_updates_are_measured_without_the_option(monkeypatch):
    import tensorflow as tf

    def is_on():
        return tf.config.optimizer.get_experimental_options().get("fuse_weight_update", False)

    seen = []

    def measure(run):
        seen.append((is_on(), float(run())))
        return 1.0 + len(seen), 1.0

    monkeypatch.setattr(replica_step, "_measure", measure)
    found = measured_step("net", [], lambda: tf.constant(1.0), lambda one: one + 1.0)
    # (The last two are whole steps, without and with it.)
    assert seen == [(False, 1.0), (False, 2.0), (True, 2.0)]
    assert (found.update.cpu_s, found.fused_update.cpu_s) == (1.0, 2.0)
    assert not is_on()


def test_a_sharded_update_takes_more_for_each_gradient():
    costs = UpdateCosts(gradient_us=100.0, collective_us=1000.0)
    found = simulate(_STEP, "sharded", _rates(), Setting(4, 4, 1.0), costs)
    assert found.step_s == pytest.approx(15e-3 + 10 * 1e-4 + 1e-3)


@pytest.mark.parametrize("mode", ["fused", "sharded"])
@pytest.mark.parametrize("algorithm", [RING, DIRECT])
def test_each_byte_crosses_the_link_of_a_replica_twice(mode, algorithm):
    setting = Setting(4, 4, 1.0, 1e9, algorithm=algorithm)
    found = simulate(_STEP, mode, _rates(), setting, _NOTHING)
    assert found.sent_bytes == pytest.approx(2 * 8e6 * 3 / 4)
    update = 20e-3 / (4 if mode == "sharded" else 1)
    assert found.step_s == pytest.approx(10e-3 + update + 12e-3)
    assert found.link_busy == pytest.approx(12e-3 / found.step_s)


def test_direct_waits_twice_and_the_ring_for_each_member():
    waits = {
        algorithm: simulate(
            _STEP, "fused", _rates(), Setting(8, 8, 1.0, 1e12, 1e-3, algorithm), _NOTHING
        ).step_s
        - 30e-3
        for algorithm in (DIRECT, RING)
    }
    # A request and an answer each time.
    assert waits[DIRECT] == pytest.approx(2 * 2e-3, rel=0.02)
    assert waits[RING] == pytest.approx(14 * 2e-3, rel=0.02)


def test_on_several_hosts_a_ring_sends_less():
    sent = {
        algorithm: simulate(
            _STEP, "fused", _rates(), Setting(8, 2, 4.0, 1e9, algorithm=algorithm), _NOTHING
        ).sent_bytes
        for algorithm in (DIRECT, RING)
    }
    assert sent[RING] == pytest.approx(2 * 8e6 * 7 / 8)
    # Four replicas send to four others, in two phases.
    assert sent[DIRECT] == pytest.approx(2 * 16 * 8e6 / 8)


def test_replicas_of_one_host_share_its_cores():
    rates = _rates(shm=WayRates(0.0, 0.0, 1e-9))
    apart = Setting(4, 1, 4.0)
    found = [simulate(_STEP, "fused", rates, dataclasses.replace(apart, cores=c)) for c in (4, 1)]
    # 12 MB are received at 1 ns a byte, and as many sent.
    assert found[0].step_s == pytest.approx(30e-3 + 12e-3)
    assert found[1].step_s == pytest.approx(4 * found[0].step_s)
    assert found[1].cores_busy == pytest.approx(1.0)


def test_replicas_are_on_all_hosts_alike():
    with pytest.raises(ScaleError, match="5 replicas cannot be on 2 hosts alike"):
        Setting(5, 2)


def test_2048_replicas_wait_for_their_slowest_way():
    rates = _rates(shm=WayRates(0.0, 0.0, 1e-10), grpc=WayRates(0.0, 0.0, 1e-9))
    setting = Setting(2048, 256, 16.0, 1.25e9)
    whole, sharded = (
        simulate(_STEP, mode, rates, setting, _NOTHING).step_s for mode in ("fused", "sharded")
    )
    assert whole - sharded == pytest.approx(20e-3, rel=0.05)


def test_rates_of_collectives_are_those_of_the_probes():
    given = WayRates(1e-3, 1e-4, 1e-9)
    rows = []
    for replicas in (2, 4):
        for size in (64e3, 4e6, 32e6):
            one = measure_replicas.Measured(replicas, size, 1.0, 0.0)
            messages = 2 * (replicas - 1)
            cpu_s = 1e-3 + messages * (1e-4 + 1e-9 * size / replicas)
            seconds = measure_replicas.seconds_of(SHARED, given, one, 2.0)
            rows.append({"replicas": replicas, "size": size, "seconds": seconds, "cpu_s": cpu_s})
    found, _ = measure_replicas.rates_of({SHARED: rows})
    for name in ("call_s", "message_s", "byte_s"):
        assert getattr(found.ways[SHARED], name) == pytest.approx(getattr(given, name), rel=1e-6)


@pytest.mark.parametrize("content", [None, [], {STOCK: {}}, {STOCK: {"call_s": -1.0}}])
def test_a_file_without_collectives_is_refused(content):
    with pytest.raises(
        ScaleError, match=r"costs\.json.* stock.*; run: tf-fuse calibrate --out costs"
    ):
        CollectiveRates.from_dict(content, "costs.json")


def test_rates_are_read_as_they_were_written():
    rates = _rates(stock=WayRates(1.0, 2.0, 3.0, 4.0, 2.0))
    assert CollectiveRates.from_dict(rates.as_dict(), "") == rates
