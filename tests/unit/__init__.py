# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tests that need no cluster, by the package or the part that they test."""
