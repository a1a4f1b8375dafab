# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What an older reader's or writer's frame cannot hold is sent beside it; values are the same."""

import os
from pathlib import Path

import pytest
import scripted

pytestmark = pytest.mark.cluster

_TEXTS = 6  # Of the case; one of them is too long for any frame.


@pytest.fixture(scope="module")
def runs():
    script = Path(__file__).parent / "frame_versions.py"
    return {
        version: {e["case"]: e for e in scripted.run(script, {"tasks": version}, os.environ)}
        for version in (1, 2)
    }


@pytest.mark.parametrize("reader", ["worker:0", "chief:0"])
def test_values_do_not_depend_on_the_version(runs, reader):
    assert runs[1][reader]["values"] == runs[2][reader]["values"]


@pytest.mark.parametrize(
    ("version", "reader", "beside"),
    [
        (2, "worker:0", 1),
        (2, "chief:0", 1),
        # Reader and writer are old; the writer alone is.
        (1, "worker:0", _TEXTS),
        (1, "chief:0", _TEXTS),
    ],
)
def test_only_strings_go_beside_an_old_frame(runs, version, reader, beside):
    counted = runs[version][reader]["counted"]
    assert counted["fused_rpcs"] == 1
    assert counted["beside_tensors"] == beside
    assert "errors" not in counted


def test_senders_pack_only_for_and_in_tasks_that_can(runs):
    # (job of the receiver, why the request handler packs). A reader of version 1 is a worker.
    packed = {reader: [[job, ""] for job in (reader[:-2], "ps")] for reader in runs[2]}
    for reader in ("worker:0", "chief:0"):
        assert sorted(runs[2][reader]["groups"]) == sorted(packed[reader])
    older = "_of_older_version"
    assert sorted(runs[1]["worker:0"]["groups"]) == [
        ["ps", f"sender{older}"],
        ["worker", f"sender{older}"],
    ]
    assert sorted(runs[1]["chief:0"]["groups"]) == [
        ["chief", f"sender{older}"],
        ["ps", f"receiver{older}"],
    ]
