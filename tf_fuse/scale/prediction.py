# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compare what jobs of one model do: stock and fused, and with more servers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tf_fuse.scale.errors import ScaleError
from tf_fuse.scale.rates import Rates
from tf_fuse.scale.simulation.job import simulate
from tf_fuse.scale.simulation.setting import Prediction, Setting
from tf_fuse.scale.steps.step_graph import StepGraph
from tf_fuse.scale.steps.trace import MODES, TracedStep

#: A job that has this share of the best rate needs no further servers.
ENOUGH = 0.95
# A resource that is used for less of the time is not what the steps wait for.
_FULL = 0.75
# With more pairs of a worker and a server, a mode takes half a minute to simulate.
_PAIRS = 20_000
_UNITS = {"bit": 1 / 8, "kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclasses.dataclass(frozen=True)
class Link:
    """What joins each host to all others.

    Attributes:
      bytes_per_s: in each direction; 0 for no limit.
      seconds: on the way.
    """

    bytes_per_s: float = 0.0
    seconds: float = 0.0

    @classmethod
    def from_text(cls, text: str) -> Link:
        """Read "10Gbit,0.1ms".

        Raises:
          ScaleError: it is something else.
        """
        found = re.fullmatch(r"([\d.]+)\s*([a-z]+),\s*([\d.]+)\s*([a-z]+)", text.strip().lower())
        try:
            if found and found[2] in _UNITS and found[4] in _TIMES:
                rate = float(found[1]) * _UNITS[found[2]]
                if rate > 0:
                    return cls(rate, float(found[3]) * _TIMES[found[4]])
        except ValueError:
            pass
        raise ScaleError(
            f"the link {text!r} is not a rate above 0 and a delay, as in 10Gbit,0.1ms (bit, Kbit, "
            "Mbit, Gbit; us, ms, s)"
        )


@dataclasses.dataclass(frozen=True)
class Variant:
    """A mode of a job, and what it does.

    Attributes:
      mode: of `MODES`.
      graph: the step.
      prediction: of the job.
      bottleneck: a sentence.
    """

    mode: str
    graph: StepGraph
    prediction: Prediction
    bottleneck: str


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Modes with one number of servers."""

    servers: int
    variants: tuple[Variant, ...]

    def rate(self, mode: str) -> float:
        """Return the steps per second of a mode."""
        return next(v.prediction.steps_per_s for v in self.variants if v.mode == mode)


def compare(
    traced: TracedStep,
    servers: int,
    rates: Rates,
    setting: Setting,
    modes: Sequence[str] | None = None,
) -> Comparison:
    """Predict some modes with one number of servers.

    Args:
      traced: the step.
      servers: how many.
      rates: what things cost.
      setting: workers, hosts and links.
      modes: of `MODES`; None for all, or for stock and fused where all take minutes.
    """
    if modes is None:
        modes = MODES if setting.workers * servers <= _PAIRS else ("stock", "fused")
    variants = []
    for mode, graph in traced.variants(servers, setting.one_host, modes).items():
        found = simulate(graph, rates, setting)
        variants.append(Variant(mode, graph, found, bottleneck(found)))
    return Comparison(servers, tuple(variants))


def bottleneck(found: Prediction) -> str:
    """Return a sentence that says what keeps steps from being faster."""
    shares = {
        "the coordinator, which dispatches one step at a time": found.coordinator_busy,
        "the cores of the busiest server": found.busy["ps"],
        "the link of the busiest server": found.link_busy["ps"],
        "the cores of the workers": found.busy["worker"],
        "the links of the workers": found.link_busy["worker"],
    }
    name, share = max(shares.items(), key=lambda one: one[1])
    if share >= _FULL:
        return f"{name} ({share:.0%} busy)"
    return f"nothing is full: each step's own path ({name} {share:.0%} busy)"


def sweep(
    traced: TracedStep,
    servers: Iterable[int],
    rates: Rates,
    setting: Setting,
    on_done: Callable[[int], Any] = lambda _: None,
) -> list[Comparison]:
    """Predict stock and fused with several numbers of servers."""
    found = []
    for number in servers:
        found.append(compare(traced, number, rates, setting, ("stock", "fused")))
        on_done(number)
    return found


def recommended(comparisons: Sequence[Comparison], mode: str = "fused") -> Comparison:
    """Return the one with the fewest servers that has nearly the best rate."""
    best = max(one.rate(mode) for one in comparisons)
    return min(
        (one for one in comparisons if one.rate(mode) >= ENOUGH * best),
        key=lambda one: one.servers,
    )


def numbers_to_try(most: int) -> list[int]:
    """Return numbers of servers up to `most` that differ by about a third."""
    found = [1]
    while found[-1] < most:
        found.append(min(most, max(found[-1] + 1, round(found[-1] * 4 / 3))))
    return found
