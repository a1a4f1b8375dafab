# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""docs/environment.md has every option and variable, and the true defaults of the limits."""

import os
import re
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from tf_fuse._removed_variables import REMOVED_VARIABLES
from tf_fuse.options import OPTIONS

_ROOT = Path(__file__).resolve().parents[3]
_TABLE = (_ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
_SOURCES = [
    *(_ROOT / "cc").rglob("*.cc"),
    *(_ROOT / "cc").rglob("*.h"),
    *(_ROOT / "tf_fuse").rglob("*.py"),
    *(_ROOT / "examples").rglob("*.py"),
    *(_ROOT / "benchmarks").rglob("*.py"),
    _ROOT / "setup.py",
    _ROOT / "cc" / "find_tensorflow.py",
]


def _rows():
    """Option or variable -> the cells of its row."""
    rows = {}
    for line in _TABLE.splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            for name in re.findall(r"`(\w+)`", cells[0]):
                rows[name] = cells
    return rows


def test_every_option_has_a_row():
    assert {name for name in _rows() if name.islower()} == set(OPTIONS)
    for option in OPTIONS.values():
        for choice in filter(None, option.choices or ()):
            assert f"`{choice}`" in _rows()[option.key][1]


def test_every_variable_of_the_sources_has_a_row():
    # C++ names them in string literals; what stands bare there is a guard or a macro.
    read = {
        name
        for path in _SOURCES
        for name in re.findall(r"[\"'](TF_FUSE_[A-Z_]+)[\"']", path.read_text(encoding="utf-8"))
    }
    # The names of the factories of servers and sessions.
    read -= {"TF_FUSE_GRPC_SERVER", "TF_FUSE_GRPC_SESSION", *REMOVED_VARIABLES}
    # What `tf-fuse launch` and `LocalCluster` set for the processes that they start.
    read -= {"TF_FUSE_JOBS", "TF_FUSE_ONE_HOST", "TF_FUSE_STEPS_FILE"}
    assert read == {name for name in _rows() if name.startswith("TF_FUSE_")}
    assert "TF_FUSE_MAX_KEYS_PER_REQUEST" in read


def _number(text):
    """The value of a constant expression of limits.h, such as "uint64_t{4} << 30"."""
    match = re.fullmatch(r"(?:uint64_t\{(\d+)\}|(\d+))(?: << (\d+))?", text)
    return int(match[1] or match[2]) << int(match[3] or 0)


def test_defaults_are_those_of_the_sources():
    header = (_ROOT / "cc" / "base" / "limits.h").read_text(encoding="utf-8")
    constants = re.findall(r"constexpr uint64_t kDefault(\w+) = ([^;]+);", header)
    variables = dict(re.findall(r"constexpr char k(\w+)Variable\[\] =\s+\"(\w+)\"", header))
    documented = {name: row[1] for name, row in _rows().items() if row[1].isdigit()}
    assert documented == {
        variables[name]: str(_number(value)) for name, value in constants if not name.endswith("Ms")
    }
    assert len(documented) == 8
