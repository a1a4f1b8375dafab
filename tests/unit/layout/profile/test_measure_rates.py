# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs that measure a mesh, by a clock of their own, and rates in files."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tf_fuse.layout import Hosts, LayoutError, Link, Mesh, TensorLayout, plan_relayout
from tf_fuse.layout.cost.model import ContractionRates, Rates
from tf_fuse.layout.operators.contraction import transposed_by
from tf_fuse.layout.profile.calibration import Calibration, LinkSample, fit_link
from tf_fuse.layout.profile.measure_rates import Relayouted, measure
from tf_fuse.layout.profile.rates_file import load_rates, save_rates
from tf_fuse.v1 import layout_pb2

MESH = Mesh({"x": 2, "one": 1, "y": 4})
LINKS = {
    "x": Link(1e-4, 2e-9, 3e-5, 1e-9),
    "one": Link(0.0, 0.0),
    "y": Link(3e-4, 5e-10, 2e-5, 4e-10),
}
CALL = 7e-4
FACTORS = {
    "product": ContractionRates(2e-11, 3e-10, 9e-6, 4e-10),
    "einsum": ContractionRates(3e-11, 2e-10, 2e-5, 3e-10),
    "convolution": ContractionRates(4e-11, 5e-10, 3e-5),
}
OWN = {
    "product": ContractionRates(1e-11, 1e-10, 8e-6, 3e-10),
    "einsum": ContractionRates(2e-11, 1e-10, 1e-5, 1e-10),
    "convolution": ContractionRates(3e-11, 2e-10, 2e-5),
}
ALONE = Rates(MESH, LINKS, 3e-12, 1e-10, 3e-6, contractions=OWN, seconds_per_call=CALL)
TRUE = Rates(
    MESH, LINKS, 1e-11, 2e-10, 4e-6, contractions=FACTORS, seconds_per_call=CALL, alone=ALONE
)
SCALARS = ("seconds_per_flop", "seconds_per_byte", "seconds_per_operation", "seconds_per_call")
LINK_RATES = [one.name for one in dataclasses.fields(Link)]
# Of two axes with relayouts, the other cases by all devices and by one, and what hides; each few
# times and many times.
RUNS = 2 * (2 * (2 * 4 + 1) + 2 * (3 + 3 + 1 + 10 + 10 + 11) + 1 + 2)


class Clocked:
    """A mesh on which all takes what `TRUE` says, and each call as long besides."""

    def __init__(self, late=(), hidden=0.5):
        self.now = 100.0
        self.runs = 0
        # Numbers of runs that something else disturbs.
        self.late = late
        # Share of the shorter one of two things that are done at once.
        self.hidden = hidden

    def clock(self) -> float:
        return self.now

    def taking(self, seconds):
        def run():
            self.now += seconds + CALL + 5.0 * (self.runs in self.late)
            self.runs += 1

        return run

    def once(self, plan):
        # Another axis would be measured along.
        (axes,) = {step.axes for step in plan.steps}
        return LINKS["+".join(axes)].seconds(
            plan.received_bytes_per_device,
            plan.messages,
            plan.operations,
            plan.touched_bytes_per_device,
        )

    def relayout(self, source, target, count):
        plans = plan_relayout(source, target), plan_relayout(target, source)
        seconds = sum(map(self.once, plans))
        if source.partial and not target.partial and target.slice_shape == source.slice_shape:
            # Terms are made anew each time.
            elements = source.shape[0]
            again = self.once(plans[0]) + TRUE.compute(elements, 8 * elements)
            return Relayouted(plans[:1], self.taking(again * count), True)
        return Relayouted(plans, self.taking(seconds * count))

    def product(self, rows, count):
        return self.computing(2 * rows**3, 12 * rows**2, count, False, "product")

    def vectors(self, elements, count, alone=False):
        return self.computing(elements, 8 * elements, count, alone)

    def functions(self, elements, count, alone=False):
        return self.computing(9 * elements, 16 * elements, count, alone, operations=2)

    def chain(self, elements, count, alone=False):
        return self.computing(elements, 8 * elements, count, alone)

    def contraction(self, kind, text, shapes, count, alone=False):
        if kind == "convolution":
            made, flops = convolution(text, *shapes)
            touched = 4 * (sum(map(math.prod, shapes)) + math.prod(made))
            return self.computing(flops, touched, count, alone, kind)
        equation = {"": "mk,kn->mn", "a": "km,kn->mn", "b": "mk,nk->mn"}.get(text, text)
        terms, _, output = equation.partition("->")
        sizes = {}
        for term, shape in zip(terms.split(","), shapes, strict=True):
            sizes |= dict(zip(term, shape, strict=True))
        made = math.prod(sizes[letter] for letter in output)
        touched = 4 * (sum(map(math.prod, shapes)) + made)
        elements = [*map(math.prod, shapes), made]
        if kind == "product":
            turned = {i: False for i, one in enumerate("ab") if one == text}
        else:
            turned = transposed_by(text)
        rates = TRUE.of_one_device() if alone else TRUE
        flops, transposed = 2 * math.prod(sizes.values()), 4 * sum(elements[i] for i in turned)
        operations = 1 + sum(turned.values())
        seconds = rates.compute(flops, touched, operations, kind, transposed)
        return self.taking(seconds * count)

    def computing(self, flops, touched, count, alone, contraction="", operations=1):
        rates = TRUE.of_one_device() if alone else TRUE
        return self.taking(rates.compute(flops, touched, operations, contraction) * count)

    def both(self, rows, source, count):
        plan = plan_relayout(source, TensorLayout(MESH, source.shape))
        elements = source.shape[0]
        sums = self.once(plan) + TRUE.compute(elements, 8 * elements)
        products = TRUE.compute(2 * rows**3, 12 * rows**2, contraction="product")
        return self.taking((sums + products - self.hidden * min(sums, products)) * count)

    def agreed(self, seconds):
        return list(seconds)


def convolution(text, left, right):
    """The shape of a result, and what it takes: each pixel of it, for each cell of the filter."""
    match text:
        case "":
            made, filter_ = (*left[:3], right[3]), right
        case "images":
            made, filter_ = (*right[:3], left[2]), left
        case _:
            made = filter_ = (int(text[-1]), int(text[-1]), left[3], right[3])
    images = right if text == "images" else left
    return made, 2 * math.prod(images[:3]) * math.prod(filter_)


def same(found: Rates, wanted: Rates, rel: float) -> None:
    for axis, link in wanted.links:
        mine = dict(found.links)[axis]
        for name in LINK_RATES:
            assert getattr(mine, name) == pytest.approx(getattr(link, name), rel=rel), (axis, name)
    for mine, right in ((found, wanted), (found.alone, wanted.alone)):
        for name in SCALARS:
            assert getattr(mine, name) == pytest.approx(getattr(right, name), rel=rel), name
        pairs = zip(mine.contractions, right.contractions, strict=True)
        for (kind, rates), (other, exact) in pairs:
            assert kind == other and rates == pytest.approx(exact, rel=rel), kind


def test_rates_are_found_again():
    bench = Clocked()
    found = measure(MESH, bench, clock=bench.clock, overlap=0.25)
    same(found.rates, TRUE, 1e-5)
    assert found.rates.overlap == 0.25
    assert found.compute_error < 1e-6 and max(error for _, error in found.link_errors) < 1e-6
    assert [axis for axis, _ in found.link_errors] == ["x", "y"]
    assert found.spread == pytest.approx(0.0, abs=1e-9)
    assert found.problems == ()


def test_the_share_that_is_hidden():
    for hidden in (0.0, 0.5, 1.0):
        bench = Clocked(hidden=hidden)
        found = measure(MESH, bench, rounds=2, clock=bench.clock).rates.overlap
        assert found == pytest.approx(hidden, abs=1e-6)
    # What takes longer together than alone hides nothing.
    bench = Clocked(hidden=-0.5)
    assert measure(MESH, bench, rounds=2, clock=bench.clock).rates.overlap == 0.0


def test_runs_that_are_disturbed_do_not_count():
    """The first round is not counted, and of the others all but a third may take long."""
    late = {run for run in range(9 * RUNS) if run // RUNS in (0, 3, 4, 5, 7, 8)}
    bench = Clocked(late)
    with pytest.warns(UserWarning, match="the machine does other work"):
        found = measure(MESH, bench, rounds=8, clock=bench.clock)
    same(found.rates, TRUE, 1e-5)
    assert bench.runs == 9 * RUNS
    assert found.spread > 100
    # Cases take turns: what disturbs half a second meets a round of many, and not one of all.
    bench = Clocked(range(RUNS, 2 * RUNS))
    same(measure(MESH, bench, rounds=8, clock=bench.clock).rates, TRUE, 1e-5)


def test_what_is_wrong_with_a_calibration():
    fine = Calibration(TRUE, (("x", 0.2),), 0.1, 0.1)
    assert fine.problems == ()
    assert dataclasses.replace(fine, spread=0.75).problems == (
        "half of the times of a sample are 75% or more above a quarter of them, and 50% is the "
        "most for rates to plan by: the machine does other work; measure again when it does not, "
        "or with more rounds",
    )
    assert dataclasses.replace(fine, link_errors=(("x", 0.2), ("y", 0.95))).problems == (
        "axis 'y': a sample is 95% off what the rates predict, and 90% is the most to plan by; "
        "measure again",
    )
    assert dataclasses.replace(fine, compute_error=2.0).problems == (
        "compute: a sample is 200% off what the rates predict, and 90% is the most to plan by; "
        "measure again",
    )


def test_processes_agree_on_the_longest_time():
    """What another process measured counts for all, so that all make the same plan."""
    bench = Clocked()
    told = []

    def agreed(seconds):
        told.append(len(seconds))
        return [2 * one for one in seconds]

    bench.agreed = agreed
    found = measure(MESH, bench, clock=bench.clock).rates
    assert found.seconds_per_flop == pytest.approx(2 * TRUE.seconds_per_flop, rel=1e-5)
    assert dict(found.links)["y"].seconds_per_byte == pytest.approx(1e-9, rel=1e-5)
    # Times, and how much they vary.
    assert told == [2 * RUNS]


def test_noise_does_not_count():
    """A time that may be all noise says little against those that are not."""
    sizes = [(1024, 3), (1 << 20, 3), (1 << 16, 6), (1 << 24, 6)]
    samples = [LinkSample(n, k, 1e-3 * k + 1e-9 * n) for n, k in sizes]
    wrong = LinkSample(1 << 22, 6, 1e-6, noise=1e-2)
    link, _ = fit_link([*samples, wrong])
    assert link.seconds_per_message == pytest.approx(1e-3, rel=0.2)
    without, error = fit_link([*samples, dataclasses.replace(wrong, noise=0.0)])
    assert without.seconds_per_message < 1e-5 and error > 0.9
    with pytest.raises(LayoutError) as caught:
        fit_link([*samples, dataclasses.replace(wrong, noise=-1.0)], "axis 'x': ")
    assert str(caught.value) == (
        "axis 'x': sample 4: noise is a finite number, 0 or more, got -1.0"
    )


def test_errors_of_measurement():
    with pytest.raises(LayoutError) as caught:
        measure(MESH, Clocked(), rounds=1)
    assert str(caught.value) == "rounds is 2 or more, got 1"
    bench = Clocked()
    with pytest.raises(LayoutError, match="measure with a clock that is fine enough"):
        measure(MESH, bench, clock=lambda: 0.0)


def test_rates_in_a_file(tmp_path):
    path = tmp_path / "mesh.rates"
    for alone in (None, ALONE):
        rates = Rates(MESH, LINKS, 1e-11, 2e-10, 4e-6, 0.5, FACTORS, 1e-4, alone)
        save_rates(rates, path)
        assert load_rates(path) == rates
    hosts = Rates(MESH, Hosts(2, Link(1e-6, 1e-11), Link(1e-5, 1e-9, 2e-6, 3e-11)), 1e-11)
    save_rates(hosts, path)
    assert load_rates(path) == hosts
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

    assert error(version=1) == (
        f"{path}: the rates have version 1, and this is for version 2; measure again"
    )
    assert error(seconds_per_flop=-1.0) == (
        f"{path}: seconds_per_flop is a finite number, 0 or more, got -1.0"
    )
    wrong = {"product": ContractionRates(0.0, -1.0, 0.0), "sum": FACTORS["einsum"]}
    with pytest.raises(LayoutError) as caught:
        Rates(MESH, LINKS, 1e-11, contractions=wrong)
    assert list(caught.value.problems) == [
        "contractions are of 'product', 'einsum', 'convolution', got 'sum'",
        "contractions['product'].seconds_per_byte is a finite number, 0 or more, got -1.0",
    ]
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
