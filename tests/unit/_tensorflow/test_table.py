# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""docs/internals.md lists the members that are replaced and read, from the files that do it."""

import os
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from tf_fuse._tensorflow import (
    catalogue,
    check_imports,
    dtype_numbers,
    feature_names,
    members,
    table,
)

_ROOT = Path(__file__).resolve().parents[3]


def test_the_table_is_that_of_the_files():
    text = (_ROOT / "docs" / "internals.md").read_text(encoding="utf-8")
    assert table.update(text) == text, "run `make internals`"


def test_every_file_is_in_the_catalogue():
    folder = _ROOT / "tf_fuse" / "_tensorflow"
    files = {
        ".".join(path.relative_to(_ROOT).with_suffix("").parts)
        for path in folder.glob("*/*.py")
        if path.name != "__init__.py"
    }
    assert {one.__name__ for one in catalogue.FILES} == files


def test_files_of_members_that_are_replaced_at_import_say_why():
    at_import = [
        file
        for file in catalogue.FILES
        if any(one.when == members.AT_IMPORT for one in file.MEMBERS)
    ]
    assert [file.__name__ for file in at_import if " at import, because " not in _text(file)] == []
    assert len(at_import) == 5


def _text(file):
    return " ".join(file.__doc__.split()).replace("At import", " at import")


def test_every_feature_says_what_happens_without_it():
    assert {one for member in catalogue.MEMBERS for one in member.features} == set(
        feature_names.WITHOUT
    )


def test_numbers_of_types_are_those_of_graphs():
    from tensorflow.core.framework import types_pb2

    numbers = {name: number for name, number in vars(dtype_numbers).items() if name.isupper()}
    assert numbers == {name: types_pb2.DataType.Value(f"DT_{name}") for name in numbers}


def test_internal_names_that_are_imported_are_there(monkeypatch):
    used = check_imports.used()
    assert "context" in used["tensorflow.python.eager", "context"]
    assert check_imports.problems() == []
    lacking = {
        ("tensorflow.python.eager", "context"): {"context", "not_there"},
        ("tensorflow.python", "not_here"): set(),
    }
    monkeypatch.setattr(check_imports, "used", lambda: lacking)
    first, second = check_imports.problems()
    assert first == "tensorflow.python.eager.context.not_there is missing"
    assert second.startswith("tensorflow.python.not_here is missing")
