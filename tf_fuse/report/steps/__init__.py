# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recorded steps: record them, make a timeline of them, find its critical path, and export it."""
