# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""List what this package imports from private modules of TensorFlow, and check it.

The names are found in the sources: modules under `tensorflow.python` and `tensorflow.core`, and
what is used of them. The table in docs/internals.md has those whose shape matters.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).resolve().parents[1]
_PREFIXES = ("tensorflow.python.", "tensorflow.core.", "tensorflow.dtensor.")


def used() -> dict[tuple[str, str], set[str]]:
    """Return what the sources import: by module and name, the attributes of it that they use."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not path.name.endswith("_pb2.py") and any(one in text for one in _PREFIXES):
            for key, attributes in _used_in(ast.parse(text)):
                found.setdefault(key, set()).update(attributes)
    return found


def problems() -> list[str]:
    """Return which of them this TensorFlow does not have."""
    found = []
    for (module, name), attributes in used().items():
        try:
            value = _imported(module, name)
        except (ImportError, AttributeError) as error:
            found.append(f"{module}.{name} is missing ({error})")
            continue
        # (Attributes of other objects may be those of each object.)
        if isinstance(value, ModuleType):
            missing = sorted(one for one in attributes if not hasattr(value, one))
            found += [f"{module}.{name}.{one} is missing" for one in missing]
    return found


def _imported(module: str, name: str) -> object:
    owner = importlib.import_module(module)
    if hasattr(owner, name):
        found: object = getattr(owner, name)
        return found
    return importlib.import_module(f"{module}.{name}")


def _used_in(tree: ast.AST) -> Iterator[tuple[tuple[str, str], set[str]]]:
    imported: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(_PREFIXES):
            for one in node.names:
                imported[one.asname or one.name] = (node.module or "", one.name)
    used: dict[str, set[str]] = {name: set() for name in imported}
    others = {
        one.arg for node in ast.walk(tree) if isinstance(node, ast.arguments) for one in node.args
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = node.value.id
            if name in used and name not in others:
                used[name].add(node.attr)
    for name, attributes in used.items():
        yield imported[name], attributes
