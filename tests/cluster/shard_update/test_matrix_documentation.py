# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/weight_update.md name what the tests try."""

import re
from pathlib import Path

import pytest

from tests.cluster.shard_update.matrix_rows import EXACT, INEXACT, PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_ROOT = Path(__file__).resolve().parents[3]


# --- The tables of the documentation --------------------------------------------------------------


def _rows(name):
    text = (_ROOT / "docs" / "weight_update.md").read_text(encoding="utf-8")
    (table,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_all_optimizers_of_the_documentation():
    titles = {"Keras 3": "keras", "tf_keras": "tf_keras", "tf_keras.legacy": "tf_keras.legacy",
              "tf.compat.v1.train": "v1"}  # fmt: skip
    told = {True: set(), False: set()}
    for first, _, same in _rows("optimizers"):
        title, _, names = first.partition(": ")
        for name in re.findall(r"\b[A-Z]\w+\b", names):
            told[same.startswith("yes")].add((titles[title], name))
    tried = {(library, name.removesuffix("Optimizer")) for library, name, *_ in EXACT}
    assert told[True] == tried | {("keras", "Muon")}
    assert told[False] == {(library, name) for library, name, options, _ in INEXACT if not options}


def test_all_programs_of_the_documentation():
    named = {name for row in _rows("programs") for name in re.findall(r"`(\w+)`", row[-1])}
    assert named == {*PROGRAMS, "constrained", "lars"}
