# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Describe, show, save and compare the plans that a search finds."""
