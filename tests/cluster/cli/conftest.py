# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of the commands."""

import shutil

import pytest

from tests.cluster.cli.doctor_runs import PACKAGE


@pytest.fixture
def copied(tmp_path):
    """A copy of the package, to break."""
    folder = tmp_path / "copy" / "tf_fuse"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder
