# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs that measure a mesh, by a clock of their own, and rates in files."""

from __future__ import annotations

import pytest

from tf_fuse.layout import LayoutError, Link, Mesh, plan_relayout
from tf_fuse.layout.cost import Rates
from tf_fuse.layout.measurement import Relayouted, measure
from tf_fuse.layout.rates_file import load_rates, save_rates
from tf_fuse.v1 import layout_pb2

MESH = Mesh({"x": 2, "one": 1, "y": 4})
LINKS = {"x": Link(1e-4, 2e-9), "one": Link(0.0, 0.0), "y": Link(3e-4, 5e-10)}
TRUE = Rates(MESH, LINKS, 1e-11, 2e-10, 4e-6)
CALL = 7e-4


class Clocked:
    """A mesh on which all takes what `TRUE` says, and each call as long besides."""

    def __init__(self, late=()):
        self.now = 100.0
        self.runs = 0
        # Numbers of runs that something else disturbs.
        self.late = late

    def clock(self) -> float:
        return self.now

    def taking(self, seconds):
        def run():
            self.now += seconds + CALL + 5.0 * (self.runs in self.late)
            self.runs += 1

        return run

    def relayout(self, source, target):
        plan = plan_relayout(source, target, 4)
        # Another axis would be measured along.
        (axes,) = {step.axes for step in plan.steps}
        link = LINKS["+".join(axes)]
        run = self.taking(link.seconds(plan.received_bytes_per_device, plan.messages))
        return Relayouted(plan.received_bytes_per_device, plan.messages, run)

    def product(self, rows):
        return self.taking(TRUE.compute(2 * rows**3, 12 * rows**2))

    def sums(self, elements):
        return self.taking(TRUE.compute(elements, 12 * elements))

    def chain(self, operations, elements):
        seconds = TRUE.compute(operations * elements, 8 * operations * elements)
        return self.taking(seconds + (operations - 1) * TRUE.seconds_per_operation)

    def nothing(self):
        return self.taking(0.0)

    def agreed(self, seconds):
        return list(seconds)


def same(found: Rates, wanted: Rates, rel: float) -> None:
    for axis, link in wanted.links:
        mine = dict(found.links)[axis]
        assert mine.seconds_per_message == pytest.approx(link.seconds_per_message, rel=rel)
        assert mine.seconds_per_byte == pytest.approx(link.seconds_per_byte, rel=rel)
    for name in ("seconds_per_flop", "seconds_per_byte", "seconds_per_operation"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=rel), name


def test_rates_are_found_again():
    bench = Clocked()
    found = measure(MESH, bench, clock=bench.clock, overlap=0.25)
    same(found.rates, TRUE, 1e-6)
    assert found.rates.overlap == 0.25
    assert found.compute_error < 1e-6 and max(error for _, error in found.link_errors) < 1e-6
    assert [axis for axis, _ in found.link_errors] == ["x", "y"]


def test_a_run_that_is_disturbed_does_not_count():
    """The first run of each case is not counted, and of the others all but one may take long."""
    cases = 1 + 2 * 2 * 3 + 3 + 2 + 2
    for fast in (1, 3, 5):
        bench = Clocked(late=[run for run in range(6 * cases) if run % 6 != fast])
        same(measure(MESH, bench, clock=bench.clock).rates, TRUE, 1e-6)
        assert bench.runs == 6 * cases
    bench = Clocked(late=range(1, 2 * cases, 2))
    found = measure(MESH, bench, rounds=1, clock=bench.clock).rates
    assert found.seconds_per_flop != pytest.approx(TRUE.seconds_per_flop, rel=1e-3)


def test_processes_agree_on_the_longest_time():
    """What another process measured counts for all, so that all make the same plan."""
    bench = Clocked()
    told = []

    def agreed(seconds):
        told.append(len(seconds))
        return [2 * one for one in seconds]

    bench.agreed = agreed
    found = measure(MESH, bench, clock=bench.clock).rates
    assert found.seconds_per_flop == pytest.approx(2 * TRUE.seconds_per_flop, rel=1e-6)
    assert dict(found.links)["y"].seconds_per_byte == pytest.approx(1e-9, rel=1e-6)
    assert len(told) == 1


def test_a_call_that_does_nothing_is_not_all_of_a_time():
    """Where a run is no longer than a call, a hundredth of it is left, not less than nothing."""
    bench = Clocked()
    bench.nothing = lambda: bench.taking(1.0)
    found = measure(MESH, bench, clock=bench.clock)
    assert dict(found.rates.links)["x"].seconds_per_message > 0


def test_errors_of_measurement():
    with pytest.raises(LayoutError) as caught:
        measure(MESH, Clocked(), rounds=0)
    assert str(caught.value) == "rounds is 1 or more, got 0"
    bench = Clocked()
    with pytest.raises(LayoutError, match="measure with a clock that is fine enough"):
        measure(MESH, bench, clock=lambda: 0.0)


def test_rates_in_a_file(tmp_path):
    path = tmp_path / "mesh.rates"
    rates = Rates(MESH, LINKS, 1e-11, 2e-10, 4e-6, 0.5)
    save_rates(rates, path)
    assert load_rates(path) == rates
    assert [one.name for one in tmp_path.iterdir()] == ["mesh.rates"]


def test_files_that_hold_no_rates(tmp_path):
    path = tmp_path / "mesh.rates"

    def error(**changes) -> str:
        save_rates(TRUE, path)
        message = layout_pb2.LayoutRates.FromString(path.read_bytes())
        for name, value in changes.items():
            setattr(message, name, value)
        path.write_bytes(message.SerializeToString())
        with pytest.raises(LayoutError) as caught:
            load_rates(path)
        return str(caught.value)

    assert error(version=2) == (
        f"{path}: the rates have version 2, and this is for version 1; measure again"
    )
    assert error(seconds_per_flop=-1.0) == (
        f"{path}: seconds_per_flop is a finite number, 0 or more, got -1.0"
    )
    assert error(overlap=float("nan")) == f"{path}: overlap is a share, from 0 to 1, got nan"
    path.write_bytes(b"\xff" * 9)
    with pytest.raises(LayoutError) as caught:
        load_rates(path)
    assert str(caught.value).startswith(f"{path} holds no rates: ")
    save_rates(TRUE, path)
    message = layout_pb2.LayoutRates.FromString(path.read_bytes())
    del message.links[0]
    path.write_bytes(message.SerializeToString())
    with pytest.raises(LayoutError) as caught:
        load_rates(path)
    assert str(caught.value) == f"{path}: there are 3 axes and 2 links; measure again"
    message.links.add(seconds_per_byte=-1)
    path.write_bytes(message.SerializeToString())
    with pytest.raises(LayoutError) as caught:
        load_rates(path)
    assert str(caught.value) == (
        f"{path}: seconds_per_byte is a finite number, 0 or more, got -1.0"
    )
