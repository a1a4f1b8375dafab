# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run `tf-fuse report`: make a page of a running job, of files of a job, or of a saved function."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tf_fuse.report.records.model import Note, Report


class SourceError(ValueError):
    """The command line does not say what to report; the text says what it can name."""


def run(
    out: str,
    files: Sequence[str],
    folder: str | None,
    graph: str | None,
    example: str | None,
    signature: str,
    target: str | None,
    record_s: float | None,
    timeout_s: float,
    trace: str | None,
) -> int:
    """Make the page; return the exit status.

    Args:
      out: path of the page. The JSON beside it has the same name.
      files: reports and JSON files of benchmarks.
      folder: that a job wrote its reports into, by TF_FUSE_REPORT_DIR.
      graph: a GraphDef (*.pb, *.pbtxt) or the folder of a SavedModel.
      example: a key of `example_graphs.EXAMPLES`.
      signature: which one of a SavedModel.
      target: "host:port" of a task of a running job; by default of TF_CONFIG's first task, if
        nothing else is named.
      record_s: seconds for which its tasks are recorded; None to record nothing.
      timeout_s: seconds to wait for a task's answer.
      trace: where to write the timeline for Perfetto; None for nowhere.

    Returns:
      0; or 1, with a message on standard error, if there is nothing to report or a file cannot be
      written. What is missing in a page is printed, stands on the page, and does not count.
    """
    from tf_fuse.report import render
    from tf_fuse.report.steps.chrome_trace import write_trace

    try:
        report = _report(files, folder, graph, example, signature, target, record_s, timeout_s)
        for note in report.notes:
            print(f"missing: {note.part}: {note.text}", file=sys.stderr)
        render.write(report, Path(out))
        print(f"wrote {out} and {Path(out).with_suffix('.json')}")
        if trace is not None:
            if report.timeline is None:
                raise SourceError(f"{trace} was not written: no steps were recorded")
            write_trace(report.timeline, Path(trace))
            print(f"wrote {trace}: open it at https://ui.perfetto.dev")
    except (ImportError, OSError, ValueError) as error:
        print(f"tf-fuse: error: {error}", file=sys.stderr)
        return 1
    return 0


def _report(
    files: Sequence[str],
    folder: str | None,
    graph: str | None,
    example: str | None,
    signature: str,
    target: str | None,
    record_s: float | None,
    timeout_s: float,
) -> Report:
    from tf_fuse.report.merge import merge, report_of_files

    reports: list[Report] = []
    addresses = {} if target else _addresses_of_tf_config()
    named = [Path(one) for one in files] + ([Path(folder)] if folder else [])
    is_job = target is not None or not (named or graph or example)
    if is_job and target is None and not addresses:
        raise SourceError(
            "name what to report: --target HOST:PORT of a task of a running job (or set "
            "TF_CONFIG), --dir FOLDER of TF_FUSE_REPORT_DIR, --graph FILE, --example NAME, or files"
        )
    if record_s is not None and not is_job:
        raise SourceError("--record needs a running job: give --target, or set TF_CONFIG")
    if is_job:
        reports.append(_of_job(target, addresses, record_s, timeout_s))
    if graph or example:
        reports.append(_of_function(graph, example, signature))
    if named:
        reports.append(report_of_files(named))
    report = reports[0] if len(reports) == 1 else merge(reports)
    return _with_notes_of_coordinator(report) if is_job else report


def _with_notes_of_coordinator(report: Report) -> Report:
    """Return a report that names the parts which the tasks of a job cannot tell."""
    tensors = [one for fn in report.functions for group in fn.groups for one in group.tensors]
    tensors += [one.tensor for fn in report.functions for one in fn.left]
    known = {
        "variables": any(one.variable for one in tensors),
        "weight updates": report.weight_updates,
        "placement": report.placements,
        "layouts": report.layouts,
    }
    text = "only the coordinator knows them: call tf_fuse.report.write there"
    notes = [Note(name, text) for name, value in known.items() if not value]
    return dataclasses.replace(report, notes=(*report.notes, *notes))


def _of_job(
    target: str | None, addresses: dict[str, str], record_s: float | None, timeout_s: float
) -> Report:
    from tf_fuse.report.collect import report_of_job
    from tf_fuse.report.steps import recording

    address = target or next(iter(addresses.values()))
    address = address.partition("://")[2] or address
    timeline = None
    notes: list[Note] = []
    if record_s is not None:
        if not addresses:
            notes.append(
                Note("timeline", f"only {address} was recorded: set TF_CONFIG for all tasks")
            )
        timeline, missing = recording.record_timeline(
            record_s, addresses or {"/job:task/replica:0/task:0": address}
        )
        notes += missing
    # Each at its own address: a task that is silent hides no other.
    asked = {task: f"grpc://{own}" for task, own in addresses.items()} or f"grpc://{address}"
    report = report_of_job(timeout_s, asked, timeline=timeline)
    return dataclasses.replace(report, notes=(*report.notes, *notes))


def _addresses_of_tf_config() -> dict[str, str]:
    """Return task to address, as TF_CONFIG has them; nothing if it is not set."""
    from tf_fuse.cluster.serve import ConfigError, parse_tf_config

    text = os.environ.get("TF_CONFIG")
    if not text:
        return {}
    try:
        cluster = parse_tf_config(text).cluster
    except ConfigError as error:
        raise SourceError(str(error)) from None
    return {
        f"/job:{job}/replica:0/task:{index}": address
        for job, tasks in cluster.items()
        for index, address in sorted(tasks.items())
        # (With servers the chief is a coordinator, which has no steps to record.)
        if job != "chief" or "ps" not in cluster
    }


def _of_function(graph: str | None, example: str | None, signature: str) -> Report:
    from tf_fuse.cli import example_graphs
    from tf_fuse.cli.load import graph as load_graph
    from tf_fuse.explain import rewrite
    from tf_fuse.report.saved_function import report_of_rewrite

    loaded: Any
    if example is not None:
        loaded, name = example_graphs.build(example), example
    else:
        loaded, name = load_graph.load(Path(str(graph)), signature), Path(str(graph)).stem
    return report_of_rewrite(rewrite(loaded, splitting="cost"), name)
