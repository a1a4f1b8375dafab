# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf-fuse report` of saved functions and files; what it writes, and its errors."""

import json
import re
import sys

import pytest

from tests.unit.report.made_reports import whole_report
from tf_fuse import cli
from tf_fuse.report import render
from tf_fuse.report.json_form import as_json, read
from tf_fuse.report.records.model import Note, Report


@pytest.fixture(autouse=True)
def no_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def _run(*options):
    return cli.main(["report", *map(str, options)])


def test_a_page_of_a_saved_function(tmp_path, capsys):
    out = tmp_path / "features.html"
    assert _run("--out", out, "--example", "features") == 0
    assert capsys.readouterr().out == f"wrote {out} and {out.with_suffix('.json')}\n"
    report = read(out.with_suffix(".json"))
    (function,) = report.functions
    assert function.name == "features"
    tensors = [one for group in function.groups for one in group.tensors]
    # Sizes are those of the graph, and each tensor has an operation that reads it.
    assert all(one.bytes and one.consumer for one in tensors)
    text = out.read_text()
    assert json.loads(re.search(r'id="report-data">(.*?)</script>', text)[1]) == as_json(report)


def test_a_page_of_a_graph_file_and_of_reports_at_once(tmp_path):
    from tf_fuse.cli import example_graphs

    graph = tmp_path / "step.pb"
    graph.write_bytes(example_graphs.build("dense").SerializeToString())
    other = tmp_path / "other.json"
    other.write_text(json.dumps(as_json(whole_report())))
    out, trace = tmp_path / "page.html", tmp_path / "trace.json"
    assert _run("--out", out, "--graph", graph, "--trace", trace, other) == 0
    report = read(out.with_suffix(".json"))
    assert [one.name for one in report.functions] == ["step", "train"]
    assert json.loads(trace.read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], "name what to report: --target HOST:PORT of a task of a running job (or set"),
        (["--example", "dense", "--record", "1"], "--record needs a running job"),
        (["--graph", "none.pb"], "none.pb"),
        (["--target", "127.0.0.1:1", "--record", "0"], "seconds is more than 0 and at most 600"),
        (["--example", "dense", "--trace", "t.json"], "t.json was not written: no steps were"),
    ],
)
def test_errors_of_the_command_line(tmp_path, monkeypatch, capsys, options, error):
    monkeypatch.chdir(tmp_path)
    assert _run("--out", tmp_path / "page.html", *options) == 1
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith("tf-fuse: error: ")
    assert error in err


def test_a_wrong_tf_config_is_an_error_that_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", "{")
    assert _run("--out", tmp_path / "page.html") == 1
    assert "tf-fuse: error: TF_CONFIG is not JSON" in capsys.readouterr().err


def test_the_page_must_not_have_the_name_of_its_json(tmp_path, capsys):
    assert _run("--out", tmp_path / "page.json", "--example", "dense") == 1
    assert "the page needs another name, as report.html" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_bad_files_are_named_and_the_page_is_made(tmp_path, capsys):
    cut = tmp_path / "cut.json"
    cut.write_text('{"format": "tf_fuse report", "ver')
    out = tmp_path / "page.html"
    assert _run("--out", out, cut) == 0
    assert "missing: cut.json: not read: cut.json: not JSON, or cut off" in capsys.readouterr().err
    assert "What is missing" in out.read_text()


def test_names_are_text_and_never_markup(tmp_path):
    report = whole_report()
    (note,) = report.notes
    assert "<b>" in note.text
    text = render.page(report, title="</title><script>alert(1)</script>")
    assert "<b>gone" not in text and "&lt;b&gt;gone" in text
    assert "<script>alert" not in text
    # The policy lets the page load nothing.
    assert "default-src 'none'" in text
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", text)


def test_notes_and_versions_on_the_page_have_no_paths():
    notes = (Note("a", "/home/ada/x"), Note("/srv/b", "error:/opt/c"))
    report = Report(tf_fuse="/root/1", tensorflow="~/2", made="/var/3", notes=notes)
    text = render.page(report)
    for path in ("/home", "/srv", "/opt", "/root", "~/2", "/var"):
        assert path not in text
    assert "<b>a</b> (path)" in text


def test_without_jinja2_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r'pip install "tf_fuse\[report\]"'):
        render.page(whole_report())
