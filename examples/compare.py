# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run variants of a job in turn and compare them; the demo and the benchmarks share this.

Every variant has a process (and a cluster) of its own. All of them stand, warm and idle, while one
runs, and every round runs each of them once. So whatever else the machine does meets all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.progress import Progress

from examples.session import Session

WARM_UP_STEPS = 20
_COUNT_WARM_UP_STEPS = 5
_COUNTED_STEPS = 10


@dataclasses.dataclass(frozen=True)
class Variant:
    """One side of a comparison.

    Attributes:
      spec: the session's specification; see `examples.job.run`.
      env: environment variables added for its processes.
    """

    spec: Mapping[str, Any]
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)


def run_in_turn(
    variants: Mapping[str, Variant],
    rounds: int,
    steps: int,
    progress: Progress,
    finish: Callable[[str, Session], Any] | None = None,
    before_round: Callable[[int], None] | None = None,
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """Run all variants, one after the other, in each of several rounds.

    Args:
      variants: name to variant, in the order of the first round; the next round has the reverse
        order, so that none always comes first.
      rounds: number of timed rounds; untimed steps go before the first.
      steps: steps per round and variant, all workers together.
      progress: gets a task per variant.
      finish: called with each variant's name and session after the last round.
      before_round: called with the number of each round, from 0, before it.

    Returns:
      Name to `examples.runner.Round.as_dict()` of each round; and name to what `finish` returned.

    Raises:
      examples.session.SessionError: a variant's process failed.
    """
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    finished: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        sessions, bars = {}, {}

        def say(name: str, text: str) -> None:
            progress.update(bars[name], description=f"{name}: {text}")

        def listener(name: str) -> Callable[[dict[str, Any]], None]:
            texts = {"starting": "starting processes", "building": "building the model"}
            return lambda e: say(name, texts[e["event"]]) if e["event"] in texts else None

        for name in variants:
            bars[name] = progress.add_task(f"{name}: waiting", total=rounds * steps)
        # One after the other: each has as many processes as tasks, which all import TensorFlow, and
        # have to be ready in time.
        for name, variant in variants.items():
            say(name, "importing")
            session = sessions[name] = stack.enter_context(
                Session(variant.spec, env=variant.env, on_event=listener(name))
            )
            session.wait_ready()
            say(name, "tracing and warming up")
            session.run(WARM_UP_STEPS * variant.spec.get("workers", 1))
            say(name, "waiting")
        for number in range(rounds):
            if before_round:
                before_round(number)
            for name in list(variants) if number % 2 == 0 else list(reversed(variants)):
                say(name, f"running (round {number + 1} of {rounds})")
                results[name].append(sessions[name].run(steps))
                say(name, "waiting")
                progress.advance(bars[name], steps)
        for name, session in sessions.items():
            if finish:
                say(name, "finishing")
                finished[name] = finish(name, session)
            say(name, "done")
    return results, finished


def count_stock_recv_rpcs(spec: Mapping[str, Any], progress: Progress) -> float:
    """Receive RPCs per step of the stock graphs.

    TensorFlow does not count its receives. So the same graphs run for a few steps under the
    protocol `grpc+fuse` with the option off: each receive is then a single one, and counted.

    Args:
      spec: the stock session's specification.
      progress: gets a task.

    Returns:
      Receive RPCs of all tasks per step.

    Raises:
      examples.session.SessionError: the process failed, e.g. because the plugin is missing.
    """
    workers = spec.get("workers", 1)
    bar = progress.add_task("counting the stock receives", total=_COUNTED_STEPS * workers)
    with Session({**spec, "mode": "count"}) as session:
        session.wait_ready()
        session.run(_COUNT_WARM_UP_STEPS * workers)
        counted = session.run(_COUNTED_STEPS * workers)
    progress.update(bar, completed=_COUNTED_STEPS * workers)
    return counted["recv_rpcs_per_step"]


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, min and max of values; there must be one."""
    values = list(values)
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def interval_of_median(values: Iterable[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of a median, from order statistics.

    Returns:
      Two of the values (Conover, Practical Nonparametric Statistics, section 3.2); None if there
      are fewer than six, which have no such interval.
    """
    ordered = sorted(values)
    count = len(ordered)
    below, outside = 0.0, -1
    while below <= 0.025:
        outside += 1
        below += math.comb(count, outside) / 2**count
    return (ordered[outside - 1], ordered[-outside]) if outside else None


def summarize(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One variant's rounds as the numbers of a table.

    Args:
      rounds: `Round.as_dict()` of each timed round.

    Returns:
      steps_per_s {median, min, max}, recv_rpcs_per_step (None when nothing counts them),
      cpu_ms_per_step {role: ms}, losses (one per step).
    """
    counts = [r["recv_rpcs_per_step"] for r in rounds if r["recv_rpcs_per_step"] is not None]
    return {
        "steps_per_s": spread(r["steps_per_s"] for r in rounds),
        "recv_rpcs_per_step": statistics.median(counts) if counts else None,
        "cpu_ms_per_step": {
            role: statistics.median(r["cpu_ms_per_step"][role] for r in rounds)
            for role in sorted(rounds[0]["cpu_ms_per_step"])
        },
        "losses": [loss for r in rounds for loss in r["losses"]],
    }


def ratios(modes: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the ratios of the modes' medians; one whose modes did not run is left out.

    Args:
      modes: any of "stock", "fused" and "local" to `summarize`'s numbers.

    Returns:
      speedup (steps/s, fused over stock), rpc_reduction (1 - fused over stock) and vs_local (time
      of a step, fused over local).
    """
    out: dict[str, float] = {}
    rate = {mode: numbers["steps_per_s"]["median"] for mode, numbers in modes.items()}
    if {"stock", "fused"} <= set(modes):
        out["speedup"] = rate["fused"] / rate["stock"]
        stock_rpcs = modes["stock"]["recv_rpcs_per_step"]
        fused_rpcs = modes["fused"]["recv_rpcs_per_step"]
        if stock_rpcs and fused_rpcs is not None:
            out["rpc_reduction"] = 1 - fused_rpcs / stock_rpcs
    if {"local", "fused"} <= set(modes):
        out["vs_local"] = rate["local"] / rate["fused"]
    return out


def max_loss_differences(modes: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """How far each mode's losses are from those of the first mode.

    Args:
      modes: mode to `summarize`'s numbers.

    Returns:
      Every mode but the first to the largest absolute difference over all steps; infinity for
      another number of losses, and NaN for losses that are not numbers.
    """
    (_, first), *others = modes.items()
    out = {}
    for mode, numbers in others:
        pairs = list(zip(first["losses"], numbers["losses"], strict=False))
        differences = [abs(a - b) for a, b in pairs]
        if len(first["losses"]) != len(numbers["losses"]):
            out[mode] = float("inf")
        elif any(d != d for d in differences):
            out[mode] = float("nan")  # max() would hide it
        else:
            out[mode] = max(differences)
    return out
