# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Relayouts on real DTensors: values of every pair, and what DTensor does by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GATHER = "LOWER_DTENSOR_GATHER_TO_COLLECTIVE_GATHER_V2"
HERE = Path(__file__).resolve().parent
PAIRS = {"1-D": 16, "2-D": 196, "2x4": 49, "2x2x2": 1156, "rank 4": 441, "rank 5": 36}


def run(what: str, gather: bool) -> dict:
    """The JSON that `layout_on_dtensor.py` prints."""
    environment = {name: text for name, text in os.environ.items() if name != GATHER}
    if gather:  # TensorFlow looks whether it is there, not what it is.
        environment[GATHER] = "1"
    environment["PYTHONPATH"] = str(HERE.parents[1])
    done = subprocess.run(
        [sys.executable, str(HERE / "layout_on_dtensor.py"), what],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def results() -> dict:
    return run("values", gather=True)


@pytest.mark.parametrize("case", PAIRS)
def test_every_pair_keeps_the_values(results, case):
    """With real gathers, of which DTensor's own relayouts get some wrong."""
    assert results[case] == {"pairs": PAIRS[case], "wrong": []}


def test_a_traced_relayout_keeps_bits_and_has_a_gradient(results):
    assert results["function"] == {"bits": True, "gradient": True, "gradient_layout": True}


def test_what_stock_gets_wrong_is_still_wrong(results):
    """Why plans are run step by step. Where one becomes right, less care is needed."""
    assert results["stock"] == {
        "(2, 4) yx UU": False,  # a gather over two axes at once
        "(2, 4) yx yU": True,
        "(2, 2, 2) xUy Uxy": True,
        "(2, 2, 2) xUy Uxz": False,  # the last dimension is forgotten
        "(2,) UxU UUx": True,
        "(2,) xUUU UUUx": True,
        "(2,) UxUU UUxU": False,  # four dimensions, and the first one takes no part
    }


def test_what_cannot_be_run_says_why(results):
    assert results["errors"] == [
        "DTensor splits a dimension over one axis, but dimension 0 of [4/x+y] on x:2;y:2 is split "
        "over x, y; use a mesh in which they are one axis",
        "the layout is on mesh 'x:4', but the devices' mesh is 'x:2;y:2'",
        "mesh 'x:2;y:2' has 4 devices, got 1",
        "DTensor splits a dimension over one axis, but dimension 0 of [4/x+y] on x:2;y:2 is split "
        "over x, y; use a mesh in which they are one axis",
        "DTensor cannot run the step pad over x, dimension 0; make the plan by "
        "tf_fuse.layout.dtensor.plan",
    ]


def test_a_short_run_measures_the_mesh(results):
    assert results["calibration"] == {
        "mesh": "x:2;y:2", "axes": ["x", "y"], "numbers": True, "something": True,
        "agreed": [1.0, 2.0],
    }  # fmt: skip


def test_the_baseline_is_what_dtensor_does():
    """Kinds of collectives, their bytes, and whether the values are right, of stock relayouts."""
    assert run("inserted", gather=False) == {
        "2x4": {"pairs": 42, "wrong": 0, "differ": []},
        "2x2x2": {"pairs": 81, "wrong": 4, "differ": []},
    }
