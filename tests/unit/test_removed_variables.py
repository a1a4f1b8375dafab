# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Importing tf_fuse warns once of variables that it no longer reads."""

import sys
from pathlib import Path

import pytest

from tests import scripted
from tests.slow_cases import slow
from tf_fuse import _removed_variables

_ROOT = Path(__file__).resolve().parents[2]
_IMPORT = [
    sys.executable,
    "-c",
    "import tf_fuse; from tests import scripted; scripted.give(tf_fuse.__version__)",
]


@pytest.mark.parametrize(
    ("variables", "warnings"),
    [
        slow({}, []),
        slow({"TF_FUSE_FRAME_VERSION": "", "TF_FUSE_MAX_FRAME_BYTES": "1000"}, []),
        (
            {"TF_FUSE_REQUEST_CACHE_BYTES": "0", "TF_FUSE_FRAME_VERSION": "1"},
            [
                "tf_fuse: environment variables that no longer have an effect: "
                "TF_FUSE_FRAME_VERSION, TF_FUSE_REQUEST_CACHE_BYTES"
            ],
        ),
    ],
)
def test_import_warns_once(isolated_env, variables, warnings):
    _, log = scripted.result_and_log(_IMPORT, {**isolated_env, **variables})
    assert [line for line in log.splitlines() if "TF_FUSE_" in line] == warnings


def test_nothing_reads_a_removed_variable():
    sources = [
        path
        for folder in ("cc", "tf_fuse", "benchmarks", "examples", "docs")
        for path in (_ROOT / folder).rglob("*")
        if path.suffix in {".cc", ".h", ".py", ".md"} and path.name != "_removed_variables.py"
    ]
    assert len(sources) > 100
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    names = _removed_variables.REMOVED_VARIABLES
    assert list(names) == sorted(set(names))
    assert [name for name in names if name in text] == []
