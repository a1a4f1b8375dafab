# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The pages name each public name of the package, and no name that is not there."""

import importlib
import re
from pathlib import Path

import pytest

import tf_fuse

_ROOT = Path(__file__).resolve().parents[3]
_TEXT = "\n".join(
    page.read_text(encoding="utf-8") for page in [_ROOT / "README.md", *_ROOT.glob("docs/**/*.md")]
)
# Written with dots between names, as in `tf_fuse.layout.plan`; files end in `.py` or are folders.
_NAMES = sorted(set(re.findall(r"(?<![\w/.])tf_fuse((?:\.[A-Za-z]\w*)+)(?![\w/])", _TEXT)))
_FILES = (".py", ".v1")


def _is_there(name):
    """Whether a dotted name is a module, or an attribute of one."""
    found = tf_fuse
    for part in name.lstrip(".").split("."):
        if not hasattr(found, part):
            try:
                importlib.import_module(f"{found.__name__}.{part}")
            except (ImportError, AttributeError):
                return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("name", sorted(tf_fuse.__all__))
def test_a_public_name_is_in_the_pages(name):
    assert re.search(rf"\btf_fuse\.{name}\b|`{name}\b|^### .*{name}", _TEXT, re.MULTILINE)


def test_names_in_the_pages_are_there():
    named = [name for name in _NAMES if not name.startswith(_FILES)]
    assert len(named) > 40
    assert [name for name in named if not _is_there(name)] == []
