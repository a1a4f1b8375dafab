# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a task on another host gets of this one's environment."""

import re

import pytest

from tf_fuse import cli
from tf_fuse.cluster.launcher.hosts import ssh_task

_ENVIRON = {
    "GRPC_FAIL_FAST": "use_caller",
    "HOME": "/home/somebody",
    "KERAS_BACKEND": "tensorflow",
    "LD_LIBRARY_PATH": "/lib",
    "PYTHONPATH": "/a b",
    "TF_CONFIG": "{}",
    "TF_FUSE_JOBS": "of this machine",
}


def test_what_travels():
    line = ssh_task._remote_command("/here", ["python", "x y"], _ENVIRON)
    assert line == (
        "cd /here && exec env GRPC_FAIL_FAST=use_caller KERAS_BACKEND=tensorflow "
        "'PYTHONPATH=/a b' 'TF_CONFIG={}' python 'x y'"
    )


def test_the_help_says_what_travels(capsys):
    with pytest.raises(SystemExit):
        cli.main(["launch", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    said = re.search(r"Of the environment, PYTHONPATH and (.*?) go there", text)[1]
    assert sorted(re.findall(r"\w+", said.replace(" and ", " "))) == sorted(ssh_task._PASSED)
