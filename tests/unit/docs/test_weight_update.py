# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""docs/weight_update.md has the variables that the sources have; tests, all reasons."""

import os
import re
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from tf_fuse.shard_update.decision import FUNCTION_REASONS
from tf_fuse.shard_update.plan import GATHER_REASONS, REASONS

_ROOT = Path(__file__).resolve().parents[3]
_TEXT = (_ROOT / "docs" / "weight_update.md").read_text(encoding="utf-8")


def _table(name):
    """First cell, without quotes, and second cell of the rows between two marks."""
    (part,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", _TEXT, re.DOTALL)
    rows = [row.strip("| ").split(" | ") for row in part.splitlines() if row.startswith("| ")]
    return {cells[0].strip("`"): cells[1] for cells in rows[1:]}


def test_every_reason_has_a_test():
    lists = [Path(__file__), _ROOT / "tests/unit/shard_update/test_report_reasons.py"]
    tests = [path for path in (_ROOT / "tests").rglob("test_*.py") if path not in lists]
    text = "".join(path.read_text(encoding="utf-8") for path in tests)
    # (One that stands in a list of all is not tested by that.)
    reasons = {*REASONS, *FUNCTION_REASONS, *GATHER_REASONS}
    assert [r for r in sorted(reasons) if f'"{r}"' not in text] == []


def test_optimizers_that_are_left_alone_have_reasons_that_there_are():
    left = re.findall(r"no: `(\w+)`", " ".join(_table("optimizers").values()))
    assert set(left) <= REASONS.keys()


def test_variables_and_their_defaults():
    rows = dict(
        re.findall(r"^\| `(TF_FUSE_\w+)` \| .*\((\d+)(?:; .*)?\)\. \|$", _TEXT, re.MULTILINE)
    )
    read = {}
    folders = [_ROOT / "tf_fuse" / name for name in ("shard_update", "sharded_variable")]
    for path in [path for folder in folders for path in folder.rglob("*.py")]:
        source = path.read_text(encoding="utf-8")
        for name, default in re.findall(r"os\.environ\.get\((\w+), (\w+)\)", source):
            (variable,) = re.findall(rf'^{name} = "(\w+)"$', source, re.MULTILINE)
            (number,) = re.findall(rf"^{default} = (\d+)\.0$", source, re.MULTILINE)
            read[variable] = number
    assert rows == read
    assert len(rows) == 3


def test_the_program_can_be_compiled():
    (program,) = re.findall(r"```python\n(# train\.py.*?)```", _TEXT, re.DOTALL)
    compile(program, "train.py", "exec")
    assert '"shard_weight_update": True' in program
