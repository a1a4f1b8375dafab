# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The walks of docs/architecture.md: files exist, are few, and each is used by an earlier one."""

import ast
import functools
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[3]
# Heading and the most files that a reader should have to open.
_MOST = {
    "Walk: one receive, from `_Send` to its consumer": 15,
    "Walk: one update, from `apply_gradients` to the rewritten function": 20,
    "Walk: one plan, from `layout.plan` to execution": 20,
}


def _walk(heading):
    """Path and text of each step."""
    page = (_ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    steps = re.findall(r"^\d+\. `([^`]+)`: (.*(?:\n {3}.*)*)", section, re.MULTILINE)
    assert len(steps) == len(re.findall(r"^\d+\. ", section, re.MULTILINE))
    return steps


def _file_of(module):
    path = _ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def _imports(path):
    """Files that a Python file imports; of a name that a package hands on, the file it is from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tf_fuse"):
            found |= {_source(node.module, one.name) for one in node.names}
    return found


def _source(module, name):
    submodule = _file_of(f"{module}.{name}")
    if submodule.exists():
        return submodule
    path = _file_of(module)
    if path.name == "__init__.py":
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and name in {one.name for one in node.names}:
                return _file_of(node.module)
    return path


def _headers(path):
    """Headers that a C++ file and its own header include, and that own header."""
    own = path.with_suffix(".h")
    text = path.read_text(encoding="utf-8")
    if own.exists():
        text += own.read_text(encoding="utf-8")
    named = {_ROOT / "cc" / name for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)}
    return {one for one in named if one.exists()} | ({own} if own.exists() else set())


def _is_used(path, earlier):
    if path.suffix == ".py":
        return any(path in _imports(one) for one in earlier)
    mine = {one for one in _headers(path) if one.parent == path.parent}
    return any(mine & _headers(one) for one in earlier)


@pytest.mark.parametrize("heading", _MOST)
def test_walks_are_short_and_name_files(heading):
    steps = _walk(heading)
    assert 0 < len(steps) <= _MOST[heading]
    assert [path for path, _ in steps if not (_ROOT / path).is_file()] == []


@pytest.mark.parametrize("heading", _MOST)
def test_each_step_is_used_by_an_earlier_one_or_called_by_tensorflow(heading):
    steps = _walk(heading)
    files = [_ROOT / path for path, _ in steps]
    lost = [
        path
        for number, (path, text) in enumerate(steps)
        if number and "TensorFlow" not in text and not _is_used(files[number], files[:number])
    ]
    assert lost == []
