# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What tests of jobs on parameter servers share."""

import functools

import pytest

from tests.fault import coordinator


@pytest.fixture(scope="module")
def jobs(request):
    """A function of a job of the test's file, which runs once; it returns what the job gave.

    The cases that the file's SLOW has of a job run if a test asks for one of them.
    """
    slow = getattr(request.module, "SLOW", {})

    @functools.cache
    def run(job, *more):
        return coordinator.Cases(str(request.path), job, *more, slow=slow.get(job, ()))

    return run
