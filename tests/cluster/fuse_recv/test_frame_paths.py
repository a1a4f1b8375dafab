# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Frames by each data path, forced and forbidden: the same bits as in stock TensorFlow."""

import collections
import functools
import os
from pathlib import Path

import pytest

from tests import scripted

pytestmark = pytest.mark.cluster

_DIVIDED = {"dynamic": ["branches", "loops", "reads", "strings"]}
# The options of each task, and whether frames come by data channels. Each frame is large enough,
# but for the default: there a few are.
_ALL = {"TF_FUSE_CHANNEL_FRAME_BYTES": "1"}
_ENVIRONMENTS = {
    "shm": ({**_ALL, "TF_FUSE_COLLECTIVE_PATHS": "shm"}, True),
    "tcp": ({**_ALL, "TF_FUSE_COLLECTIVE_PATHS": "tcp"}, True),
    "grpc": ({**_ALL, "TF_FUSE_COLLECTIVE_PATHS": "grpc"}, False),
    "default": ({}, None),
}


# What runs by default; `make slow` runs all.
_FEW = [
    "branches",
    "crowded",
    "dtypes",
    "gradients",
    "loops",
    "reads",
    "strings",
    "updates_in_branches",
]


def _run(mode, is_whole, env):
    script = Path(__file__).parent / "modes.py"
    spec = {"mode": mode, "workers": 1, "ps": 2, "off": [], "divided": _DIVIDED}
    if not is_whole:
        spec["cases"] = _FEW
    return scripted.run(script, spec, {**os.environ, **env})


@functools.cache
def _stock(is_whole):
    return {e["case"]: e["values"] for e in _run("stock", is_whole, {}) if "values" in e}


@pytest.fixture(scope="module")
def stock(run):
    return _stock(run[3])


# (test_modes.py has the default.)
_PARAMS = [
    pytest.param(
        (name, is_whole),
        id=f"{name}-{'all' if is_whole else 'few'}",
        marks=pytest.mark.slow if is_whole or name == "default" else (),
    )
    for name in sorted(_ENVIRONMENTS)
    for is_whole in (False, True)
    if is_whole or name != "default"
]


@pytest.fixture(scope="module", params=_PARAMS)
def run(request):
    path, is_whole = request.param
    env, by_channel = _ENVIRONMENTS[path]
    emitted = _run("plugin", is_whole, env)
    cases = {(e["phase"], e["case"]): e for e in emitted if "values" in e}
    (lent,) = [e["of_tasks"] for e in emitted if e["case"] == "lent"]
    return cases, by_channel, lent, is_whole


def _counted(run, phase):
    """What all tasks counted in a phase."""
    total = collections.Counter()
    for (of_phase, _), e in run[0].items():
        if of_phase == phase:
            for counters in (c for of_call in e["counted"] for c in of_call.values()):
                total.update({k: v for k, v in counters.items() if isinstance(v, int)})
    return total


@pytest.mark.parametrize("phase", ["on", "dynamic"])
def test_values_are_the_same_bits(stock, run, phase):
    values = {case: e["values"] for (of_phase, case), e in run[0].items() if of_phase == phase}
    expected = {k: sorted(v) for k, v in _DIVIDED.items()}
    assert sorted(values) == expected.get(phase, sorted(stock))
    for case, value in values.items():
        assert value == stock[case], case


@pytest.mark.parametrize("phase", ["on", "dynamic"])
def test_frames_take_the_path(run, phase):
    total = _counted(run, phase)
    assert total["fused_rpcs"] > 0
    assert "errors" not in total and "served_errors" not in total
    if run[1]:
        # But for the first ones: a channel is opened when the first frame has come.
        assert total["channel_frames"] > total["fused_rpcs"] * 0.8
        assert 0 < total["channel_bytes"] <= total["bytes"]
    elif run[1] is False:
        assert not {"channel_frames", "channel_bytes"} & total.keys()


def test_nothing_is_left(run):
    assert run[2] == {"chief:0": 0, "ps:0": 0, "ps:1": 0, "worker:0": 0}
