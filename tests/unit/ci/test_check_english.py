# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`make lint-english` finds each habit, in prose alone, and too many words."""

import importlib.util
from pathlib import Path

import pytest

_PATH = Path(__file__).resolve().parents[3] / ".ci" / "check_english.py"
_SPEC = importlib.util.spec_from_file_location("check_english", _PATH)
check_english = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(check_english)

_BAD = [
    ("has X do Y", "Has all that reads a tensor read another one, but what makes that."),
    ("has X do Y", "The option has a server do the whole\nupdate."),
    ("is no N", "Why something is no name."),
    ("is none", "data channel: a message that is none"),
    ("told of", "A task is told of what it did not know."),
    ("of which", "A pack, of which some tensors are left."),
    ("what there is", "It shows what there is."),
    ("what there is", "Rows that there are not change no piece."),
    ("as it is", "The function is left as it is."),
]
_GOOD = (
    "There is no timer, and there are none elsewhere. It is no longer slow. It has the option to "
    "make parts. A task that has decided about a receive waits. The log says that there are not "
    "enough. As it is read, it grows, regardless of which task asks. The sender has the tensors "
    "and may send. Only one has a wait."
)


def _habits(path):
    return [line.split('habit "')[1].split('"')[0] for line in check_english.findings(path)]


@pytest.mark.parametrize(("habit", "text"), _BAD)
@pytest.mark.parametrize(
    ("name", "form", "line_break"),
    [
        ("a.md", "# Title\n\n{}\n", "\n"),
        ("a.py", '"""Title.\n\n{}\n"""\n', "\n"),
        ("a.py", "x = 1\ny = 2\n# {}\n", "\n# "),
        ("a.h", "int x;\nint y;\n// {}\n", "\n// "),
    ],
)
def test_each_habit_is_found(tmp_path, habit, text, name, form, line_break):
    path = tmp_path / name
    path.write_text(form.format(text.replace("\n", line_break)))
    assert _habits(path) == [habit]
    (finding,) = check_english.findings(path)
    assert finding.startswith(f"{path}:3:")
    assert check_english.main([str(tmp_path)]) == 1


def test_good_text_and_code_pass(tmp_path):
    bad = "is no name, as it is"
    (tmp_path / "a.md").write_text(f"{_GOOD} `{bad}`\n\n```\n{bad}\n```\n")
    (tmp_path / "a.py").write_text(f'"""{_GOOD}"""\n\nX = "{bad}"\nf"""{bad}"""\n')
    (tmp_path / "a.cc").write_text(f'// {_GOOD}\nauto x = "// {bad}"; auto y = R"(// {bad})";\n')
    assert check_english.main([str(tmp_path)]) == 0


def test_too_many_words_fail(tmp_path, capsys):
    page = tmp_path / "a.md"
    page.write_text("| one | two |\n|---|---|\n| three | four |\n")
    assert check_english.main([str(page), "--words", "--max-words", "4"]) == 0
    assert capsys.readouterr().out == "4 words in 1 pages\n"
    assert check_english.main([str(page), "--max-words", "3"]) == 1
