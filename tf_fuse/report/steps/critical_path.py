# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the critical path of a recorded step: what its end has waited for, back to its begin."""

from __future__ import annotations

from collections.abc import Sequence

from tf_fuse.report.records.model import Receive, Segment, Transfer


def critical_path(
    receives: Sequence[Receive],
    transfers: Sequence[Transfer],
    task: str,
    start_us: float,
    end_us: float,
) -> tuple[Segment, ...]:
    """Return the critical path of a step.

    It goes back from the end: what a task computes has waited for the request that was answered
    last; that one has waited for its sender, until this had computed the last tensor, or, where the
    sender had all of them already, for the receiver to ask.

    Args:
      receives: of the step.
      transfers: of all steps.
      task: that the step ends on.
      start_us: begin of the step.
      end_us: its end.

    Returns:
      Segments in the order of time; each begins where the one before it ends.
    """
    path: list[Segment] = []
    by_end = sorted(receives, key=lambda one: one.end_us, reverse=True)
    now = end_us
    while now > start_us:
        last = next(
            (
                one
                for one in by_end
                if one.end_us <= now and transfers[one.transfer].receiver == task
            ),
            None,
        )
        if last is None:
            path.append(Segment("compute", task, "", "", start_us, now))
            break
        if last.end_us < now:
            path.append(Segment("compute", task, "", "", last.end_us, now))
        by_end = by_end[by_end.index(last) + 1 :]
        sender = transfers[last.transfer].sender
        is_late = last.ready_us is not None and last.ready_us > last.start_us
        began = last.ready_us if is_late and last.ready_us is not None else last.start_us
        began = max(began, start_us)
        kind = "transfer" if is_late else "request"
        if began < last.end_us:
            path.append(Segment(kind, sender, task, last.slowest, began, last.end_us))
        now = began
        if is_late:
            task = sender
    return tuple(reversed(path))
