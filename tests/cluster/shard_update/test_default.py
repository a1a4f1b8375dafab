# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whose updates are one operation each, by the options."""

import json
from pathlib import Path

import pytest

from tests import scripted

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

_PROGRAM = Path(__file__).with_name("default_program.py")


# With both replicas' updates in the step, each of a weight and two slots.
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"shard_weight_update": True}, [["step", "fused", 2]]),
        ({"shard_weight_update": True, "fuse_weight_update": False}, []),
        ({"shard_weight_update": True, "fuse_weight_update": True},
         [["step", "fused", 2], ["other", "fused", 1]]),
        ({"fuse_weight_update": True}, [["step", "fused", 2], ["other", "fused", 1]]),
        ({"shard_weight_update": False}, []),
    ],
)  # fmt: skip
def test_functions(options, told):
    assert scripted.given_by(_PROGRAM, json.dumps(options)) == told
