# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A short run on a mesh that measures how fast its devices and links are.

    devices = dtensor.device_mesh(mesh, [f"CPU:{i}" for i in range(mesh.size)])
    found = measure(mesh, dtensor_bench.Bench(mesh, devices))
    save_rates(found.rates, "mesh.rates")
    layout.plan(step, mesh, args, rates=load_rates("mesh.rates"))

All devices of the mesh work at once, as they do in a step: where they share a processor's cores, so
they do here. Along each axis relayouts of several sizes go there and back, and on all devices
products of matrices, absolute values of vectors, and small operations are run. Each is run a few
times and many times within one call, and the difference counts, without what a call itself takes.

All cases take turns, round by round, so that what else the machine does meets all of them alike,
and of each the lower quartile of the rounds counts. How far the median is above it is the spread
of a sample, and `Calibration.problems` says when spread or fit are too bad to plan by.
`calibration.calibrate` finds the rates that tell these times best.

What runs is the business of a bench, so that another one than DTensor's can be measured; it also
makes the processes of a mesh agree on what they measured, as all have to make the same plan.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from tf_fuse.layout.calibration import Calibration, ComputeSample, LinkSample, calibrate
from tf_fuse.layout.errors import LayoutError
from tf_fuse.layout.mesh import Mesh
from tf_fuse.layout.redistribution import RelayoutPlan
from tf_fuse.layout.tensor_layout import TensorLayout

# Times that a thing is run in one call.
_FEW: Final = 1
_MANY: Final = 5
# Elements of what is relayouted: primes, so that no other axis can split it and take a share.
_RELAYOUTS: Final = (257, 65537)
# Rows of matrices that are multiplied; elements of vectors; and of what is small.
# What a product hides of an all-reduce is measured of the largest ones.
_PRODUCTS: Final = (64, 192, 384)
_HIDING: Final = _PRODUCTS[-1]
_HIDDEN: Final = 524309
_VECTORS: Final = (*_RELAYOUTS, _HIDDEN)
_SMALL: Final = 16
# Small operations for each time that they are run.
_CHAIN: Final = 24
_ITEM_BYTES: Final = 4
# Of the time of many, what is not taken for that of the call itself, at least.
_LEAST: Final = 0.001


class Relayouted(NamedTuple):
    """Relayouts that a bench can run.

    Attributes:
      plans: there and, where need be, back.
      run: runs them as often as it was asked for, and waits until they are done.
      anew: whether each time what is relayouted is made anew, as absolute values of itself.
    """

    plans: tuple[RelayoutPlan, ...]
    run: Callable[[], None]
    anew: bool = False


class Bench(Protocol):
    """Runs things on all devices of a mesh at once, several times in one call."""

    def relayout(self, source: TensorLayout, target: TensorLayout, count: int) -> Relayouted:
        """Relayouts of a float32 tensor between two layouts, there and back."""

    def product(self, rows: int, count: int) -> Callable[[], None]:
        """Products of two square matrices, on each device its own."""

    def vectors(self, elements: int, count: int) -> Callable[[], None]:
        """Absolute values of a vector, on each device its own."""

    def chain(self, elements: int, count: int) -> Callable[[], None]:
        """Operations on a small vector, on each device its own; some have two readers."""

    def both(self, rows: int, source: TensorLayout, count: int) -> Callable[[], None]:
        """Products of matrices, and beside them a tensor that is made whole, each time anew."""

    def agreed(self, seconds: Sequence[float]) -> list[float]:
        """For each time the longest of all processes' ones: the same in each of them."""


@dataclasses.dataclass(frozen=True)
class _Case:
    """What is measured.

    Attributes:
      axis: of a relayout, or None of what is computed.
      size: of a product its rows, of an all-reduce its elements, of absolute values their number
        below 0; 0 of others.
      anew: whether absolute values are part of it, which do not count.
      sample: of the seconds of one time, and how many of them are noise.
      few: runs it `_FEW` times.
      many: runs it `_MANY` times.
    """

    axis: str | None
    size: int
    anew: bool
    sample: Callable[[float, float], LinkSample | ComputeSample]
    few: Callable[[], None]
    many: Callable[[], None]


def measure(
    mesh: Mesh,
    bench: Bench,
    rounds: int = 40,
    overlap: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Measures a mesh.

    Args:
      mesh: the devices.
      bench: runs things on them.
      rounds: in which all cases take turns; one more before them is not counted.
      overlap: see `Rates`; None to measure it.
      clock: seconds.

    Returns:
      The rates, how far off the worst sample is, and how much samples varied. A `UserWarning` has
      `Calibration.problems`, if there are any.

    Raises:
      LayoutError: `rounds` is below 2, or times do not tell one rate from another.
    """
    if rounds < 2:
        raise LayoutError(f"rounds is 2 or more, got {rounds}")
    cases = [*_computes(bench), *_links(mesh, bench)]
    axes = [axis for axis, size in mesh.dims if size > 1 and overlap is None]
    beside = [
        bench.both(_HIDING, TensorLayout(mesh, (_HIDDEN,), None, [axis]), count)
        for axis in axes
        for count in (_FEW, _MANY)
    ]
    runs = [run for case in cases for run in (case.few, case.many)] + beside
    quartiles, spreads = _timed(runs, rounds, clock)
    agreed = bench.agreed([*quartiles, *spreads])
    seconds, spreads = agreed[: len(runs)], agreed[len(runs) :]
    links: dict[str, list[LinkSample]] = {axis: [] for axis, size in mesh.dims if size > 1}
    compute: list[ComputeSample] = []
    alone: dict[tuple[str | None, int], tuple[float, float]] = {}
    for i, case in enumerate(cases):
        few, many = seconds[2 * i : 2 * i + 2]
        noise = (few * spreads[2 * i] + many * spreads[2 * i + 1]) / (_MANY - _FEW)
        taken = _one(few, many)
        alone[case.axis, case.size] = taken, noise
        if case.anew:
            made = alone[None, -case.size]
            taken, noise = max(taken - made[0], _LEAST * taken), noise + made[1]
        sample = case.sample(taken, noise)
        if isinstance(sample, LinkSample):
            assert case.axis is not None
            links[case.axis].append(sample)
        else:
            compute.append(sample)
    # That of the runs that count most: many times.
    spread = statistics.median(spreads[1 : 2 * len(cases) : 2])
    found = calibrate(mesh, links, compute, overlap or 0.0)
    rates = found.rates
    if overlap is None:
        few_many = iter(seconds[2 * len(cases) :])
        together = {axis: _one(next(few_many), next(few_many)) for axis in axes}
        share = _overlap({key: one for key, (one, _) in alone.items()}, together)
        rates = dataclasses.replace(rates, overlap=share)
    found = dataclasses.replace(found, rates=rates, spread=spread)
    if found.problems:
        warnings.warn("; ".join(found.problems), stacklevel=2)
    return found


def _one(few: float, many: float) -> float:
    """Seconds of one time."""
    return max(many - few, _LEAST * many) / (_MANY - _FEW)


def _timed(
    runs: Sequence[Callable[[], None]], rounds: int, clock: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Of each run the lower quartile, and how far the median is above it, as a share of it."""
    taken: list[list[float]] = [[] for _ in runs]
    for counted in range(-1, rounds):
        for run, mine in zip(runs, taken, strict=True):
            begin = clock()
            run()
            if counted >= 0:
                mine.append(clock() - begin)
    quartiles = [statistics.quantiles(mine, n=4, method="inclusive")[0] for mine in taken]
    spreads = [
        statistics.median(mine) / quartile - 1 if quartile > 0 else 0.0
        for mine, quartile in zip(taken, quartiles, strict=True)
    ]
    return quartiles, spreads


def _links(mesh: Mesh, bench: Bench) -> Iterator[_Case]:
    """Relayouts along each axis: these differ in bytes and operations for each message."""
    for axis, size in mesh.dims:
        if size == 1:
            continue
        for elements in (*_RELAYOUTS, _HIDDEN):
            for source, target in _pairs(mesh, axis, size, elements):
                mark = elements if source.shape == (elements,) else 0
                if elements == _HIDDEN and not mark:
                    continue
                few = bench.relayout(source, target, _FEW)
                many = bench.relayout(source, target, _MANY)

                def sample(
                    seconds: float, noise: float, plans: Sequence[RelayoutPlan] = many.plans
                ) -> LinkSample:
                    return LinkSample(
                        sum(one.received_bytes_per_device for one in plans),
                        sum(one.messages for one in plans),
                        seconds,
                        sum(one.operations for one in plans),
                        sum(one.touched_bytes_per_device for one in plans),
                        noise,
                    )

                yield _Case(axis, mark, many.anew, sample, few.run, many.run)


def _pairs(
    mesh: Mesh, axis: str, size: int, elements: int
) -> list[tuple[TensorLayout, TensorLayout]]:
    """A gather and a slice; a sum and a mask; two all-to-alls; a reduce-scatter and a way back."""
    tall, square = (size, elements), (size, size * elements)
    return [
        (TensorLayout(mesh, tall, [[axis], []]), TensorLayout(mesh, tall)),
        (TensorLayout(mesh, (elements,), None, [axis]), TensorLayout(mesh, (elements,))),
        (TensorLayout(mesh, square, [[axis], []]), TensorLayout(mesh, square, [[], [axis]])),
        (TensorLayout(mesh, tall, None, [axis]), TensorLayout(mesh, tall, [[axis], []])),
    ]


def _computes(bench: Bench) -> Iterator[_Case]:
    def case(
        flops: int,
        touched: int,
        operations: int,
        run: Callable[[int], Callable[[], None]],
        size: int = 0,
    ) -> _Case:
        def sample(seconds: float, noise: float) -> ComputeSample:
            return ComputeSample(flops, touched * _ITEM_BYTES, operations, seconds, noise)

        return _Case(None, size, False, sample, run(_FEW), run(_MANY))

    for rows in _PRODUCTS:
        run = functools.partial(bench.product, rows)
        yield case(2 * rows**3, 3 * rows**2, 1, run, rows)
    for elements in _VECTORS:
        run = functools.partial(bench.vectors, elements)
        yield case(elements, 2 * elements, 1, run, -elements)
    # Each in a case of its own would be below what a clock tells.
    small = _CHAIN * _SMALL
    yield case(small, 2 * small, _CHAIN, lambda n: bench.chain(_SMALL, _CHAIN * n))


def _overlap(alone: Mapping[tuple[str | None, int], float], together: Mapping[str, float]) -> float:
    """The share of an all-reduce that a product beside it hides, where it is the least.

    Args:
      alone: seconds of all-reduces and products.
      together: by axis, those of both at once.
    """
    product = alone[None, _HIDING]
    shares = [
        (alone[axis, _HIDDEN] + product - both) / min(alone[axis, _HIDDEN], product)
        for axis, both in together.items()
    ]
    return min(1.0, max(0.0, min(shares, default=0.0)))
