# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Predict a job of thousands of workers by simulating some of them.

With more workers than a shared resource can serve, the resource is always busy: more of them make a
longer queue, and no more steps. With so few that they do not hinder each other, each makes as many
steps as if it were alone. In both cases fewer workers show what all do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from tf_fuse.scale.simulation.limits import COORDINATOR
from tf_fuse.scale.simulation.setting import Prediction

# Workers that are simulated first; a job needs so many times as many, so that what is true of the
# few is true of it.
_FIRST, _TIMES = 64, 8
# A resource that so many workers keep busy for this share of the time is always busy with all.
_BUSY = 0.95
# Twice the workers that do not hinder each other make this share of twice the steps.
_ALIKE = 0.99
# Workers that together ask for up to this share of a resource hinder each other little.
_FREE = 0.7
# Of those that ask for so many times its time, some always wait for it.
_CROWDED = 1.5


def of_many(
    workers: int, most: Mapping[str, float], watch_share: float, run: Callable[[int], Prediction]
) -> Prediction:
    """Return what a job does, each of whose tasks has a host of its own.

    Args:
      workers: of the job.
      most: steps per second that each shared resource allows, of `limits`.
      watch_share: of a core, what the coordinator takes all the time.
      run: simulates so many workers.
    """
    limit = min(most.values())
    few, before = _FIRST, 0.0
    found, wanted, are_alike = None, 0.0, False
    while few * _TIMES <= workers:
        found = run(few)
        rate = found.steps_per_s
        if rate >= _BUSY * limit:
            return _scaled(found, few, workers, limit, most, watch_share)
        wanted = rate * workers / few
        are_alike = 0.0 < before * 2 * _ALIKE <= rate
        if are_alike and wanted <= _FREE * limit:
            return _scaled(found, few, workers, wanted, most, watch_share)
        few, before = 2 * few, rate
    if found is not None and are_alike and wanted >= _CROWDED * limit:
        return _scaled(found, few // 2, workers, limit, most, watch_share)
    return run(workers)


def _scaled(
    found: Prediction,
    few: int,
    workers: int,
    rate: float,
    most: Mapping[str, float],
    watch_share: float,
) -> Prediction:
    """Return what all workers do, of what a few do.

    Args:
      found: of the few.
      few: their number.
      workers: all.
      rate: steps per second of all.
      most: see `of_many`.
      watch_share: see `of_many`.
    """
    cpu_s = dict(found.cpu_s)
    cpu_s[COORDINATOR] += watch_share * (1 / rate - 1 / found.steps_per_s)
    more = rate / found.steps_per_s
    each = more * few / workers
    step_s = found.step_s
    if min(most, key=lambda one: most[one]) != COORDINATOR:
        # Workers that wait do so inside of a step, not for its dispatch.
        step_s += max(0.0, workers / rate - few / found.steps_per_s)
    return dataclasses.replace(
        found,
        steps_per_s=rate,
        cpu_s=cpu_s,
        busy={"worker": found.busy["worker"] * each, "ps": found.busy["ps"] * more},
        link_busy={"worker": found.link_busy["worker"] * each, "ps": found.link_busy["ps"] * more},
        coordinator_busy=rate / most[COORDINATOR],
        step_s=step_s,
        waiting=1.0 - (1.0 - found.waiting) * found.step_s / step_s if step_s else 0.0,
    )
