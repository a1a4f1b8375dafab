# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Predict data-parallel replicas: all-reduces, and weight updates that are sharded."""
