# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Show on one page what was rewritten, what a step waits for, and what is gained.

    import tf_fuse.report

    tf_fuse.report.record(2)  # records the steps of the next two seconds, in all tasks
    tf_fuse.report.write("report.html")

The page is one file that needs no network. The JSON beside it holds the same;
tf_fuse.report.records.model defines it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tf_fuse.report.json_form import ReportError
from tf_fuse.report.records.model import Report, Timeline

__all__ = ["Report", "ReportError", "Timeline", "record", "write"]


def record(seconds: float = 2.0) -> Timeline | None:
    """Record the steps that run meanwhile in all tasks of the job, for the next report.

    Call it on the coordinator, while steps run: those that were scheduled, or that another thread
    runs. Each task records its fused receives, and when its threads ran operations; no other
    profile of it may be made at that time.

    Args:
      seconds: how long; 20 whole steps at most are kept.

    Returns:
      The timeline; None if no task could be recorded. The report says why.

    Raises:
      ValueError: `seconds` is not more than 0, or above 600.
    """
    from tf_fuse.report.steps import recording

    return recording.record(seconds)


def write(
    path: str | os.PathLike[str],
    *,
    plans: Iterable[Any] = (),
    benchmarks: Iterable[str | os.PathLike[str]] = (),
    timeout_s: float = 10.0,
    target: str | None = None,
) -> Report:
    """Write a report of the job that this process coordinates, as a page and as JSON.

    Args:
      path: of the page; the JSON has the same name, and ends in ".json".
      plans: of `tf_fuse.layout.plan`, to show beside those that run here.
      benchmarks: JSON files of `tf-fuse bench` or of the project's benchmarks.
      timeout_s: seconds to wait for the answer of a task; the page says which one gave none.
      target: of a session, see `tf_fuse.cluster_metrics`.

    Returns:
      What was written.

    Raises:
      ImportError: Jinja2 is not installed: `pip install "tf_fuse[report]"`.
      OSError: a file cannot be written.
      ValueError: `path` ends in ".json".
    """
    from tf_fuse.report import render
    from tf_fuse.report.collect import report_of_job
    from tf_fuse.report.gains import gains_of
    from tf_fuse.report.steps import recording

    report = report_of_job(timeout_s, target, plans, recording.last_timeline())
    gains, notes = gains_of(map(Path, benchmarks))
    report = dataclasses.replace(
        report,
        notes=(*report.notes, *recording.last_notes(), *notes),
        gains=tuple(gains),
    )
    render.write(report, Path(path))
    return report
