# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A short run on a mesh that measures how fast its devices and links are.

    devices = dtensor.device_mesh(mesh, [f"CPU:{i}" for i in range(mesh.size)])
    found = measure(mesh, dtensor_bench.Bench(mesh, devices))
    save_rates(found.rates, "mesh.rates")
    layout.plan(step, mesh, args, rates=load_rates("mesh.rates"))

Along each axis relayouts of several sizes are run, with few and many messages, and on all devices
products of matrices, sums of long vectors, and chains of small operations. Of each the shortest
of some runs counts, less that of a call that does nothing; `calibration.calibrate` finds the rates
that tell these times best, and says how well they do.

What runs is the business of a bench, so that another one than DTensor's can be measured; it also
makes the processes of a mesh agree on what they measured, as all have to make the same plan.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from tf_fuse.layout.calibration import Calibration, ComputeSample, LinkSample, calibrate
from tf_fuse.layout.errors import LayoutError
from tf_fuse.layout.mesh import Mesh
from tf_fuse.layout.tensor_layout import TensorLayout

# Elements of what is relayouted: primes, so that no other axis can split it and take a share.
_RELAYOUTS: Final = (257, 16411, 262147)
# Rows of matrices that are multiplied; elements of sums; operations of chains.
_PRODUCTS: Final = (64, 256, 512)
_SUMS: Final = (1 << 16, 1 << 20)
_CHAINS: Final = (16, 128)
# Elements of what a chain works on.
_SMALL: Final = 16
_ITEM_BYTES: Final = 4
# Of a time, what is not taken for that of the call itself, at least.
_LEAST: Final = 0.01


class Relayouted(NamedTuple):
    """A relayout that a bench can run.

    Attributes:
      received_bytes: by each device.
      messages: of a device, one after the other.
      run: runs it once, and waits until it is done.
    """

    received_bytes: float
    messages: int
    run: Callable[[], None]


class Bench(Protocol):
    """Runs things on the devices of a mesh."""

    def relayout(self, source: TensorLayout, target: TensorLayout) -> Relayouted:
        """A relayout of a float32 tensor between two layouts."""

    def product(self, rows: int) -> Callable[[], None]:
        """A product of two square matrices, on each device its own."""

    def sums(self, elements: int) -> Callable[[], None]:
        """A sum of two vectors, on each device its own."""

    def chain(self, operations: int, elements: int) -> Callable[[], None]:
        """Operations on a small vector, one after the other, on each device its own."""

    def nothing(self) -> Callable[[], None]:
        """A call that does nothing."""

    def agreed(self, seconds: Sequence[float]) -> list[float]:
        """For each time the longest of all processes' ones: the same in each of them."""


@dataclasses.dataclass(frozen=True)
class _Case:
    """What is measured; the axis of a relayout, or None of what is computed."""

    axis: str | None
    sample: Callable[[float], LinkSample | ComputeSample]
    run: Callable[[], None]


def measure(
    mesh: Mesh,
    bench: Bench,
    rounds: int = 5,
    overlap: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Measures a mesh.

    Args:
      mesh: the devices.
      bench: runs things on them.
      rounds: of which the shortest counts; one more before them is not counted.
      overlap: see `Rates`; it is not measured.
      clock: seconds.

    Returns:
      The rates, and how far off the worst sample is.

    Raises:
      LayoutError: `rounds` is below 1, or times do not tell one rate from another.
    """
    if rounds < 1:
        raise LayoutError(f"rounds is 1 or more, got {rounds}")
    cases = [*_links(mesh, bench), *_computes(bench)]
    nothing = bench.nothing()
    raw = bench.agreed(
        [_shortest(one, rounds, clock) for one in (nothing, *(c.run for c in cases))]
    )
    seconds = [max(one - raw[0], _LEAST * one) for one in raw[1:]]
    links: dict[str, list[LinkSample]] = {axis: [] for axis, size in mesh.dims if size > 1}
    compute: list[ComputeSample] = []
    for case, one in zip(cases, seconds, strict=True):
        sample = case.sample(one)
        if isinstance(sample, LinkSample):
            assert case.axis is not None
            links[case.axis].append(sample)
        else:
            compute.append(sample)
    return calibrate(mesh, links, compute, overlap)


def _links(mesh: Mesh, bench: Bench) -> list[_Case]:
    """Gathers and reductions along each axis: these differ in bytes for each message."""
    found = []
    for axis, size in mesh.dims:
        if size == 1:
            continue
        for elements in _RELAYOUTS:
            rows = (size, elements)
            split, all_rows = TensorLayout(mesh, rows, [[axis], []]), TensorLayout(mesh, rows)
            terms = TensorLayout(mesh, (elements,), None, [axis])
            whole = TensorLayout(mesh, (elements,))
            for source, target in ((split, all_rows), (terms, whole)):
                made = bench.relayout(source, target)

                def sample(seconds: float, made: Relayouted = made) -> LinkSample:
                    return LinkSample(made.received_bytes, made.messages, seconds)

                found.append(_Case(axis, sample, made.run))
    return found


def _computes(bench: Bench) -> list[_Case]:
    found = []

    def add(flops: int, touched: int, operations: int, run: Callable[[], None]) -> None:
        def sample(seconds: float) -> ComputeSample:
            return ComputeSample(flops, touched * _ITEM_BYTES, operations, seconds)

        found.append(_Case(None, sample, run))

    for rows in _PRODUCTS:
        add(2 * rows**3, 3 * rows**2, 1, bench.product(rows))
    for elements in _SUMS:
        add(elements, 3 * elements, 1, bench.sums(elements))
    for count in _CHAINS:
        add(count * _SMALL, 2 * count * _SMALL, count, bench.chain(count, _SMALL))
    return found


def _shortest(run: Callable[[], None], rounds: int, clock: Callable[[], float]) -> float:
    run()
    found = []
    for _ in range(rounds):
        begin = clock()
        run()
        found.append(clock() - begin)
    return min(found)
