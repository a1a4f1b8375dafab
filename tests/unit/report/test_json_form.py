# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The JSON of a report: what it holds, what it never holds, and what is read of damaged files."""

import dataclasses
import json

import pytest

from tests.unit.report.made_reports import whole_report
from tf_fuse.report import json_form
from tf_fuse.report.records.model import VERSION, Group, Note, Report, Task, Tensor


def _write(path, data):
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def test_a_report_is_read_as_it_was_written(tmp_path):
    report = whole_report()
    assert json_form.read(_write(tmp_path / "a.json", json_form.as_json(report))) == report
    # All fields of all classes have another value than the default, so none was left out.
    missing = [
        field.name
        for field in dataclasses.fields(Report)
        if field.name not in ("format", "version") and not getattr(report, field.name)
    ]
    assert missing == []


@pytest.mark.parametrize("size", [0, 1, 200, -2])
def test_a_truncated_file_is_an_error_that_says_so(tmp_path, size):
    text = json.dumps(json_form.as_json(whole_report()))
    path = _write(tmp_path / "cut.json", text[:size])
    with pytest.raises(json_form.ReportError, match=r"^cut\.json: not JSON, or cut off \("):
        json_form.read(path)


@pytest.mark.parametrize(
    "text", ["[]", "3", '"tf_fuse report"', "{}", '{"format": "other"}', "[" * 100000]
)
def test_a_foreign_file_is_an_error_that_says_so(tmp_path, text):
    with pytest.raises(json_form.ReportError, match=r"^other\.json: not"):
        json_form.read(_write(tmp_path / "other.json", text))


def test_bytes_that_are_not_text_are_an_error_that_says_so(tmp_path):
    path = tmp_path / "other.json"
    path.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(json_form.ReportError, match=r"^other\.json: not JSON"):
        json_form.read(path)


def test_another_version_is_read_as_far_as_it_goes(tmp_path):
    data = json_form.as_json(Report(tasks=(Task("/job:ps/replica:0/task:0"),)))
    data |= {"version": VERSION + 1, "news": [1, 2], "functions": "moved"}
    data["tasks"][0]["age"] = 3
    report = json_form.read(_write(tmp_path / "new.json", data))
    assert report.tasks == (Task("/job:ps/replica:0/task:0"),)
    assert report.version == VERSION
    assert report.notes == (
        Note(
            "new.json",
            f"has version {VERSION + 1}, and this is version {VERSION}: parts may be missing",
        ),
        Note("new.json", "left out what does not fit: functions: expected list, found str"),
    )


def test_what_has_another_type_is_left_out_and_named(tmp_path):
    data = json_form.as_json(whole_report())
    tensors = data["functions"][0]["groups"][0]["tensors"]
    count = len(tensors)
    tensors[0]["bytes"] = "many"
    tensors[1] = None
    data["timeline"]["receives"][0]["end_us"] = True
    data["tasks"][0]["counters"]["groups"] = [4]
    report = json_form.read(_write(tmp_path / "odd.json", data))
    read = report.functions[0].groups[0].tensors
    assert (len(read), read[0].bytes, read[0].name) == (count - 1, None, tensors[0]["name"])
    assert report.timeline.receives[0].end_us == 0.0
    assert report.notes[-1] == Note(
        "odd.json",
        "left out what does not fit: tasks[0].counters: expected float, found list; "
        "functions[0].groups[0].tensors[0].bytes: expected int, found str; "
        "functions[0].groups[0].tensors[1]: expected dict, found NoneType; 1 more",
    )


def test_a_report_has_no_paths_and_no_numbers_that_json_lacks():
    report = Report(
        notes=(
            Note("a", "/home/ada/data/adult.csv: not found, see '~/x/y' or file:///etc/passwd"),
            Note("b", "no path: /job:ps/replica:0/task:0/device:CPU:0, deep/layer_0/kernel, 1/2"),
        ),
        weight_updates={"/job:worker/replica:0/task:1": {"seconds": float("nan")}},
    )
    data = json_form.as_json(report)
    assert [one["text"] for one in data["notes"]] == [
        "(path): not found, see '(path)' or (path)",
        "no path: /job:ps/replica:0/task:0/device:CPU:0, deep/layer_0/kernel, 1/2",
    ]
    assert data["weight_updates"] == {"/job:worker/replica:0/task:1": {"seconds": None}}
    json.dumps(data, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("not in /secret", "not in (path)"),
        ("~/x and ~ada/y/", "(path) and (path)"),
        ("error:/home/a/b: 3", "error:(path): 3"),
        ("name=//home/a ../b ./c/d", "name=(path) (path) (path)"),
        ("[Errno 2] No file: '/home/ada/my data/x (1).csv'", "[Errno 2] No file: '(path)'"),
        ('"/a b", "~/c d"', '"(path)", "(path)"'),
    ],
)
def test_paths_of_any_form_are_replaced(text, shown):
    assert json_form.public(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "grpc://127.0.0.1:2222/x, https://example.org/a/b",
        "/job:ps/task:1 to /device:GPU:0 and /cpu:0, '/job:a/replica:0/task:0'",
        "model/layer_1/kernel:0, f(x)/y, a[1]/b, 3/4 of 5 steps/s, read / step",
    ],
)
def test_names_that_look_like_paths_stay(text):
    assert json_form.public(text) == text


def test_texts_that_utf_8_cannot_write_and_integers_beyond_all_counters():
    assert json_form.public({"\ud800": [10**400, -(10**30), 2**63, True]}) == {
        "?": [None, None, 2**63, True]
    }


def test_paths_in_a_file_are_not_passed_on(tmp_path):
    report = Report(functions=())
    data = json_form.as_json(report) | {"tf_fuse": "/opt/secret/place"}
    assert json_form.read(_write(tmp_path / "a.json", data)).tf_fuse == "(path)"


def test_defaults_are_those_of_an_empty_object():
    assert json_form.from_json({}, "x") == Report()
    assert json_form.from_json({"functions": [{"groups": [{"tensors": [{}]}]}]}, "x").functions[
        0
    ].groups == (Group(tensors=(Tensor(),)),)
