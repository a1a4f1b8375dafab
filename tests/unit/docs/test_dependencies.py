# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""docs/dependencies.md has the ranges that pyproject.toml declares."""

import re
import tomllib
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]


def test_every_declared_range_is_in_the_page():
    page = (_ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    declared = {*project["build-system"]["requires"], *(one for extra in extras for one in extra)}
    rows = {name + bound for name, bound in re.findall(r"`([\w-]+)` (?=\| `([^`]+)` \|)", page)}
    assert sorted(declared - rows) == []
