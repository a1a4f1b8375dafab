# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The error that the planner of clusters reports to its user."""


class ScaleError(ValueError):
    """A model, a file of costs or a setting cannot be used; the text says what to do."""
