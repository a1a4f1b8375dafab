# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measure the rates of a mesh's devices and links in a short run.

    found = measure(mesh, probe_runner.ExecutionBench(mesh))
    save_rates(found.rates, "mesh.rates")
    layout.plan(step, mesh, args, rates=load_rates("mesh.rates"))

All devices of the mesh work at once, as they do in a step, so they also share a processor's cores
as they do there; the first one also works alone, to tell what a plan gains over it. Along each
axis, relayouts of several sizes go there and back; contractions, leaky ReLUs and sigmoids
of vectors, and small operations run. Each runs a few times and many times within one call. Only the
difference counts, so that the cost of a call itself does not.

All cases take turns, round by round, so that other work on the machine affects them alike. The
lower quartile of a case's rounds counts; the median's distance above it is the sample's spread.
`Calibration.problems` says when spread or fit are too bad for plans.
`calibration.calibrate` finds the rates that fit these times best.

A bench runs the cases, so that tests can have one with a clock of its own. It also makes the
processes of a mesh agree on the measured times, since all must make the same plan.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.profile.calibration import (
    Calibration,
    ComputeSample,
    LinkSample,
    calibrate,
    fit_compute,
    fit_contractions,
)
from tf_fuse.layout.profile.contraction_cases import CONTRACTIONS, work_of
from tf_fuse.layout.relayout.redistribution import RelayoutPlan
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.mesh import Mesh
from tf_fuse.layout.types.tensor_layout import TensorLayout

# How often a case runs in one call.
_FEW: Final = 1
_MANY: Final = 5
# Elements of relayouted tensors: primes, so that no other axis can split them.
_RELAYOUTS: Final = (257, 65537)
# Overlap is measured with products of as many rows and all-reduces of as many elements.
_HIDING: Final = 384
_HIDDEN: Final = 524309
# Elements of vectors; of small tensors.
_VECTORS: Final = (*_RELAYOUTS, _HIDDEN)
_SMALL: Final = 16
# Small operations in one run.
_CHAIN: Final = 24
_ITEM_BYTES: Final = 4
# Floating-point operations of an element's sigmoid, as its rule has them.
_SIGMOID: Final = 8
# The least share of a long call's time that counts as the case's own.
_LEAST: Final = 0.001


class Relayouted(NamedTuple):
    """Relayouts that a bench can run.

    Attributes:
      plans: there and, where need be, back.
      run: runs them as often as it was asked for, and waits until they are done.
      anew: whether each time what is relayouted is made anew, as leaky ReLUs of itself.
    """

    plans: tuple[RelayoutPlan, ...]
    run: Callable[[], None]
    anew: bool = False


class Bench(Protocol):
    """Run things on all devices of a mesh at once, several times in one call."""

    def relayout(self, source: TensorLayout, target: TensorLayout, count: int) -> Relayouted:
        """Return relayouts of a float32 tensor between two layouts, there and back."""

    def product(self, rows: int, count: int) -> Callable[[], None]:
        """Return products of two square matrices, each device with its own."""

    def vectors(self, elements: int, count: int, alone: bool = False) -> Callable[[], None]:
        """Return leaky ReLUs of a vector, each device with its own, or on the first one."""

    def functions(self, elements: int, count: int, alone: bool = False) -> Callable[[], None]:
        """Return sigmoids of a vector, each behind a leaky ReLU, likewise."""

    def chain(self, elements: int, count: int, alone: bool = False) -> Callable[[], None]:
        """Return operations on a small vector, likewise; some have two readers."""

    def contraction(
        self,
        kind: str,
        text: str,
        shapes: Sequence[Sequence[int]],
        count: int,
        alone: bool = False,
    ) -> Callable[[], None]:
        """Return contractions of two tensors, likewise; each has its own memory.

        Args:
          kind: one of `contraction.KINDS`.
          text: as in `contraction_cases.CONTRACTIONS`.
          shapes: of the inputs.
          count: how many run one after the other.
          alone: whether one device computes while the others do nothing.
        """

    def both(self, rows: int, source: TensorLayout, count: int) -> Callable[[], None]:
        """Return products of matrices beside an all-reduce or all-gather of a tensor."""

    def agreed(self, seconds: Sequence[float]) -> list[float]:
        """Return, for each time, the longest of all processes: the same in each of them."""


@dataclasses.dataclass(frozen=True)
class _Case:
    """A measured case.

    Attributes:
      axis: of a relayout, or None of what is computed.
      size: of an all-reduce its elements, of leaky ReLUs their number below 0; 0 of others.
      anew: whether leaky ReLUs are part of it, which do not count.
      sample: of the seconds of one time, and how many of them are noise.
      few: runs it `_FEW` times.
      many: runs it `_MANY` times.
      alone: whether one device computes while the others do nothing.
      contraction: one of `contraction.KINDS`, or "" of others.
    """

    axis: str | None
    size: int
    anew: bool
    sample: Callable[[float, float], LinkSample | ComputeSample]
    few: Callable[[], None]
    many: Callable[[], None]
    alone: bool = False
    contraction: str = ""


def measure(
    mesh: Mesh,
    bench: Bench,
    rounds: int = 40,
    overlap: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Measure a mesh.

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
      LayoutError: `rounds` is below 2, or times do not separate the rates.
    """
    if rounds < 2:
        raise LayoutError(f"rounds is 2 or more, got {rounds}")
    # Processes whose devices have nothing to do wait in the relayouts that follow.
    of_one = [True] if mesh.size > 1 else []
    cases = [
        *(case for alone in [False, *of_one] for case in _computes(bench, alone)),
        *_links(mesh, bench),
    ]
    axes = [axis for axis, size in mesh.dims if size > 1 and overlap is None]
    hiding = [bench.product(_HIDING, count) for count in (_FEW, _MANY) if axes]
    hiding += [
        bench.both(_HIDING, TensorLayout(mesh, (_HIDDEN,), None, [axis]), count)
        for axis in axes
        for count in (_FEW, _MANY)
    ]
    runs = [run for case in cases for run in (case.few, case.many)] + hiding
    quartiles, spreads = _timed(runs, rounds, clock)
    agreed = bench.agreed([*quartiles, *spreads])
    seconds, spreads = agreed[: len(runs)], agreed[len(runs) :]
    links: dict[str, list[LinkSample]] = {axis: [] for axis, size in mesh.dims if size > 1}
    compute: defaultdict[tuple[bool, str], list[ComputeSample]] = defaultdict(list)
    calls: dict[bool, float] = {}
    apart: dict[tuple[str | None, int], tuple[float, float]] = {}
    for i, case in enumerate(cases):
        few, many = seconds[2 * i : 2 * i + 2]
        noise = (few * spreads[2 * i] + many * spreads[2 * i + 1]) / (_MANY - _FEW)
        taken = _one(few, many)
        if not case.alone:
            apart[case.axis, case.size] = taken, noise
        if case.anew:
            made = apart[None, -case.size]
            taken, noise = max(taken - made[0], _LEAST * taken), noise + made[1]
        sample = case.sample(taken, noise)
        if isinstance(sample, LinkSample):
            assert case.axis is not None
            links[case.axis].append(sample)
        else:
            compute[case.alone, case.contraction].append(sample)
            # Of the shortest case, most of the time is the call's.
            if sample.operations == _CHAIN:
                calls[case.alone] = max(few - _FEW * taken, 0.0)
    # The spread of the long runs, which count most.
    spread = statistics.median(spreads[1 : 2 * len(cases) : 2])
    found = calibrate(mesh, links, compute[False, ""], overlap or 0.0)
    rates, error = found.rates, found.compute_error
    by_device = {}
    for alone in calls:
        fitted = {
            kind: fit_contractions(compute[alone, kind], f"{kind}: ") for kind in CONTRACTIONS
        }
        seconds_, one_error = fit_compute(compute[alone, ""])
        by_device[alone] = Rates(
            mesh, rates.links, *seconds_, seconds_per_call=calls[alone],
            contractions={kind: one for kind, (one, _) in fitted.items()},
        )  # fmt: skip
        error = max(error, one_error, *(worst for _, worst in fitted.values()))
    rates = dataclasses.replace(by_device[False], overlap=rates.overlap, alone=by_device.get(True))
    if axes:
        last = seconds[2 * len(cases) :]
        product, *together = map(_one, last[::2], last[1::2])
        reduces = [apart[axis, _HIDDEN][0] for axis in axes]
        share = min(map(_hidden, reduces, [product] * len(axes), together))
        rates = dataclasses.replace(rates, overlap=share)
    found = dataclasses.replace(found, rates=rates, compute_error=error, spread=spread)
    if found.problems:
        warnings.warn("; ".join(found.problems), stacklevel=2)
    return found


def _one(few: float, many: float) -> float:
    """Return the seconds of one time."""
    return max(many - few, _LEAST * many) / (_MANY - _FEW)


def _timed(
    runs: Sequence[Callable[[], None]], rounds: int, clock: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Return each run's lower quartile, and the median's relative distance above it."""
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
    """Return relayouts along each axis that differ in bytes and operations per message."""
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
    """Return pairs of layouts that together use every kind of step."""
    tall, square = (size, elements), (size, size * elements)
    return [
        (TensorLayout(mesh, tall, [[axis], []]), TensorLayout(mesh, tall)),
        (TensorLayout(mesh, (elements,), None, [axis]), TensorLayout(mesh, (elements,))),
        (TensorLayout(mesh, square, [[axis], []]), TensorLayout(mesh, square, [[], [axis]])),
        (TensorLayout(mesh, tall, None, [axis]), TensorLayout(mesh, tall, [[axis], []])),
    ]


def _computes(bench: Bench, alone: bool) -> Iterator[_Case]:
    def case(
        flops: int,
        touched: int,
        operations: int,
        run: Callable[[int], Callable[[], None]],
        size: int = 0,
    ) -> _Case:
        def sample(seconds: float, noise: float) -> ComputeSample:
            return ComputeSample(flops, touched * _ITEM_BYTES, operations, seconds, noise)

        return _Case(None, size, False, sample, run(_FEW), run(_MANY), alone)

    for elements in _VECTORS:
        run = functools.partial(bench.vectors, elements, alone=alone)
        yield case(elements, 2 * elements, 1, run, -elements)
        run = functools.partial(bench.functions, elements, alone=alone)
        yield case((1 + _SIGMOID) * elements, 4 * elements, 2, run)
    # Alone, each would be too short for a clock.
    yield from _contractions(bench, alone)
    small = _CHAIN * _SMALL
    yield case(small, 2 * small, _CHAIN, lambda n: bench.chain(_SMALL, _CHAIN * n, alone))


def _contractions(bench: Bench, alone: bool) -> Iterator[_Case]:
    """Return contractions: their rates are others, and so are their fixed costs."""
    for kind, cases in CONTRACTIONS.items():
        for text, shapes in cases:
            work = work_of(kind, text, shapes)
            few, many = (
                bench.contraction(kind, text, shapes, count, alone) for count in (_FEW, _MANY)
            )

            def sample(
                seconds: float, noise: float, work: tuple[int, int, int, int] = work
            ) -> ComputeSample:
                flops, touched, turned, operations = work
                return ComputeSample(
                    flops, touched * _ITEM_BYTES, operations, seconds, noise, turned * _ITEM_BYTES
                )

            yield _Case(None, 0, False, sample, few, many, alone, kind)


def _hidden(reduce: float, product: float, both: float) -> float:
    """Return the share of an all-reduce, or of a shorter product, that the other one hides."""
    return min(1.0, max(0.0, (reduce + product - both) / min(reduce, product)))
