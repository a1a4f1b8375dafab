# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The figures that variables are placed by: of the updates that will run, and measured ones."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from dataclasses import replace

import pytest
import tensorflow as tf

from tf_fuse import parameter_server
from tf_fuse.parameter_server import CostPartitioner, Costs, PsStrategy, report, update_measurement
from tf_fuse.parameter_server.costs import VariableSpec

_WEIGHT = VariableSpec("kernel", (1000, 250), "float32", slots=2)  # 1 MB


@pytest.mark.parametrize(
    ("is_fused", "seconds"), [(False, 3 * 0.42e-3 + 50e-6), (True, 3 * 0.15e-3 + 30e-6)]
)
def test_the_updates_that_will_run(is_fused, seconds):
    costs = Costs(link_bytes_per_s=1e10).of_updates(is_fused)
    assert _WEIGHT.load(costs).update_s == pytest.approx(seconds)
    assert costs.link_bytes_per_s == 1e10
    assert ("one operation each" in costs.origin) == is_fused


@pytest.mark.parametrize("is_fused", [False, True])
def test_what_the_program_sets_stays(is_fused):
    costs = Costs(update_s_per_byte=1e-9, update_s=0.0).of_updates(is_fused)
    assert _WEIGHT.load(costs).update_s == pytest.approx(3e-3)
    assert costs.origin == "set by the program"
    half = Costs(update_s=0.0).of_updates(is_fused)
    assert half.update_times() == ((0.15e-9 if is_fused else 0.42e-9), 0.0)


def test_what_a_partitioner_is_told_stays():
    own = CostPartitioner(2, Costs(workers=5, update_s=1e-3))
    own.adapt(2, 3, is_fused=True)
    assert own.costs.workers == 5 and own.costs.update_times() == (0.15e-9, 1e-3)
    free = CostPartitioner(2)
    free.adapt(2, 3, is_fused=True)
    assert free.costs == Costs(workers=3).of_updates(True)


def test_what_follows_from_times():
    # 31 more small updates in 62 us; 16 MiB and two slots in 50 ms.
    size = 3 * (16 << 20)
    found = update_measurement.of_times(1e-3, 1e-3 + 62e-6, 1e-3 + 1e-10 * size, 2.0)
    assert found.update_s == pytest.approx(2e-6)
    assert found.update_s_per_byte == pytest.approx(1e-10)
    assert found.slots == 2
    # What took longer in between is not a reason for less than nothing.
    none = update_measurement.of_times(2e-3, 1e-3, 1e-3, 0.0)
    assert (none.update_s, none.update_s_per_byte, none.slots) == (0.0, 0.0, 0)


def _clock(seconds):
    left = iter(seconds)
    return lambda: next(left)


def test_steps_run_until_they_can_be_told_apart():
    # In the first five turns something else runs whenever the small update does.
    one = _clock([9.0] * 5 + [1.0, 1.0])
    many = _clock([5.0, 3.0, 2.0, 4.0, 6.0, 7.0, 8.0])
    large = _clock([4.0] * 7)
    assert update_measurement.fastest([one, many, large]) == [1.0, 2.0, 4.0]
    one, many, large = (_clock([seconds] * 100) for seconds in (2.0, 3.0, 1.0))
    text = r"an update of 16 MiB took 1 s and one of 256 bytes 2 s, the fastest of 100: "
    with pytest.raises(RuntimeError, match=text):
        update_measurement.fastest([one, many, large])


def test_what_cannot_be_measured():
    with pytest.raises(TypeError, match=r"function is 'adam' \(str\), must be a function"):
        parameter_server.measure_costs(None, "adam")
    with pytest.raises(TypeError, match=r"must be a tf\.distribute\.ParameterServerStrategy"):
        parameter_server.measure_costs(tf.distribute.get_strategy(), tf.keras.optimizers.Adam)


def test_the_report_has_the_figures(capsys):
    costs = replace(Costs(update_s_per_byte=2e-10, update_s=3e-6), origin="measured there")
    strategy = PsStrategy(2, costs)
    data = parameter_server.placement_report(strategy)
    assert data["costs"] == {
        "workers": 1,
        "slots": 2,
        "link_bytes_per_s": 1e9,
        "update_s_per_byte": 2e-10,
        "update_s": 3e-6,
        "memory_bytes_per_s": 4e9,
        "piece_s": 50e-6,
        "origin": "measured there",
    }
    data["reason"] = ""
    report.print_placement_report(data)
    assert (
        "Costs: an update takes 0.2 ns per byte of the weight and each slot, and 3 us (measured "
        "there); the link 1e+09 bytes/s; a worker puts pieces together at 4e+09 bytes/s and 50 us "
        "each" in capsys.readouterr().out
    )
    del data["costs"]  # (As older reports.)
    report.print_placement_report(data)
    assert "Costs:" not in capsys.readouterr().out
