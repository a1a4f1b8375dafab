# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""docs/faults.md: every row is read, and names a test that exists."""

import json
import re
from pathlib import Path

import pytest

from tests.fault import table

_TESTS = Path(__file__).resolve().parents[2]


def test_every_row_is_of_the_form_that_the_tests_read():
    lines = [x for x in table.DOCUMENT.read_text().splitlines() if x.startswith("| ")]
    unread = [x for x in lines if not table._ROW.match(x) and not x.startswith("| fault |")]
    assert unread == []
    assert len(table.rows()) >= 10


@pytest.mark.parametrize(("module", "case"), sorted(table.rows()))
def test_every_row_names_a_test(module, case):
    (path,) = _TESTS.rglob(f"{module}.py")
    text = path.read_text()
    if case.startswith("test_"):
        assert re.search(rf"^def {case}\(", text, re.MULTILINE)
    else:
        assert "table.cases(__file__)" in text and "table.check(__file__, case," in text
        assert re.search(rf'"{case}"', text)


def test_what_stock_does_is_compared_or_said_not_to_be():
    # Cases are compared by table.check; of the functions, these compare with stock.
    functions = {key: row for key, row in table.rows().items() if key[1].startswith("test_")}
    assert [
        key
        for key, row in functions.items()
        if row.stock != "n/a" and not row.stock.startswith("source: ")
    ] == [
        ("test_differing_ranks", "test_one_rank_without_the_plugin"),
        ("test_two_hosts", "test_training_across_hosts"),
    ]


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([\w-]+):", (_TESTS.parent / "Makefile").read_text(), re.MULTILINE))
    root = _TESTS.parent
    files = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("tests/**/*.py")]
    named = {name for path in files for name in re.findall(r"`make ([a-z-]+)", path.read_text())}
    assert "faults" in named
    assert named - targets == set()


def test_times_are_put_beside_the_outcomes_and_are_no_part_of_them(tmp_path, monkeypatch):
    document = tmp_path / "faults.md"
    row = "| a | `AError` | recovered (9.9 s) | `test_x::one` |\n"
    other = "| b | c | d | `test_x::two` |\n"
    without_stock = "| e | f (2.0 s) | `test_x::three` |\n"
    document.write_text(row + other + without_stock)
    monkeypatch.setattr(table, "DOCUMENT", document)
    before = table.rows()
    assert before["test_x", "one"] == table.Row("a", "`AError`", "recovered")
    assert before["test_x", "three"] == table.Row("e", "n/a", "f")
    (tmp_path / "test_x.one.json").write_text(json.dumps({"stock": 0.04, "here": 1.26}))
    (tmp_path / "test_x.three.json").write_text(json.dumps({"stock": None, "here": 3.04}))
    assert table.write_times(tmp_path) == 2
    assert document.read_text() == (
        "| a | `AError` | recovered (1.3 s) | `test_x::one` |\n"
        + other
        + "| e | f (3.0 s) | `test_x::three` |\n"
    )
    assert table.rows() == before


def test_same_stands_for_the_outcome_of_stock(tmp_path, monkeypatch):
    document = tmp_path / "faults.md"
    document.write_text("| a | `AError` (4.0 s) | same (6.1 s) | `test_x::one` |\n")
    monkeypatch.setattr(table, "DOCUMENT", document)
    assert table.rows()["test_x", "one"] == table.Row("a", "`AError`", "`AError`")
    (tmp_path / "test_x.one.json").write_text(json.dumps({"stock": 4.2, "here": 0.2}))
    table.write_times(tmp_path)
    assert document.read_text() == "| a | `AError` (4.2 s) | same | `test_x::one` |\n"


def test_an_outcome_that_is_not_the_documented_one_fails(tmp_path, monkeypatch):
    document = tmp_path / "faults.md"
    document.write_text("| a | `AError` | `AError` | `test_x::one` |\n")
    monkeypatch.setattr(table, "DOCUMENT", document)
    table.check("test_x.py", "one", {"outcome": "`AError`"}, {"outcome": "`AError`"})
    with pytest.raises(AssertionError, match=r"a \(test_x: one\): .*recovered"):
        table.check("test_x.py", "one", {"outcome": "`AError`"}, {"outcome": "recovered"})


def test_of_an_outcome_that_is_up_to_a_race_all_that_were_seen_are_documented(
    tmp_path, monkeypatch
):
    document = tmp_path / "faults.md"
    document.write_text("| a | `A` or `B`; aborted | `A`; aborted | `test_x::one` |\n")
    monkeypatch.setattr(table, "DOCUMENT", document)
    here = {"outcome": "`A`; aborted"}
    for outcome in ("`A`; aborted", "`B`; aborted", "`A` or `B`; aborted"):
        table.check("test_x.py", "one", {"outcome": outcome}, here)
    for outcome in ("`C`; aborted", "`A` or `C`; aborted", "`A`", "`A`; `B`", "aborted; `A`", ""):
        with pytest.raises(AssertionError, match="stock: "):
            table.check("test_x.py", "one", {"outcome": outcome}, here)
    with pytest.raises(AssertionError, match="here: "):
        table.check("test_x.py", "one", here, {"outcome": "`B`; aborted"})


def test_a_case_stands_in_one_row(tmp_path, monkeypatch):
    document = tmp_path / "faults.md"
    document.write_text("| a | b | c | `test_x::one` |\n" * 2)
    monkeypatch.setattr(table, "DOCUMENT", document)
    with pytest.raises(ValueError, match="two rows name the case test_x: one"):
        table.rows()
