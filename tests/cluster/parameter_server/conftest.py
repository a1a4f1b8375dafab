# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What tests of jobs on parameter servers share."""

import functools

import pytest

from tests.fault import coordinator


@pytest.fixture(scope="module")
def jobs(request):
    """A function that runs a job of the test's file, once, and returns what the job gave."""
    return functools.cache(functools.partial(coordinator.run, str(request.path)))
