# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tests that kill, stop, cancel or corrupt a part of a running cluster."""
