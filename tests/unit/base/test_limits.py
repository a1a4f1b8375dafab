# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The pass asks for no more than a sender serves: keys per request, bytes per key."""

import sys

import pytest

from tests import scripted
from tests.unit.passes.pass_testing import (
    PS0,
    W0,
    const,
    groups,
    nodes_of,
    partitions,
    recv,
    send,
    skips,
    verdicts,
)
from tf_fuse.explain import rewrite


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


def test_a_receive_whose_key_has_4097_bytes_stays():
    longest = "x" * (4096 - len(PS0) - len(W0) - 61)
    names = ["a", "b", longest, longest + "x"]
    assert verdicts(rewrite(_values(names)))[longest] == "fused"
    assert verdicts(rewrite(_values(names)))[longest + "x"] == "key_too_long"


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
from tests import scripted
from tests.unit.passes.pass_testing import PS0, W0
from tests.unit.base.test_limits import _names, _values
from tf_fuse.explain import rewrite
result = rewrite(_values([*_names(5), "y" * 100]))
scripted.give([
    [len(group.slots) for group in result.report.groups],
    [skip.reason for skip in result.report.skips],
])
"""


def _with_environment(isolated_env, **variables):
    """What the pass does in a process with these variables, and what it logs."""
    command = [sys.executable, "-c", _IN_A_PROCESS]
    env = {**isolated_env, "TF_CPP_MIN_LOG_LEVEL": "1", **variables}
    return scripted.result_and_log(command, env)


def test_a_result_is_told_from_what_is_logged():
    code = "import sys; from tests import scripted; scripted.give([1]); print('late'); "
    code += "print('log', file=sys.stderr)"
    assert scripted.result_and_log([sys.executable, "-c", code]) == ([1], "log\n")


def test_the_limits_are_read_from_the_environment(isolated_env):
    (sizes, reasons), log = _with_environment(isolated_env, TF_FUSE_MAX_KEYS_PER_REQUEST="3")
    assert (sizes, reasons) == ([3, 3], [])
    assert "TF_FUSE_" not in log


@pytest.mark.parametrize("number", ["1", "many"])
def test_a_limit_that_is_no_number_in_range_is_reported_and_ignored(isolated_env, number):
    (sizes, reasons), log = _with_environment(isolated_env, TF_FUSE_MAX_KEYS_PER_REQUEST=number)
    assert (sizes, reasons) == ([6], [])
    assert (
        f"TF_FUSE_MAX_KEYS_PER_REQUEST is '{number}', expected a number from 2 to 1048576; 65536 "
        "is used." in log
    )
