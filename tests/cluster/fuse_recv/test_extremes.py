# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Thousands of tensors in a group, and a tensor around 2 GiB."""

import math
import os
from pathlib import Path

import psutil
import pytest

from tests import scripted
from tests.slow_cases import slow

pytestmark = pytest.mark.cluster

_SLOTS = (1_000, slow(10_000))
_MOST = (1 << 31) - (1 << 20)  # What a protocol buffer can hold, without its other fields.
_TOO_MANY = (1 << 31) + 1
_NEEDED = 5 * _MOST  # The tensor, the messages of sender and receiver, and what is read there.
_SMALL = 4


def _run(slots, size):
    enough = psutil.virtual_memory().available > _NEEDED
    spec = {"slots": slots, "bytes": [size] if enough else []}
    return {
        mode: {
            event["case"]: event
            for event in scripted.run(
                Path(__file__).parent / "extremes.py", {"mode": mode, **spec}, os.environ
            )
        }
        for mode in ("stock", "plugin")
    }


@pytest.fixture(scope="module", params=_SLOTS)
def slots(request):
    return request.param


@pytest.fixture(scope="module")
def runs(slots):
    return _run(slots, _TOO_MANY)


def test_thousands_of_tensors_in_one_request(runs, slots):
    assert runs["plugin"]["many"]["values"] == runs["stock"]["many"]["values"]
    counted = runs["plugin"]["many"]["counted"]
    worker, server = counted["worker:0"], counted["ps:0"]
    assert worker["fused_rpcs"] == server["served_rpcs"] == 1
    assert worker["tensors"] == server["served_tensors"] == slots
    assert not {"fallbacks", "errors", "beside_tensors"} & worker.keys()


def _huge(runs, size):
    case = f"huge_{size}"
    if case not in runs["stock"]:
        pytest.skip(f"needs {math.ceil(_NEEDED / 2**30)} GiB of free memory")
    return runs["stock"][case], runs["plugin"][case]


@pytest.mark.slow
def test_a_tensor_of_nearly_two_gibibytes_goes_beside_the_frame():
    stock, plugin = _huge(_run(1, _MOST), _MOST)
    assert stock["error"] is None
    assert plugin["values"] == stock["values"]
    counted = plugin["counted"]["worker:0"]
    assert (counted["fused_rpcs"], counted["tensors"]) == (1, _SMALL + 1)
    assert counted["beside_tensors"] == 1
    assert not {"fallbacks", "errors"} & counted.keys()


def test_a_tensor_above_two_gibibytes_is_the_same_error(runs):
    stock, plugin = _huge(runs, _TOO_MANY)
    text = "Cannot encode a Tensor that exceeds the 2GB protobuf limit. Exceeded bytes: 1 "
    for outcome in (stock, plugin):
        kind, message = outcome["error"]
        assert kind == "InternalError"
        assert text in message
