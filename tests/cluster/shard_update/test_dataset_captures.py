# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Datasets that read the optimizer's variables, which they may do at any time."""

from pathlib import Path

import pytest

from tests import scripted

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

_PROGRAM = Path(__file__).with_name("dataset_program.py")


def test_what_a_dataset_reads_is_not_sharded():
    result = scripted.given_by(_PROGRAM)
    assert result["given"] == result["had"]
    assert len(set(result["given"])) == 3
    (function,) = result["functions"]
    gradients = [one for bucket in function["buckets"] for one in bucket["gradients"]]
    # Of both replicas, the weight whose slot it is; the three others are sharded.
    assert [one["sharded"] for one in gradients].count(True) == 6
    assert [one["reason"] for one in gradients if not one["sharded"]] == ["several_weights"] * 2
    # One that is sharded already is an error for a new dataset; its value is not.
    assert "a function of a dataset reads a variable that lies in shards" in result["error"]
    assert "as with tf.constant(variable)" in result["error"]
    (given,), had = result["later"]
    assert given == had != 0
