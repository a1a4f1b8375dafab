# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make a timeline of the profiles of several recorded tasks (plane.py).

Tasks of several hosts have several clocks: times of one host are exact, and those between hosts as
exact as their clocks.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tf_fuse.report.records.model import Lane, Receive, Step, Timeline, Transfer
from tf_fuse.report.steps import plane
from tf_fuse.report.steps.critical_path import critical_path
from tf_fuse.report.steps.plane import Event

# Of each lane: shorter pauses are left out where there are more times than this.
_MOST_BUSY = 4000
_MOST_STEPS = 20
_MOST_RECEIVES = 20000


def timeline_of(profiles: Mapping[str, Any]) -> Timeline:
    """Return the timeline of profiles that were made at the same time.

    Args:
      profiles: task ("/job:worker/replica:0/task:0") to its XSpace.

    Returns:
      The timeline: at most 20 whole steps, and what happened from the begin of the first of them to
      the end of the last one. If there are no whole steps, all that was recorded.
    """
    events = [one for task, space in profiles.items() for one in plane.receives(task, space)]
    busy = {task: plane.busy_times(space) for task, space in profiles.items()}
    received = sorted((one for one in events if one.is_receiver), key=lambda one: one.start)
    begin, end, chosen = _window(received, busy)
    dropped = 0
    kept = [one for one in received if one.end > begin and one.start < end]
    if len(kept) > _MOST_RECEIVES:
        dropped = len(kept) - _MOST_RECEIVES
        kept = kept[:_MOST_RECEIVES]
    transfers: dict[Transfer, int] = {}
    numbers = {step_id: number for number, (step_id, _) in enumerate(chosen)}
    served = {
        (one.step_id, one.task, one.peer, one.names): one for one in events if not one.is_receiver
    }
    receives = []
    for one in kept:
        transfer = Transfer(one.peer, one.task, one.names)
        sent = served.get((one.step_id, one.peer, one.task, one.names))
        receives.append(
            Receive(
                transfer=transfers.setdefault(transfer, len(transfers)),
                step=numbers.get(one.step_id, -1),
                start_us=_us(one.start, begin),
                ready_us=_ready(one, sent, begin),
                end_us=_us(one.end, begin),
                bytes=one.bytes,
                slowest=one.slowest,
                error=one.error,
            )
        )
    listed = tuple(transfers)
    return Timeline(
        duration_us=_us(end, begin),
        lanes=tuple(
            Lane(task, tuple(_clipped(busy[task], begin, end))) for task in sorted(profiles)
        ),
        transfers=listed,
        receives=tuple(receives),
        steps=tuple(
            _step(number, task, receives, listed) for number, (_, task) in enumerate(chosen)
        ),
        dropped=dropped,
    )


def _step(
    number: int, task: str, receives: Sequence[Receive], transfers: Sequence[Transfer]
) -> Step:
    own = [one for one in receives if one.step == number]
    start, end = min(one.start_us for one in own), max(one.end_us for one in own)
    last = max(own, key=lambda one: one.end_us)
    path = critical_path(own, transfers, transfers[last.transfer].receiver, start, end)
    return Step(task, start, end, path)


def _window(
    received: Sequence[Event], busy: Mapping[str, Sequence[tuple[int, int]]]
) -> tuple[int, int, list[tuple[int, str]]]:
    """Return begin and end of what is shown, and the whole steps in it with their tasks."""
    of_step: defaultdict[int, list[Event]] = defaultdict(list)
    for one in received:
        of_step[one.step_id].append(one)
    by_task: defaultdict[str, list[int]] = defaultdict(list)
    for step_id, own in of_step.items():
        by_task[_runner(own)].append(step_id)
    whole = []
    for task, ids in by_task.items():
        # The first and the last one of a task were under way when the recording began and ended.
        ids.sort(key=lambda step_id: of_step[step_id][0].start)
        whole += [(step_id, task) for step_id in (ids[1:-1] if len(ids) > 2 else ids)]
    whole.sort(key=lambda one: of_step[one[0]][0].start)
    chosen = whole[:_MOST_STEPS]
    shown = [one for step_id, _ in chosen for one in of_step[step_id]]
    times = [(one.start, one.end) for one in shown] or [
        pair for pairs in busy.values() for pair in pairs
    ]
    if not times:
        return 0, 0, []
    return min(start for start, _ in times), max(end for _, end in times), chosen


def _runner(events: Iterable[Event]) -> str:
    """Return the task that runs a step: not a server, and at the most of its requests."""
    counts: Counter[str] = Counter()
    for one in events:
        counts[one.task] += 1
        counts[one.peer] += 1
    return max(counts, key=lambda task: ("/job:ps/" not in task, counts[task], task))


def _ready(one: Event, sent: Event | None, begin: int) -> float | None:
    """Return when the sender had all tensors; its clock may be another one."""
    if one.wait_us is None:
        return None
    asked = one.start if sent is None else sent.start
    return _us(min(max(asked + 1000 * one.wait_us, one.start), one.end), begin)


def _us(time: int, begin: int) -> float:
    return round((time - begin) / 1e3, 1)


def _merged(times: Iterable[tuple[int, int]], pause: int) -> list[tuple[int, int]]:
    """Return times without the pauses between them that are not longer than `pause`."""
    found: list[tuple[int, int]] = []
    for start, end in times:
        if found and start <= found[-1][1] + pause:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _clipped(
    times: Sequence[tuple[int, int]], begin: int, end: int
) -> Iterator[tuple[float, float]]:
    """Yield the times between two others, in microseconds since the first one."""
    first = max(0, bisect.bisect_left(times, (begin, 0)) - 1)
    inside = [one for one in times[first:] if one[1] > begin and one[0] < end]
    if len(inside) > _MOST_BUSY:
        pauses = sorted(after[0] - before[1] for before, after in itertools.pairwise(inside))
        inside = _merged(inside, pauses[len(inside) - _MOST_BUSY])
    for start, stop in inside:
        yield _us(max(start, begin), begin), _us(min(stop, end), begin)
