# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The pass asks for no more than a sender serves: keys per request, bytes per key."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pass_testing import PS0, W0, const, groups, nodes_of, partitions, recv, send, skips, verdicts

from tf_fuse.explain import rewrite

_ROOT = Path(__file__).resolve().parents[2]


def _values(names):
    """Values of these names, sent from a server to a worker."""
    return partitions(
        *[const(name, PS0) for name in names],
        *[send(name, name, PS0, W0) for name in names],
        *[recv(name, PS0, W0) for name in names],
    )


def _names(count):
    return [f"v{i:05}" for i in range(count)]


@pytest.mark.parametrize(
    ("receives", "limit", "sizes"),
    [
        (6, 6, [6]),
        (7, 6, [3, 4]),  # evenly: no part is left with one
        (12, 6, [6, 6]),
        (13, 6, [4, 4, 5]),
        (4, 3, [2, 2]),
    ],
)
def test_a_group_is_split_at_the_limit_of_keys(receives, limit, sizes):
    names = _names(receives)
    result = rewrite(_values(names), max_keys_per_request=limit)
    assert [len(group) for group in groups(result)] == sizes
    assert [name for group in groups(result) for name in group] == names  # each once, in order
    assert skips(result) == {}
    fused = nodes_of(result.after[W0], "_FuseRecv")
    assert sorted(len(node.attr["tensor_names"].list.s) for node in fused) == sorted(sizes)


def test_what_is_left_alone_by_a_split_is_not_fused():
    result = rewrite(_values(["a", "b", "c"]), max_keys_per_request=2)
    assert verdicts(result) == {"a": "split_off", "b": "fused", "c": "fused"}


def test_ten_thousand_tensors_fit_into_one_request_by_default():
    names = _names(10_000)
    assert groups(rewrite(_values(names))) == [names]


def test_a_receive_with_a_longer_key_stays():
    # Both devices' names, the tensor's, and 61 bytes for the rest of the key.
    longest = "x" * 40
    limit = len(PS0) + len(W0) + len(longest) + 61
    names = ["a", "b", longest, longest + "x"]
    result = rewrite(_values(names), max_key_bytes=limit)
    assert verdicts(result) == {"a": "fused", "b": "fused", longest: "fused"} | {
        longest + "x": "key_too_long"
    }


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"max_keys_per_request": 1}, "max_keys_per_request is 1, must be 2 or more"),
        ({"max_key_bytes": 0}, "max_key_bytes is 0, must be 1 or more"),
    ],
)
def test_limits_that_are_too_small_are_refused(limits, text):
    with pytest.raises(ValueError, match=text):
        rewrite(_values(["a", "b"]), **limits)


_IN_A_PROCESS = """
import json, sys
sys.path[:0] = sys.argv[1:]
from pass_testing import PS0, W0
from test_pass_limits import _names, _values
from tf_fuse.explain import rewrite
result = rewrite(_values([*_names(5), "y" * 100]))
print(json.dumps([
    [len(group.slots) for group in result.report.groups],
    [skip.reason for skip in result.report.skips],
]))
"""


def _with_environment(isolated_env, **variables):
    """What the pass does in a process with these variables, and what it logs."""
    command = [sys.executable, "-c", _IN_A_PROCESS, str(_ROOT), str(Path(__file__).parent)]
    done = subprocess.run(
        command,
        env={**isolated_env, "TF_CPP_MIN_LOG_LEVEL": "1", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_the_limits_are_read_from_the_environment(isolated_env):
    (sizes, reasons), log = _with_environment(
        isolated_env, TF_FUSE_MAX_KEYS_PER_REQUEST="3", TF_FUSE_MAX_KEY_BYTES="200"
    )
    assert (sizes, reasons) == ([2, 3], ["key_too_long"])
    assert "TF_FUSE_" not in log


def test_a_limit_that_is_no_number_in_range_is_reported_and_ignored(isolated_env):
    (sizes, reasons), log = _with_environment(
        isolated_env, TF_FUSE_MAX_KEYS_PER_REQUEST="1", TF_FUSE_MAX_KEY_BYTES="many"
    )
    assert (sizes, reasons) == ([6], [])
    assert (
        "TF_FUSE_MAX_KEYS_PER_REQUEST is '1', expected a number from 2 to 1048576; 65536 is used."
        in log
    )
    assert (
        "TF_FUSE_MAX_KEY_BYTES is 'many', expected a number from 128 to 1048576; 4096 is used."
        in log
    )
