# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fit the rates of devices and links to measured times.

The fit goes by ratios of predicted and measured times, since times range from microseconds to
seconds, and the short ones show what a message costs. Twice too long counts as much as twice too
short: relative errors would favour rates that are too low. A noisy time counts less. No rate is
below zero: the fit tries every set of rates with the others zero, and takes the best one without a
negative rate, which is the exact answer.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from tf_fuse.layout.cost.model import ContractionRates, Rates
from tf_fuse.layout.relayout.link_rates import Link
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import Mesh

# Fits, each with weights by what the one before predicts; the least share of a time for a weight.
_REPEATS = 20
_LEAST_SHARE = 1e-3
_MOST_SPREAD = 0.5
_MOST_ERROR = 0.9


@dataclasses.dataclass(frozen=True)
class LinkSample:
    """A measured collective along one axis.

    Attributes:
      received_bytes: by each device.
      messages: of a device, one after the other.
      seconds: that it took.
      operations: of a device, beside sending.
      touched_bytes: that each device reads and writes in these.
      noise: seconds by which the time may be wrong.
    """

    received_bytes: float
    messages: int
    seconds: float
    operations: int = 0
    touched_bytes: float = 0.0
    noise: float = 0.0


@dataclasses.dataclass(frozen=True)
class ComputeSample:
    """A measured run of operations on one device.

    Attributes:
      flops: floating-point operations.
      touched_bytes: that the operations read and wrote.
      operations: their number.
      seconds: that it took.
      noise: seconds by which the time may be wrong.
      transposed_bytes: of what a contraction transposed.
    """

    flops: float
    touched_bytes: float
    operations: int
    seconds: float
    noise: float = 0.0
    transposed_bytes: float = 0.0


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Rates, and how well they fit what was measured.

    Attributes:
      rates: of the devices.
      link_errors: (axis, largest relative error of a sample beyond its noise), in the mesh's order.
      compute_error: the largest such error of what was computed.
      spread: how far the median of a sample's times is above their lower quartile, as a share of
        it; the median of all samples. 0.0 where each was measured once.
    """

    rates: Rates
    link_errors: tuple[tuple[str, float], ...]
    compute_error: float
    spread: float = 0.0

    @property
    def problems(self) -> tuple[str, ...]:
        """Why plans by these rates may be far from the best; empty if nothing says so."""
        found = []
        if self.spread > _MOST_SPREAD:
            found.append(
                f"half of the times of a sample are {self.spread:.0%} or more above a quarter of "
                f"them, and {_MOST_SPREAD:.0%} is the most for rates to plan by: the machine does "
                "other work; measure again when it does not, or with more rounds"
            )
        errors = [(f"axis {axis!r}", error) for axis, error in self.link_errors]
        found += [
            f"{name}: a sample is {error:.0%} off what the rates predict, and {_MOST_ERROR:.0%} is "
            "the most to plan by; measure again"
            for name, error in [*errors, ("compute", self.compute_error)]
            if error > _MOST_ERROR
        ]
        return tuple(found)


def calibrate(
    mesh: Mesh,
    links: Mapping[str, Sequence[LinkSample]],
    compute: Sequence[ComputeSample],
    overlap: float = 0.0,
) -> Calibration:
    """Find the rates that fit measured times best.

    Args:
      mesh: the devices.
      links: what was measured along each axis of more than one device.
      compute: what was measured on a device.
      overlap: see `Rates`.

    Raises:
      LayoutError: an axis was not measured, or does not exist; a measurement is negative or not
        a number; there are too few, or they are too much alike to separate the rates.
    """
    measured = [axis for axis, size in mesh.dims if size > 1]
    problems = [
        f"axis {axis!r} of mesh {str(mesh)!r} was not measured; give samples of collectives along "
        "it"
        for axis in measured
        if axis not in links
    ]
    problems += [
        f"there are samples of axis {axis!r}, and mesh {str(mesh)!r} has the axes "
        f"{', '.join(mesh.axes)}"
        for axis in sorted(set(links) - set(mesh.axes))
    ]
    raise_if(problems)
    found = {axis: fit_link(links[axis], f"axis {axis!r}: ") for axis in measured}
    seconds, error = fit_compute(compute)
    # Along an axis of one device there is nothing to wait for.
    by_axis = {axis: found[axis][0] if axis in found else Link(0.0, 0.0) for axis in mesh.axes}
    rates = Rates(mesh, by_axis, *seconds, overlap)
    return Calibration(rates, tuple((axis, found[axis][1]) for axis in measured), error)


def fit_link(samples: Sequence[LinkSample], who: str = "") -> tuple[Link, float]:
    """Find the link that tells measured times best.

    Args:
      samples: collectives along one axis.
      who: in front of what is wrong.

    Returns:
      The link, and the largest relative error of a sample.

    Raises:
      LayoutError: as of `calibrate`.
    """
    # Samples without the devices' other work do not need a rate for it.
    handled = any(one.operations or one.touched_bytes for one in samples)
    names = ("messages", "received_bytes", "operations", "touched_bytes")[: 4 if handled else 2]
    rows = [[getattr(one, name) for name in names] for one in samples]
    times = [(one.seconds, one.noise) for one in samples]
    rates, error = _fit(names, rows, times, who)
    return Link(*rates), error


def fit_compute(samples: Sequence[ComputeSample]) -> tuple[tuple[float, float, float], float]:
    """Find the rates of a device that fit measured times best.

    Returns:
      Seconds for each floating-point operation, byte and operation; the largest relative error.

    Raises:
      LayoutError: as of `calibrate`.
    """
    rows = [(one.flops, one.touched_bytes, one.operations) for one in samples]
    names = ("flops", "touched_bytes", "operations")
    times = [(one.seconds, one.noise) for one in samples]
    rates, error = _fit(names, rows, times, "compute: ")
    return (rates[0], rates[1], rates[2]), error


def fit_contractions(
    samples: Sequence[ComputeSample], who: str = ""
) -> tuple[ContractionRates, float]:
    """Find the rates of contractions of a kind that fit measured times best.

    Returns:
      The rates, and the largest relative error of a sample.

    Raises:
      LayoutError: as of `calibrate`.
    """
    names = ["flops", "touched_bytes", "operations", "transposed_bytes"]
    if not any(one.transposed_bytes for one in samples):
        del names[-1]
    rows = [[getattr(one, name) for name in names] for one in samples]
    rates, error = _fit(names, rows, [(one.seconds, one.noise) for one in samples], who)
    return ContractionRates(*rates), error


def _fit(
    names: Sequence[str],
    rows: Sequence[Sequence[float]],
    times: Sequence[tuple[float, float]],
    who: str,
) -> tuple[list[float], float]:
    """Return the nonnegative rates with the least sum of ratios.

    Those are the predicted over the measured time, and the measured over the predicted one.
    """
    problems = []
    for i, (row, (time, noise)) in enumerate(zip(rows, times, strict=True)):
        problems += [
            f"{who}sample {i}: {name} is a finite number, 0 or more, got {value!r}"
            for name, value in zip(names, row, strict=True)
            if not (math.isfinite(value) and value >= 0)
        ]
        if not (math.isfinite(time) and time > 0):
            problems.append(
                f"{who}sample {i}: seconds is a finite number above 0, got {time!r}; measure with "
                "a clock that is fine enough"
            )
        if not (math.isfinite(noise) and noise >= 0):
            problems.append(f"{who}sample {i}: noise is a finite number, 0 or more, got {noise!r}")
    raise_if(problems)
    if len(rows) < len(names):
        raise LayoutError(
            f"{who}{len(rows)} samples are too few for {len(names)} rates, of {', '.join(names)}; "
            f"measure {len(names)} or more"
        )
    seconds, noises = np.array(times, float).T
    work, weights = np.array(rows, float), 1 / (seconds + noises)
    # Columns of one size: bytes are many, messages are few.
    scale = np.linalg.norm(work * weights[:, None], axis=0)
    columns = np.where(scale > 0, scale, 1)
    alike = np.linalg.matrix_rank(work * weights[:, None] / columns, tol=1e-6) < len(names)
    if alike:
        raise LayoutError(
            f"{who}the samples do not tell the rates of {', '.join(names)} from one another: they "
            "grow together in all of them; measure with others, small and large ones"
        )
    for _ in range(_REPEATS):
        rates = _nonnegative(work * weights[:, None] / scale, seconds * weights) / scale
        told = np.maximum(work @ rates, _LEAST_SHARE * seconds) + noises
        taken = seconds + noises
        # With these the gradient is that of told / taken + taken / told; half a step converges.
        weights = np.sqrt(weights * np.sqrt((told + taken) / taken) / told)
    beyond_noise = np.maximum(np.abs(work @ rates - seconds) - noises, 0)
    return [float(one) for one in rates], float(np.max(beyond_noise / (seconds + noises)))


def _nonnegative(
    matrix: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    wanted: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the best solution without a negative component, for few components."""
    count = matrix.shape[1]
    best = np.zeros(count)
    least = math.inf
    for some in itertools.chain.from_iterable(
        itertools.combinations(range(count), n) for n in range(1, count + 1)
    ):
        solution = np.zeros(count)
        solution[list(some)] = np.linalg.lstsq(matrix[:, list(some)], wanted, rcond=None)[0]
        error = float(np.sum((matrix @ solution - wanted) ** 2))
        if np.all(solution >= 0) and error < least:
            best, least = solution, error
    return best
