# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Of damaged, foreign and other versions' files the command makes a page of what fits."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.report.made_reports import PS, WORKER, whole_report
from tf_fuse import cli
from tf_fuse.report import render
from tf_fuse.report.json_form import ReportError, as_json, from_json, read
from tf_fuse.report.merge import merge
from tf_fuse.report.steps.chrome_trace import trace_of

_WHOLE = as_json(whole_report())


def _with(path, value):
    """Return the JSON of a whole report with another value at a place."""
    data = copy.deepcopy(_WHOLE)
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return data


def _run(folder, *texts):
    """Run the command with files; return its notes, its report and the trace."""
    files = [folder / f"file_{number}.json" for number in range(len(texts))]
    for path, text in zip(files, texts, strict=True):
        path.write_text(text)
    page, trace = folder / "page.html", folder / "trace.out"
    assert cli.main(["report", "--out", str(page), "--trace", str(trace), *map(str, files)]) == 0
    report = read(page.with_suffix(".json"))
    notes = [f"{one.part}: {one.text}" for one in report.notes]
    assert "What is missing" in page.read_text()
    return notes, report, json.loads(trace.read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("path", "value", "missing"),
    [
        (["server_updates", "servers"], [1], "server_updates.servers: expected dict, found list"),
        (["server_updates", "servers"], {PS: 1}, f"servers.{PS}: expected dict, found int"),
        (
            ["server_updates", "workers", WORKER, "staleness", 0],
            [1, 2],
            f"server_updates.workers.{WORKER}.staleness[0]: expected 3 items, found 2",
        ),
        (["placements", 0, "variables"], 3, "placements[0].variables: expected list, found int"),
        (["placements", 0, "servers", 0], [], "placements[0].servers[0]: expected dict"),
        (["weight_updates", WORKER], "x", f"weight_updates.{WORKER}: expected dict, found str"),
        (
            ["weight_updates", WORKER, "functions"],
            [{"buckets": [{"gradients": [{"bytes": True}]}]}],
            "buckets[0].gradients[0].bytes: expected float, found bool",
        ),
        (["timeline", "receives", 0, "end_us"], 10**400, "receives[0].end_us: expected float"),
        (["layouts", 0, "found", "seconds"], 10**400, "layouts[0].found.seconds: expected float"),
        (["timeline", "receives", 0, "transfer"], 7, "timeline.receives: 1 of a transfer that is"),
        (["timeline", "receives", 0, "transfer"], -1, "timeline.receives: 1 of a transfer that is"),
        (["timeline", "steps", 0, "path", 0, "task"], "x", "timeline.steps[0].path: of a task"),
        (["timeline", "steps", 0, "path", 1, "peer"], "x", "timeline.steps[0].path: of a task"),
        (["timeline", "lanes", 0, "busy", 0], [1.0, 2.0, 3.0], "timeline.lanes: 1 times without"),
        (["tasks", 0, "error"], "\ud800", "did not answer"),
    ],
)
def test_a_page_is_made_and_says_what_did_not_fit(tmp_path, path, value, missing):
    notes, report, events = _run(tmp_path, json.dumps(_with(path, value)))
    assert any(missing in one for one in notes), notes
    # The other parts are there.
    assert report.functions == whole_report().functions
    assert events


@pytest.mark.parametrize("key", ["updates", "mean_staleness", "max_staleness", "staleness"])
def test_what_a_worker_of_two_reports_lacks_is_not_known_of_both(tmp_path, key):
    one, other = copy.deepcopy(_WHOLE), copy.deepcopy(_WHOLE)
    other["server_updates"]["servers"] = {
        "/job:ps/replica:0/task:1": one["server_updates"]["servers"][PS]
    }
    del one["server_updates"]["workers"][WORKER][key]
    _, report, _ = _run(tmp_path, json.dumps(one), json.dumps(other))
    worker = report.server_updates["workers"][WORKER]
    assert key not in worker
    assert worker.get("updates", 14) == 14
    assert worker.get("max_staleness", 2) == 2
    assert len(report.server_updates["servers"]) == 2


def test_what_is_nested_too_deep_is_not_a_report(tmp_path):
    text = json.dumps(_with(["weight_updates"], "here"))
    deep = text.replace('"here"', '{"a":' * 900 + "1" + "}" * 900)
    path = tmp_path / "deep.json"
    path.write_text(deep)
    with pytest.raises(ReportError, match=r"^deep\.json: not"):
        read(path)
    notes, _, _ = _run(tmp_path, deep, text)
    assert any(one.startswith("file_0.json: not read: ") for one in notes)


def _places(data, path=()):
    """Return the paths of all values in JSON."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    found = []
    for key, value in items:
        found.append((*path, key))
        if isinstance(value, dict | list):
            found += _places(value, (*path, key))
    return found


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.sampled_from(_places(_WHOLE)), _VALUES), min_size=1, max_size=4))
def test_no_damage_makes_a_report_that_cannot_be_shown(changes):
    data = _WHOLE
    for path, value in changes:
        damaged = copy.deepcopy(data)
        at = damaged
        try:
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value
        except (IndexError, KeyError, TypeError):
            continue  # A change of before has taken the place away.
        data = damaged
    report = merge([from_json(data, "a.json"), whole_report(), from_json(data, "b.json")])
    assert "</html>" in render.page(report)
    json.dumps(as_json(report), allow_nan=False)
    if report.timeline is not None:
        trace_of(report.timeline)
