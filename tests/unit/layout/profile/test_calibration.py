# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rates of what was measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_fuse.layout import LayoutError, Link, Mesh
from tf_fuse.layout.profile.calibration import (
    ComputeSample,
    LinkSample,
    calibrate,
    fit_compute,
    fit_link,
)

LINE = Mesh({"x": 4})
SQUARE = Mesh({"x": 2, "y": 4})


def test_links_are_found_again():
    sizes = [(1024, 3), (1 << 20, 3), (1 << 16, 6), (1 << 24, 6)]
    samples = [LinkSample(n, k, 1e-3 * k + 1e-9 * n) for n, k in sizes]
    link, error = fit_link(samples)
    assert link.seconds_per_message == pytest.approx(1e-3, rel=1e-9)
    assert link.seconds_per_byte == pytest.approx(1e-9, rel=1e-9)
    assert error < 1e-9


def test_rates_are_not_negative():
    """Long messages that are as fast as short ones say that bytes cost nothing, not less."""
    samples = [LinkSample(1000, 1, 2.0), LinkSample(2000, 1, 1.0), LinkSample(3000, 1, 1.0)]
    link, error = fit_link(samples)
    assert link.seconds_per_byte == 0.0
    # One number for 2, 1 and 1 s: the least sum of its ratios to them, and theirs to it.
    assert link.seconds_per_message == pytest.approx(math.sqrt(4 / 2.5))
    assert error == pytest.approx(1 - math.sqrt(4 / 2.5) / 2)


@settings(deadline=None, max_examples=50)
@given(
    st.tuples(*[st.floats(1e-12, 1e-3)] * 3),
    st.lists(st.tuples(*[st.integers(1, 10**6)] * 3), min_size=8, max_size=12, unique=True),
)
def test_compute_is_told_as_well_as_by_the_true_rates(true, rows):
    seconds = [sum(a * b for a, b in zip(true, row, strict=True)) for row in rows]
    samples = [ComputeSample(*row, time) for row, time in zip(rows, seconds, strict=True)]
    try:
        found, error = fit_compute(samples)
    except LayoutError as caught:
        assert "do not tell" in str(caught)
        return
    assert error < 1e-6 and min(found) >= 0


def test_calibration_of_a_mesh():
    mesh = Mesh({"x": 2, "one": 1})
    samples = [LinkSample(1000, 1, 2e-3), LinkSample(10**6, 1, 1e-2), LinkSample(10, 4, 4e-3)]
    compute = [
        ComputeSample(10**6, 10, 1, 1e-3), ComputeSample(10, 10**6, 1, 2e-3),
        ComputeSample(10, 10, 100, 1e-2), ComputeSample(10**7, 10**5, 10, 1.2e-2),
    ]  # fmt: skip
    found = calibrate(mesh, {"x": samples}, compute, overlap=0.5)
    assert dict(found.rates.links)["one"] == Link(0.0, 0.0)
    assert dict(found.rates.links)["x"] == fit_link(samples)[0]
    assert found.link_errors == (("x", fit_link(samples)[1]),)
    (flop, byte, each), error = fit_compute(compute)
    assert found.compute_error == error
    rates_ = found.rates
    assert (rates_.seconds_per_flop, rates_.seconds_per_byte) == (flop, byte)
    assert (rates_.seconds_per_operation, rates_.overlap) == (each, 0.5)


def test_errors_of_calibration():
    good = [LinkSample(1, 1, 1.0), LinkSample(2, 1, 1.5)]
    with pytest.raises(LayoutError) as caught:
        calibrate(SQUARE, {"x": good, "q": good}, [])
    assert caught.value.problems == (
        "axis 'y' of mesh 'x:2;y:4' was not measured; give samples of collectives along it",
        "there are samples of axis 'q', and mesh 'x:2;y:4' has the axes x, y",
    )
    with pytest.raises(LayoutError) as caught:
        calibrate(LINE, {"x": [LinkSample(-1, 1, 0.0), LinkSample(1, math.inf, 1.0)]}, [])
    assert caught.value.problems == (
        "axis 'x': sample 0: received_bytes is a finite number, 0 or more, got -1",
        "axis 'x': sample 0: seconds is a finite number above 0, got 0.0; measure with a clock "
        "that is fine enough",
        "axis 'x': sample 1: messages is a finite number, 0 or more, got inf",
    )
    with pytest.raises(LayoutError) as caught:
        fit_link(good[:1])
    assert str(caught.value) == (
        "1 samples are too few for 2 rates, of messages, received_bytes; measure 2 or more"
    )
    with pytest.raises(LayoutError) as caught:
        fit_link([LinkSample(n * 100, n, n * 1.0) for n in (1, 2, 3)], "axis 'x': ")
    assert str(caught.value) == (
        "axis 'x': the samples do not tell the rates of messages, received_bytes from one another: "
        "they grow together in all of them; measure with others, small and large ones"
    )
    with pytest.raises(LayoutError, match="compute: 1 samples are too few for 3 rates"):
        fit_compute([ComputeSample(1, 1, 1, 1.0)])
