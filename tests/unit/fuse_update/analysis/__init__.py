# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tests of `tf_fuse.fuse_update.analysis`."""
